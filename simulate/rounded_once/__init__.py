"""Exact arithmetic, rounded once."""
