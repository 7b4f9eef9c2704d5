"""Quantized acting: a policy acts in an arithmetic other than the one it was trained in."""
