"""Marks on the memory of tensors: known facts about the values there."""
