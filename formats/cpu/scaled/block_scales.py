"""The scale of a block, from its largest magnitude, as numba loops derive it: a power of two, or that of NVFP4.

A scale is (before, after, smallest, largest): numbers are divided or multiplied by the first, rounded to elements whose
smallest normal one has the biased exponent ``smallest`` and whose largest is ``largest``, and multiplied by the second.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy import float32, float64, int64, uint32, uint64

from ...arithmetic.tail import rule
from ..bits import bits_of32, bits_of64, float_of32, float_of64
from ..element_tail import to_element32, to_element64

# Blocks whose largest number lies below 2^-40 are rounded times 2^64: no number that counts is then subnormal.
_SMALL = (127 - 40) << 23
_LIFT = 64

# The scales of NVFP4 are E4M3 numbers, rounded to nearest-even.
_SCALE_EMIN, _SCALE_M, _SCALE_MAX = -6, 3, 448.0
_NEAREST32, _NEAREST64 = (
    tuple(word(part) for part in rule("nearest-even", width)) for word, width in ((uint32, 32), (uint64, 64))
)


@njit(inline="always")  # type: ignore[untyped-decorator]
def _power(exponent: Any) -> Any:
    return float_of64(uint64((exponent + 1023) << 52))


@njit(inline="always")  # type: ignore[untyped-decorator]
def _shared_exponent(top: Any, addend: Any, emax: Any) -> Any:
    """The exponent of the scale of a block whose largest magnitude is ``top``, a float64."""
    exponent = ((int64(bits_of64(top)) + addend) >> 52) - 1023 - emax
    return max(int64(-127), min(int64(127), exponent))


@njit(inline="always")  # type: ignore[untyped-decorator]
def scale32(top: Any, addend: Any, emax: Any, emin: Any, largest: Any, tensor_scale: Any) -> Any:
    """The scale for the largest magnitude ``top``, a float32 pattern.

    Args:
        top: NaN and infinity give a scale that makes all numbers NaN.
        addend: added to the float64 pattern of ``top`` before its exponent is read.
        emax: exponent of the largest element.
        emin: exponent of the smallest normal element.
        largest: the largest element, float64.
        tensor_scale: 0 for a power-of-two scale, which multiplies before; else the tensor's scale, and that of the
            block divides before.
    """
    if tensor_scale == float32(0.0):
        exponent = _shared_exponent(float64(float_of32(top)), addend, emax)
        lift = int64(_LIFT) if top < uint32(_SMALL) else int64(0)
        after = float32(np.nan) if top >= uint32(0x7F800000) else float32(_power(-lift))
        before = float32(_power(lift))
        smallest, most = uint32(exponent + lift + emin + 127), float32(largest * _power(exponent + lift))
    else:
        ratio = float_of32(top) / (float32(largest) * tensor_scale)
        places, limit = uint32(_SCALE_M), float32(_SCALE_MAX)
        own = uint32(_SCALE_EMIN + 127)
        after = to_element32(bits_of32(ratio), own, places, limit, uint32(0), _NEAREST32, uint32(0)) * tensor_scale
        before = float32(1.0) if after == float32(0.0) else after
        smallest, most = uint32(emin + 127), float32(largest)
    return before, after, smallest, most


@njit(inline="always")  # type: ignore[untyped-decorator]
def scale64(top: Any, addend: Any, emax: Any, emin: Any, largest: Any, tensor_scale: Any) -> Any:
    """As :func:`scale32`, for float64, which has the range without lifting."""
    if tensor_scale == 0.0:
        exponent = _shared_exponent(float_of64(top), addend, emax)
        after = float64(np.nan) if top >= uint64(0x7FF0000000000000) else float64(1.0)
        before = float64(1.0)
        smallest, most = uint64(exponent + emin + 1023), largest * _power(exponent)
    else:
        ratio = float_of64(top) / (largest * tensor_scale)
        places, limit = uint64(_SCALE_M), float64(_SCALE_MAX)
        own = uint64(_SCALE_EMIN + 1023)
        after = to_element64(bits_of64(ratio), own, places, limit, uint64(0), _NEAREST64, uint32(0)) * tensor_scale
        before = float64(1.0) if after == 0.0 else after
        smallest, most = uint64(emin + 1023), float64(largest)
    return before, after, smallest, most
