"""Python numbers in programs that are traced: what computes them anew in every call."""
