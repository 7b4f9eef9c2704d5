"""The scale of a block, from its largest magnitude, as numba loops derive it: a power of two, or NVFP4's.

A scale is (before, after, smallest, largest): numbers are divided or multiplied by the first, rounded to elements whose
smallest normal one has the biased exponent ``smallest`` and whose largest is ``largest``, and multiplied by the second.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy import float64, int64, uint32, uint64

from ...arithmetic.tail import rule
from ..bits import bits_of64, float_of64
from ..element_tail import to_element
from ..widths import BIAS, INFINITE, ByWidth, bits_of, float_of, real, unsigned

# Blocks whose largest number lies below 2^-40 are rounded times 2^64: no number that counts is then subnormal. Float64
# has the range without that.
LIFTS: Any = ByWidth(True, False)
_SMALL = (127 - 40) << 23
_LIFT = 64

# The scales of NVFP4 are E4M3 numbers, rounded to nearest-even.
_SCALE_EMIN, _SCALE_M, _SCALE_MAX = -6, 3, 448.0
_NEAREST: Any = ByWidth(
    *(tuple(word(part) for part in rule("nearest-even", width)) for word, width in ((uint32, 32), (uint64, 64)))
)


@njit(inline="always")  # type: ignore[untyped-decorator]
def _power(exponent: Any) -> Any:
    return float_of64(uint64((exponent + 1023) << 52))


@njit(inline="always")  # type: ignore[untyped-decorator]
def _shared_exponent(top: Any, addend: Any, emax: Any) -> Any:
    """The exponent of the scale of a block with largest magnitude ``top``, a float64."""
    exponent = ((int64(bits_of64(top)) + addend) >> 52) - 1023 - emax
    return max(int64(-127), min(int64(127), exponent))


@njit(inline="always")  # type: ignore[untyped-decorator]
def power_scale(top: Any, addend: Any, emax: Any, emin: Any, largest: Any) -> Any:
    """The power-of-two scale for the largest magnitude ``top``; its first part multiplies.

    Args:
        top: a pattern; NaN and infinity give a scale that makes all numbers NaN.
        addend: added to the float64 pattern of ``top`` before its exponent is read.
        emax: exponent of the largest element.
        emin: exponent of the smallest normal element.
        largest: the largest element, float64.
    """
    exponent = _shared_exponent(float64(float_of(top)), addend, emax)
    lift = int64(_LIFT) if LIFTS and top < unsigned(_SMALL) else int64(0)
    after = real(np.nan) if top >= INFINITE else real(_power(-lift))
    before = real(_power(lift))
    return before, after, unsigned(exponent + lift + emin + int64(BIAS)), real(largest * _power(exponent + lift))


@njit(inline="always")  # type: ignore[untyped-decorator]
def scale_in_tensor(top: Any, emin: Any, largest: Any, tensor_scale: Any) -> Any:
    """The scale of a block of NVFP4 for the largest magnitude ``top``; its first part divides.

    Args:
        top: a pattern; NaN and infinity give a scale that makes all numbers NaN.
        emin: exponent of the smallest normal element.
        largest: the largest element, float64.
        tensor_scale: the scale of the tensor.
    """
    ratio = float_of(top) / (real(largest) * tensor_scale)
    own, places, limit = unsigned(_SCALE_EMIN + int64(BIAS)), unsigned(_SCALE_M), real(_SCALE_MAX)
    after = to_element(bits_of(ratio), own, places, limit, unsigned(0), _NEAREST, uint32(0)) * tensor_scale
    before = real(1.0) if after == real(0.0) else after
    return before, after, unsigned(emin + int64(BIAS)), real(largest)
