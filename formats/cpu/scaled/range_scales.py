"""The scale and zero point of integer quantization from minimum and maximum, as numba loops derive them.

Numbers are compared as integers of the same order, which puts NaN beyond infinity at either end.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy import float32, float64, int32, int64, uint32, uint64

from ..bits import float_of32, float_of64

FIRST32, LAST32 = int32(-0x80000000), int32(0x7FFFFFFF)
FIRST64, LAST64 = int64(-0x8000000000000000), int64(0x7FFFFFFFFFFFFFFF)
# The keys of minus and plus infinity.
_LOWEST32, _HIGHEST32 = int32(-0x7F800001), int32(0x7F800000)
_LOWEST64, _HIGHEST64 = int64(-0x7FF0000000000001), int64(0x7FF0000000000000)
_MAX32, _MAX64 = (2.0 - 2.0**-23) * 2.0**127, (2.0 - 2.0**-52) * 2.0**1023


@njit(inline="always")  # type: ignore[untyped-decorator]
def key32(bits: Any) -> Any:
    """A float32 pattern as an int32 of the same order (-0 below +0), and back again."""
    bits = int32(bits)
    return int32(bits ^ int32(int32(bits >> int32(31)) & LAST32))


@njit(inline="always")  # type: ignore[untyped-decorator]
def key64(bits: Any) -> Any:
    """As :func:`key32`, for float64 and int64."""
    bits = int64(bits)
    return int64(bits ^ int64(int64(bits >> int64(63)) & LAST64))


@njit(inline="always")  # type: ignore[untyped-decorator]
def _scale(bottom: Any, top: Any, low: Any, high: Any, symmetric: Any, least: Any) -> Any:
    """The arithmetic of roundoff.formats.families.calibration, operation by operation; all float64."""
    if symmetric != 0:
        return max(max(-bottom, top) / high, least)
    bottom, top = min(bottom, 0.0), max(top, 0.0)
    width, codes = top - bottom, high - low
    return max(width / codes if width < np.inf else (top / 2.0 - bottom / 2.0) / (codes / 2.0), least)


@njit(inline="always")  # type: ignore[untyped-decorator]
def _zero(bottom: Any, scale: Any, low: Any, high: Any, symmetric: Any) -> Any:
    return 0.0 if symmetric != 0 else min(max(low - np.rint(min(bottom, 0.0) / scale), low), high)


@njit(inline="always")  # type: ignore[untyped-decorator]
def fitted32(bottom: Any, top: Any, low: Any, high: Any, symmetric: Any, least: Any) -> Any:
    """(scale, zero point), float32, for data between two finite numbers; the largest code times the scale is finite.

    Args:
        bottom: the minimum, float64.
        top: the maximum, float64.
        low: the smallest code, float64.
        high: the largest code, float64.
        symmetric: 1 if the zero point is 0, else 0.
        least: no scale is smaller; float64.
    """
    scale = float32(_scale(bottom, top, low, high, symmetric, least))
    zero = _zero(bottom, float64(scale), low, high, symmetric)
    reach = max(high - zero, zero - low)
    fits = float32(float64(scale) * reach) < float32(np.inf)
    return scale if fits else float32(_MAX32 / reach * (1.0 - 2.0**-24)), float32(zero)


@njit(inline="always")  # type: ignore[untyped-decorator]
def fitted64(bottom: Any, top: Any, low: Any, high: Any, symmetric: Any, least: Any) -> Any:
    """As :func:`fitted32`, for float64."""
    scale = _scale(bottom, top, low, high, symmetric, least)
    zero = _zero(bottom, scale, low, high, symmetric)
    reach = max(high - zero, zero - low)
    return scale if scale * reach < np.inf else _MAX64 / reach * (1.0 - 2.0**-52), zero


@njit(inline="always")  # type: ignore[untyped-decorator]
def range32(first: Any, last: Any, low: Any, high: Any, symmetric: Any, least: Any) -> Any:
    """(scale, zero point), float32, for the keys of minimum and maximum; the scale is NaN if one is not finite.

    Args:
        first: the key of the minimum.
        last: the key of the maximum.
        low: the smallest code, float64.
        high: the largest code, float64.
        symmetric: 1 if the zero point is 0, else 0.
        least: no scale is smaller; float64.
    """
    bottom = float64(float_of32(uint32(key32(first))))
    top = float64(float_of32(uint32(key32(last))))
    scale, zero = fitted32(bottom, top, low, high, symmetric, least)
    usable = first > _LOWEST32 and last < _HIGHEST32
    return scale if usable else float32(np.nan), zero


@njit(inline="always")  # type: ignore[untyped-decorator]
def range64(first: Any, last: Any, low: Any, high: Any, symmetric: Any, least: Any) -> Any:
    """As :func:`range32`, for float64."""
    bottom, top = float_of64(uint64(key64(first))), float_of64(uint64(key64(last)))
    scale, zero = fitted64(bottom, top, low, high, symmetric, least)
    usable = first > _LOWEST64 and last < _HIGHEST64
    return scale if usable else np.nan, zero
