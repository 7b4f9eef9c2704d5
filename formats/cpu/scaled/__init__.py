"""Loops for formats with shared scales."""
