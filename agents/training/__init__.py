"""Runs trained to their end: alone, together, or to find what breaks them."""
