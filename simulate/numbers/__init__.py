"""Python numbers in programs that are traced: recomputes them in every call."""
