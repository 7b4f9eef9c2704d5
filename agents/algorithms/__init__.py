"""Algorithms, one folder each."""
