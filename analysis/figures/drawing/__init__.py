"""Shared parts of figures: style, axes, marks of scores, heat maps and names of lines."""
