"""Simulate number formats in PyTorch programs."""
