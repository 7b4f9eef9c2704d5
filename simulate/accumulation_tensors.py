"""The steps of low-precision accumulation as tensor operations, in float64: the same bits as the loops on the CPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from roundoff.formats.floats import FP64
from roundoff.formats.tensor_kernels import round_nearest

if TYPE_CHECKING:
    from roundoff.formats import FloatFormat

_SPLITTER = 2.0**27 + 1  # Veltkamp: halves of 26 bits, whose products are exact


def _two_sum(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The sum and what is missing to the exact one; NaN where the sum is infinite."""
    total = x + y
    part = total - x
    return total, (x - (total - part)) + (y - part)


def _halves(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    scaled = _SPLITTER * x
    high = scaled - (scaled - x)
    return high, x - high


def _two_product(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The product and what is missing to the exact one (Dekker); 0 where that cannot be told."""
    product = x * y
    (x1, x2), (y1, y2) = _halves(x), _halves(y)
    low = ((x1 * y1 - product) + x1 * y2 + x2 * y1) + x2 * y2
    return product, torch.where(low.isfinite(), low, 0.0)


def _odd(total: torch.Tensor, error: torch.Tensor) -> torch.Tensor:
    """``total + error`` rounded to odd."""
    bits = total.view(torch.int64)
    inexact = (error.abs() > 0).to(torch.int64)
    opposite = (bits ^ error.view(torch.int64)) < 0
    return ((bits - (opposite & (inexact == 1)).to(torch.int64)) | inexact).view(torch.float64)


def _rounded(total: torch.Tensor, error: torch.Tensor, fmt: FloatFormat) -> torch.Tensor:
    if fmt == FP64:
        return total
    return round_nearest(_odd(total, error), fmt.parameters(torch.float64))


def add(x: torch.Tensor, y: torch.Tensor, fmt: FloatFormat) -> torch.Tensor:
    """``x + y`` rounded once to ``fmt``; float64, any device."""
    return _rounded(*_two_sum(x, y), fmt)


def multiply(x: torch.Tensor, y: torch.Tensor, fmt: FloatFormat) -> torch.Tensor:
    """``x * y`` rounded once to ``fmt``; float64, broadcasting, any device."""
    return _rounded(*_two_product(x, y), fmt)


def multiply_add(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor, fmt: FloatFormat) -> torch.Tensor:
    """``x * y + z`` rounded once to ``fmt``; float64, broadcasting, any device (Boldo and Melquiond, 2008)."""
    high, low = _two_product(x, y)
    middle, first = _two_sum(z, low)
    top, second = _two_sum(high, middle)
    total, error = _two_sum(top, _odd(*_two_sum(first, second)))
    plain = high + z
    better = plain.isfinite() & (total != 0)  # the sign of zero is that of the plain sum
    return _rounded(torch.where(better, total, plain), torch.where(better, error, 0.0), fmt)


def compensated(total: torch.Tensor, summand: torch.Tensor, fmt: FloatFormat) -> tuple[torch.Tensor, torch.Tensor]:
    """The rest of a step of Kahan's summation, once what was lost has been taken from the summand: new total, lost."""
    after = add(total, summand, fmt)
    return after, add(add(after, -total, fmt), -summand, fmt)
