"""Intervals, comparisons, tests and their power, computed from arrays of scores."""
