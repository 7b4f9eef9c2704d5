"""Runs trained to their end: separately, together, or to find the operations that break them."""
