"""What figures have in common: looks, axes, marks of scores, heat maps, names of lines."""
