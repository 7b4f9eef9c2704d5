"""The power-of-two scale of a block, from its largest magnitude, as numba loops derive it."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy import float32, float64, int64, uint32, uint64

from roundoff.formats.reinterpret import bits_of64, float_of32, float_of64

# Blocks whose largest number lies below 2^-40 are rounded times 2^64: no number that counts is then subnormal.
_SMALL = (127 - 40) << 23
_LIFT = 64


@njit(inline="always")  # type: ignore[untyped-decorator]
def shared_exponent(top: Any, addend: Any, emax: Any) -> Any:
    """The exponent of the scale of a block whose largest magnitude is ``top``, a float64."""
    exponent = ((int64(bits_of64(top)) + addend) >> 52) - 1023 - emax
    return max(int64(-127), min(int64(127), exponent))


@njit(inline="always")  # type: ignore[untyped-decorator]
def _power(exponent: Any) -> Any:
    return float_of64(uint64((exponent + 1023) << 52))


@njit(inline="always")  # type: ignore[untyped-decorator]
def scale32(top: Any, addend: Any, emax: Any, emin: Any, largest: Any) -> Any:
    """(factor before, factor after, biased exponent of the smallest normal, largest) for the magnitude ``top``."""
    exponent = shared_exponent(float64(float_of32(top)), addend, emax)
    lift = int64(_LIFT) if top < uint32(_SMALL) else int64(0)
    after = float32(np.nan) if top >= uint32(0x7F800000) else float32(_power(-lift))
    exponent += lift
    return float32(_power(lift)), after, uint32(exponent + emin + 127), float32(largest * _power(exponent))


@njit(inline="always")  # type: ignore[untyped-decorator]
def scale64(top: Any, addend: Any, emax: Any, emin: Any, largest: Any) -> Any:
    """As :func:`scale32`, without a factor before: float64 has the range."""
    exponent = shared_exponent(float_of64(top), addend, emax)
    after = float64(np.nan) if top >= uint64(0x7FF0000000000000) else float64(1.0)
    return after, uint64(exponent + emin + 1023), largest * _power(exponent)
