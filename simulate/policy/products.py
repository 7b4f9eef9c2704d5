"""The three products of a layer with a weight."""

from __future__ import annotations

from enum import StrEnum


class Product(StrEnum):
    """The product of a linear layer or convolution that an operand is rounded for; attention's products are none."""

    OUTPUT = "output"
    """Activation times weight, in the forward pass."""
    GRAD_INPUT = "grad-input"
    """Gradient times weight: the gradient of the activation."""
    GRAD_WEIGHT = "grad-weight"
    """Gradient times activation: the gradient of the weight."""
