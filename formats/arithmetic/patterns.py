"""Bit patterns of the carriers, float32 and float64; conversions of values to patterns and integers, and back.

The conversions of tensors are exact, on any device.
"""

from __future__ import annotations

import numpy as np
import torch

from ..base.on_device import where

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


_STORED = STORED_BITS[torch.float64]
_BIAS = LARGEST_EXPONENT[torch.float64]
_INFINITY = INFINITY[torch.float64]
_SIGN = -(1 << 63)  # of float64, as an int64


def float64_bits(x: torch.Tensor) -> torch.Tensor:
    """The float64 patterns of float32 or float64 numbers, int64, exactly.

    On the CPU by integer operations: a conversion would lose subnormal numbers where the processor flushes them.
    """
    if x.dtype == torch.float64 or x.device.type != "cpu":
        return x.to(torch.float64).view(torch.int64)
    bits = x.view(torch.int32).to(torch.int64)
    magnitude = bits & 0x7FFFFFFF
    wide = (magnitude << 29) + ((_BIAS - 127) << _STORED)  # 52 - 23 further significand bits.
    wide = where(magnitude >= 0x7F800000, wide | _INFINITY, wide)
    subnormal = magnitude.to(torch.float64).view(torch.int64) - (149 << _STORED)  # Times 2^-149.
    wide = where(magnitude < 0x800000, where(magnitude == 0, 0, subnormal), wide)
    return where(bits < 0, wide | _SIGN, wide)


def narrowed(numbers: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Numbers of float64 in ``dtype``, which holds them; subnormal ones too where the processor flushes them."""
    if dtype == torch.float64 or numbers.device.type != "cpu":
        return numbers.to(dtype)
    bits = numbers.view(torch.int64)
    magnitude = bits & ~_SIGN
    below_normal = magnitude < ((_BIAS - 126) << _STORED)
    quanta = where(below_normal, magnitude, 0).view(torch.float64) * 2.0**149
    subnormal = (quanta.to(torch.int64) | ((bits >> 63) << 31)).to(torch.int32).view(torch.float32)
    return where(below_normal, subnormal, numbers.to(torch.float32))


def significand_and_exponent(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The magnitudes of finite numbers as integers: |x| = significand 2^exponent.

    Args:
        x: float32 or float64, any shape and device. Infinity and NaN give an exponent of 972 or more.

    Returns:
        Two int64 tensors: significand in [0, 2^53), exponent from -1074 to 972.
    """
    bits = float64_bits(x)
    biased = (bits >> _STORED) & 0x7FF
    fraction = bits & ((1 << _STORED) - 1)
    return fraction | ((biased > 0).to(torch.int64) << _STORED), biased.clamp(min=1) - (_BIAS + _STORED)


def power_of_two(exponent: torch.Tensor) -> torch.Tensor:
    """2^exponent as float64, exactly; ``exponent`` is int64, -1022 to 1023."""
    return ((exponent + _BIAS) << _STORED).view(torch.float64)
