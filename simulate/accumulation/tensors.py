"""The steps of low-precision accumulation as tensor operations, in float64: the same bits as the loops on the CPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ...formats.arithmetic.float_tensors import round_nearest
from ...formats.families.floats import FP64
from ..exact.error_free_tensors import multiply_add as scaled_multiply_add
from ..exact.error_free_tensors import odd, product_odd, two_sum

if TYPE_CHECKING:
    from ...formats import FloatFormat


def add(x: torch.Tensor, y: torch.Tensor, fmt: FloatFormat) -> torch.Tensor:
    """``x + y`` rounded once to ``fmt``; float64, any device."""
    total, error = two_sum(x, y)
    return total if fmt == FP64 else round_nearest(odd(total, error), fmt.parameters(torch.float64))


def multiply(x: torch.Tensor, y: torch.Tensor, fmt: FloatFormat) -> torch.Tensor:
    """``x * y`` rounded once to ``fmt``; float64, broadcasting, any device."""
    return x * y if fmt == FP64 else round_nearest(product_odd(x, y), fmt.parameters(torch.float64))


def multiply_add(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor, fmt: FloatFormat) -> torch.Tensor:
    """``x * y + z`` rounded once to ``fmt``; float64, broadcasting, any device."""
    to_odd = fmt != FP64
    exact = scaled_multiply_add(x, y, z, to_odd=to_odd)
    return round_nearest(exact, fmt.parameters(torch.float64)) if to_odd else exact


def compensated(total: torch.Tensor, summand: torch.Tensor, fmt: FloatFormat) -> tuple[torch.Tensor, torch.Tensor]:
    """The rest of a step of Kahan's summation, once what was lost has been taken from the summand: new total, lost."""
    after = add(total, summand, fmt)
    return after, add(add(after, -total, fmt), -summand, fmt)
