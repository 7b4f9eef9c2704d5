"""The scale and zero point of integer quantization from minimum and maximum, as numba loops derive them.

Numbers are compared as integers of the same order, which puts NaN beyond infinity at either end.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy import float64, int32, int64

from ..widths import MAGNITUDE, WIDTH, ByWidth, bits_of, float_of, real, signed, unsigned

FIRST: Any = ByWidth(int32(-0x80000000), int64(-0x8000000000000000))
LAST: Any = ByWidth(int32(0x7FFFFFFF), int64(0x7FFFFFFFFFFFFFFF))
# The keys of minus and plus infinity.
_LOWEST: Any = ByWidth(int32(-0x7F800001), int64(-0x7FF0000000000001))
_HIGHEST: Any = ByWidth(int32(0x7F800000), int64(0x7FF0000000000000))
# The largest number of the carrier, and the largest below 1.
_MAX: Any = ByWidth((2.0 - 2.0**-23) * 2.0**127, (2.0 - 2.0**-52) * 2.0**1023)
_BELOW_ONE: Any = ByWidth(1.0 - 2.0**-24, 1.0 - 2.0**-52)


@njit(inline="always")  # type: ignore[untyped-decorator]
def key_of(bits: Any) -> Any:
    """A pattern as a signed integer of the same order (-0 below +0), and back again."""
    bits = signed(bits)
    return signed(bits ^ signed(signed(bits >> signed(WIDTH - unsigned(1))) & LAST))


@njit(inline="always")  # type: ignore[untyped-decorator]
def magnitude_key(bits: Any) -> Any:
    """A pattern without its sign, as a signed integer."""
    return signed(bits & MAGNITUDE)


@njit(inline="always")  # type: ignore[untyped-decorator]
def ends(source: Any, first: Any, last: Any) -> Any:
    """The keys of minimum and maximum of the numbers from ``first`` to before ``last``."""
    bottom, top = LAST, FIRST
    for i in range(first, last):
        key = key_of(bits_of(source[i]))
        bottom = key if key < bottom else bottom  # noqa: FURB136
        top = key if key > top else top  # noqa: FURB136
    return bottom, top


@njit(inline="always")  # type: ignore[untyped-decorator]
def _affine_scale(bottom: Any, top: Any, low: Any, high: Any, symmetric: Any, least: Any) -> Any:
    """The arithmetic of roundoff.formats.scales.calibration, operation by operation; all float64."""
    if symmetric != 0:
        return max(max(-bottom, top) / high, least)
    bottom, top = min(bottom, 0.0), max(top, 0.0)
    width, codes = top - bottom, high - low
    return max(width / codes if width < np.inf else (top / 2.0 - bottom / 2.0) / (codes / 2.0), least)


@njit(inline="always")  # type: ignore[untyped-decorator]
def _zero(bottom: Any, scale: Any, low: Any, high: Any, symmetric: Any) -> Any:
    return 0.0 if symmetric != 0 else min(max(low - np.rint(min(bottom, 0.0) / scale), low), high)


@njit(inline="always")  # type: ignore[untyped-decorator]
def range_scale(first: Any, last: Any, low: Any, high: Any, symmetric: Any, least: Any) -> Any:
    """(scale, zero point), of the carrier, for the keys of minimum and maximum.

    The largest code times the scale is finite; the scale is NaN if the minimum or the maximum is not.

    Args:
        first: the key of the minimum.
        last: the key of the maximum.
        low: the smallest code, float64.
        high: the largest code, float64.
        symmetric: 1 if the zero point is 0, else 0.
        least: no scale is smaller; float64.
    """
    bottom, top = float64(float_of(unsigned(key_of(first)))), float64(float_of(unsigned(key_of(last))))
    scale = real(_affine_scale(bottom, top, low, high, symmetric, least))
    zero = _zero(bottom, float64(scale), low, high, symmetric)
    reach = max(high - zero, zero - low)
    fits = real(float64(scale) * reach) < real(np.inf)
    scale = scale if fits else real(_MAX / reach * _BELOW_ONE)
    return scale if first > _LOWEST and last < _HIGHEST else real(np.nan), real(zero)


@njit(inline="always")  # type: ignore[untyped-decorator]
def scale_of(source: Any, first: Any, last: Any, low: Any, high: Any, symmetric: Any, least: Any) -> Any:
    """Returns what :func:`range_scale` does, for the numbers from ``first`` to before ``last``."""
    if symmetric != 0:
        # The largest magnitude is the largest pattern without the sign; NaN lies beyond infinity.
        largest = unsigned(0)
        for i in range(first, last):
            magnitude = unsigned(bits_of(source[i]) & MAGNITUDE)
            largest = magnitude if magnitude > largest else largest  # noqa: FURB136
        return range_scale(signed(0), signed(largest), low, high, 1, least)
    bottom, top = ends(source, first, last)
    return range_scale(bottom, top, low, high, 0, least)
