"""The arithmetic of rounding that does not depend on where it runs."""
