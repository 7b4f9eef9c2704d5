"""Loops for formats that round every number by itself."""
