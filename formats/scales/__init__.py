"""Formats with scales that follow from the data: choice of scales, and blocks with a power of two."""
