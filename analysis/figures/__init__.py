"""Figures, each drawn from its CSV file."""
