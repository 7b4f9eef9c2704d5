"""Loops for formats whose numbers share a scale."""
