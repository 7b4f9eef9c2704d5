"""Sums and products of float64 tensors with what their rounding lost, on any device: the twin of ``error_free``."""

from __future__ import annotations

import torch

_SPLITTER = 2.0**27 + 1  # Veltkamp: halves of 26 bits, whose products are exact


def two_sum(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The sum and what is missing to the exact one (Knuth); NaN where the sum is infinite."""
    total = x + y
    part = total - x
    return total, (x - (total - part)) + (y - part)


def _halves(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    scaled = _SPLITTER * x
    high = scaled - (scaled - x)
    return high, x - high


def two_product(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The product and what is missing to the exact one (Dekker), for factors up to 2^996.

    0 or NaN where float64 cannot tell.
    """
    product = x * y
    (x1, x2), (y1, y2) = _halves(x), _halves(y)
    return product, ((x1 * y1 - product) + x1 * y2 + x2 * y1) + x2 * y2


def odd(total: torch.Tensor, error: torch.Tensor) -> torch.Tensor:
    """``total + error`` rounded to odd; ``total`` where the error is NaN."""
    bits = total.view(torch.int64)
    inexact = error.abs() > 0
    opposite = inexact & ((bits ^ error.view(torch.int64)) < 0)
    return ((bits - opposite.to(torch.int64)) | inexact.to(torch.int64)).view(torch.float64)
