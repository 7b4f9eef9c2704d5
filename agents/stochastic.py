"""Results that are computed exactly, as one operation, and rounded once, stochastically or to the nearest."""

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
    """Converts numbers for arithmetic in float64, outside of any simulation.

    Args:
        x: numbers of ``dtype``; a Python number is first converted to float32, unless ``dtype`` is float64, in the same
            way as in kernels and compiled programs.
        dtype: the dtype of the tensors in the arithmetic.
    """
    if isinstance(x, torch.Tensor):
        return x.double()
    return x if dtype == torch.float64 else float(np.float32(x))


def rounded_stochastically(exact: torch.Tensor, dtype: torch.dtype, operation: str) -> torch.Tensor:
    """Rounds a result once, stochastically, to the format of the arithmetic around the caller.

    The surrounding simulation determines the format, which is the one for results of ``operation``, and the random
    bits, which follow from its seed, its step, the index of the rounding and the element. In a simulation that rounds
    nothing, such as ``simulate("fp32", seed=0)``, float16 and bfloat16 results are rounded to their dtype, and float32
    and float64 results to the nearest number.

    NaN and infinities stay. A result below the smallest number becomes 0 or that number, and is right on average.
    Values beyond the largest number become infinity or the largest number, by the format's rules.

    Args:
        exact: float64; its own error is at most a few units of 2^-53, and the random bits are 32.
        dtype: the dtype of the result.
        operation: the name of the operation in rules of policies.

    Returns:
        A new tensor of ``dtype``, without a gradient.

    Raises:
        FormatError: ``dtype`` is a half precision, without a simulation that supplies random bits.
    """
    fmt = result_format(operation) or _OF_DTYPES.get(dtype)
    return _to(exact if fmt is None else store(exact, fmt, Rounding.STOCHASTIC), dtype)


def rounded_once(exact: torch.Tensor, dtype: torch.dtype, operation: str) -> torch.Tensor:
    """Rounds a result once, to the nearest, to the format of the surrounding arithmetic.

    All else is the same as in :func:`rounded_stochastically`; it draws no random bits.
    """
    fmt = result_format(operation) or _OF_DTYPES.get(dtype)
    return _to(exact if fmt is None else store(exact, fmt, Rounding.NEAREST_EVEN), dtype)
