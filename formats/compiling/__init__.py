"""Formats in compiled programs: as data, and as inductor writes them."""
