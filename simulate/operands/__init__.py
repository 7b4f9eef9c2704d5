"""Operands of operations: tell weights, activations, gradients and inputs apart, and round them."""
