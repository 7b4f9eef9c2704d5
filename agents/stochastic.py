"""Results that are computed as one operation, exactly, and rounded once, stochastically."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from ..formats import Rounding, apart
from ..simulate import result_format, store

_OF_DTYPES = {torch.float16: "e5m10", torch.bfloat16: "e8m7"}


@apart
def exactly(x: torch.Tensor | float, dtype: torch.dtype) -> Any:
    """A number or numbers for arithmetic in float64, whatever is simulated.

    Args:
        x: numbers of ``dtype``; a Python number is made one of float32 first, unless ``dtype`` is float64, since that
            is how kernels and compiled programs have it.
        dtype: of the tensors that the arithmetic is about.
    """
    if isinstance(x, torch.Tensor):
        return x.double()
    return x if dtype == torch.float64 else float(np.float32(x))


def rounded_stochastically(exact: torch.Tensor, dtype: torch.dtype, operation: str) -> torch.Tensor:
    """Rounds a result once, stochastically, to the format that the arithmetic has where the caller runs.

    The format is that of results of ``operation`` in the simulation around, and the random bits are the next ones of
    that simulation, so that they follow from its seed, its step, the number of the rounding and the element. Tensors of
    PyTorch's half precisions are in these formats where nothing is simulated; ``simulate("fp32", seed=0)`` around then
    gives the random bits, and rounds nothing. The carrier, float32 or float64, is no format to round to: there the
    result is rounded to the nearest.

    NaN and infinities stay, and a result below the smallest number becomes 0 or that number, on average itself. What is
    beyond the largest number becomes what the format makes of it: infinity, or the largest number.

    Args:
        exact: float64; its own error is at most a few units of 2^-53, and the random bits are 32.
        dtype: of the result.
        operation: by which rules of policies name the operation.

    Returns:
        A new tensor of ``dtype``, without a gradient.

    Raises:
        FormatError: ``dtype`` is a half precision, and there is no simulation for random bits.
    """
    fmt = result_format(operation) or _OF_DTYPES.get(dtype)
    return _as(exact if fmt is None else store(exact, fmt, Rounding.STOCHASTIC), dtype)


def rounded_once(exact: torch.Tensor, dtype: torch.dtype, operation: str) -> torch.Tensor:
    """Rounds a result once, to the nearest, to the format that the arithmetic has where the caller runs.

    Otherwise as :func:`rounded_stochastically`; it draws no random bits.
    """
    fmt = result_format(operation) or _OF_DTYPES.get(dtype)
    return _as(exact if fmt is None else store(exact, fmt, Rounding.NEAREST_EVEN), dtype)


@apart
def _as(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return x.to(dtype)
