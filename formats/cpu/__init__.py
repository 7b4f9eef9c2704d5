"""Compiled loops over the CPU's memory: their parts, their compilation and their calls."""
