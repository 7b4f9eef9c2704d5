"""Decompositions of composite operations, one file per subject."""
