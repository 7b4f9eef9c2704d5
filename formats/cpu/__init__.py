"""Compiled loops over the memory of the CPU: how they are made, run and what they are made of."""
