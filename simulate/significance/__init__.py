"""Counting the significant digits of a program's results, by rounding randomly (stochastic arithmetic)."""
