"""Rounded accumulation: sums and products in an accumulator of a given format."""
