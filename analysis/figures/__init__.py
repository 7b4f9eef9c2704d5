"""Figures, each drawn from a CSV file beside it."""
