"""Watching a simulation: counts, absorbed additions, tables."""
