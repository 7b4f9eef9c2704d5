"""Intervals, comparisons and answers, computed from tables of runs."""
