"""Results that are computed as one operation, exactly, and rounded once, stochastically."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from ..formats import Rounding, unsimulated
from ..simulate import result_format, store

_OF_DTYPES = {torch.float16: "e5m10", torch.bfloat16: "e8m7"}
_to = unsimulated(torch.Tensor.to)


@unsimulated
def exactly(x: torch.Tensor | float, dtype: torch.dtype) -> Any:
    """A number or numbers for arithmetic in float64, whatever is simulated.

    Args:
        x: numbers of ``dtype``; a Python number is made one of float32 first, unless ``dtype`` is float64, since that
            is how kernels and compiled programs have it.
        dtype: the dtype of the tensors in the arithmetic.
    """
    if isinstance(x, torch.Tensor):
        return x.double()
    return x if dtype == torch.float64 else float(np.float32(x))


def rounded_stochastically(exact: torch.Tensor, dtype: torch.dtype, operation: str) -> torch.Tensor:
    """Rounds a result once, stochastically, to the format of the arithmetic around the caller.

    The format is the one of results of ``operation`` in the surrounding simulation, and the random bits are the next
    ones of that simulation, so that they follow from its seed, its step, the number of the rounding and the element.
    Tensors of PyTorch's half precisions are in these formats where nothing is simulated; ``simulate("fp32", seed=0)``
    around then gives the random bits, and rounds nothing. The carrier, float32 or float64, is not a format to round to:
    there the result is rounded to the nearest.

    NaN and infinities stay, and a result below the smallest number becomes 0 or that number, on average itself. Values
    beyond the largest number become infinity or the largest number, as the format does.

    Args:
        exact: float64; its own error is at most a few units of 2^-53, and the random bits are 32.
        dtype: the dtype of the result.
        operation: the name of the operation in rules of policies.

    Returns:
        A new tensor of ``dtype``, without a gradient.

    Raises:
        FormatError: ``dtype`` is a half precision, without a simulation to give random bits.
    """
    fmt = result_format(operation) or _OF_DTYPES.get(dtype)
    return _to(exact if fmt is None else store(exact, fmt, Rounding.STOCHASTIC), dtype)


def rounded_once(exact: torch.Tensor, dtype: torch.dtype, operation: str) -> torch.Tensor:
    """Rounds a result once, to the nearest, to the format that the arithmetic has where the caller runs.

    Otherwise as :func:`rounded_stochastically`; it draws no random bits.
    """
    fmt = result_format(operation) or _OF_DTYPES.get(dtype)
    return _to(exact if fmt is None else store(exact, fmt, Rounding.NEAREST_EVEN), dtype)
