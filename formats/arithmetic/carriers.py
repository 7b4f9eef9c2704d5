"""The carriers, float32 and float64: what their bit patterns are made of."""

from __future__ import annotations

import numpy as np
import torch

STORED_BITS = {torch.float32: 23, torch.float64: 52}
"""Stored significand bits."""
LARGEST_EXPONENT = {torch.float32: 127, torch.float64: 1023}
"""Largest exponent, which is also the bias."""
INFINITY = {torch.float32: 0x7F800000, torch.float64: 0x7FF0000000000000}
INTEGER = {torch.float32: torch.int32, torch.float64: torch.int64}
"""The integers of the same width."""


def pattern(value: float, dtype: torch.dtype) -> int:
    """The bit pattern of ``value`` as a float32 or float64."""
    if dtype == torch.float32:
        return int(np.float32(value).view(np.uint32))
    return int(np.float64(value).view(np.uint64))
