"""Comparing two runs of a program operation by operation: where they differ, and whether rounding explains it."""
