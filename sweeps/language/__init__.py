"""Sweep files: read with the places of all mistakes, expanded to the runs that they describe."""
