"""Measurements anyone can run: ratios, measured side by side."""
