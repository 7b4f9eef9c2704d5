"""Marks on the memory of tensors: what is known about the values there."""
