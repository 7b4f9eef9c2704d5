"""Shared scales and scaled rounding for each family, inserted into the kernels of :mod:`.blocks`.

Minimum and maximum are found as integers of the numbers' order, which puts NaN beyond infinity, by ``key_of``; a
``scale_of`` takes the two of each block, and its result is passed to ``number_of`` for each number. They call the same
functions as the CPU's loops; see :mod:`.translation`.
"""

# ruff: noqa: ARG001  all functions of a kind have the same arguments

from __future__ import annotations

from typing import Any

import numpy as np
import triton.language as tl
from numpy import float64

from ..cpu.addends import mode_of
from ..cpu.numbers.floats_by_mode import by_mode, read
from ..cpu.numbers.tables import chosen, drawn
from ..cpu.scaled.blocks import power_scale, scale_in_tensor
from ..cpu.scaled.range_scales import key_of, range_scale
from ..cpu.tail import between_steps, on_grid, to_element, to_integer
from ..cpu.widths import INFINITE, MAGNITUDE, WIDTH, ByWidth, bits_of, float_of, left, real, signed, unsigned
from .numbers import place_in

_TINY: Any = ByWidth(np.float32(2.0**-126), np.float64(2.0**-1022))
_EXPONENT: Any = ByWidth(np.uint32(0x7F800000), np.uint64(0x7FF0000000000000))


def magnitude_key(x: Any) -> Any:
    """Returns the key for comparing numbers by magnitude."""
    return signed(bits_of(x) & MAGNITUDE)


def order_key(x: Any) -> Any:
    """Returns the key for comparing numbers in their order."""
    return key_of(bits_of(x))


def shared_power(low: Any, high: Any, data: Any) -> Any:
    """Returns the factors before and after rounding, and the smallest and largest element, for a power of two."""
    settings, p, largest, tensor_scale = data  # p: addend, emax, emin, significand bits, whether zero has a sign
    return power_scale(unsigned(high), p[0], p[1], p[2], largest[0])


def scale_within(low: Any, high: Any, data: Any) -> Any:
    """Returns the divisor and the factor of the scale of a block of NVFP4, and the smallest and largest element."""
    settings, p, largest, tensor_scale = data
    return scale_in_tensor(unsigned(high), p[2], largest[0], tl.load(tensor_scale))


def multiplied(x: Any, shared: Any, data: Any, word: Any) -> Any:
    """Rounds an element of a block whose scale is a power of two."""
    settings, p, largest, tensor_scale = data
    before, after, smallest, most = shared
    sign = left(unsigned(p[4]), unsigned(WIDTH - unsigned(1)))
    return to_element(bits_of(x * before), smallest, unsigned(p[3]), most, sign, mode_of(settings), word) * after


def divided(x: Any, shared: Any, data: Any, word: Any) -> Any:
    """Rounds an element of a block of NVFP4."""
    settings, p, largest, tensor_scale = data
    before, after, smallest, most = shared
    sign = left(unsigned(p[4]), unsigned(WIDTH - unsigned(1)))
    return to_element(bits_of(x / before), smallest, unsigned(p[3]), most, sign, mode_of(settings), word) * after


def symmetric_range(low: Any, high: Any, data: Any) -> Any:
    """Returns the scale and the zero point 0 of integers, by the largest magnitude."""
    settings, ends = data  # Smallest and largest code, smallest scale.
    return range_scale(signed(high * 0), high, ends[0], ends[1], 1, ends[2])


def full_range(low: Any, high: Any, data: Any) -> Any:
    """Returns the scale and the zero point of integers, by minimum and maximum."""
    settings, ends = data
    return range_scale(low, high, ends[0], ends[1], 0, ends[2])


def nearest_code(x: Any, shared: Any, data: Any, word: Any) -> Any:
    """Rounds to the nearest scaled integer."""
    settings, ends = data
    scale, zero = shared
    steps = to_integer(x * (real(1.0) / scale), mode_of(settings), word)
    return on_grid(steps, scale, zero, real(ends[0]), real(ends[1]))


def code_between(x: Any, shared: Any, data: Any, word: Any) -> Any:
    """Rounds to a scaled integer in the other modes."""
    settings, ends = data
    scale, zero = shared
    steps = between_steps(x, real(1.0) / scale, scale, zero, mode_of(settings), word)
    return on_grid(steps, scale, zero, real(ends[0]), real(ends[1]))


def table_scale(low: Any, high: Any, data: Any) -> Any:
    """(scale, its reciprocal) of a block of numbers of a table."""
    settings, values, thresholds, choices, count, limits = data  # limits: largest number, smallest and largest scale
    top, largest = float_of(unsigned(high)), limits[0]
    scale = top / largest
    scale = max(scale, limits[1])
    scale = min(scale, limits[2])
    inverse = real(1.0) / scale
    scale = real(0.0) if top == real(0.0) else scale
    return real(np.nan) if unsigned(high) >= INFINITE else scale, inverse


def nearest_in_table(x: Any, shared: Any, data: Any, word: Any) -> Any:
    """Rounds to the nearest number of a table, times the scale."""
    settings, values, thresholds, choices, count, limits = data
    scale, inverse = shared
    return values[place_in(float64(x * inverse), thresholds, count[0] - 1)] * scale + real(0.0)


def _neighbours(x: Any, scale: Any, values: Any, most: Any) -> Any:
    """Returns each number's place, the block's numbers below and above it, and whether it is between two of them."""
    place = tl.full(x.shape, 0, tl.int64)
    for j in range(1, most + 1):  # Products are rounded, so that places come from comparisons with them.
        place += tl.where(x >= float64(values[j] * scale + real(0.0)), 1, 0)
    lower = float64(values[place] * scale + real(0.0))
    upper = float64(values[min(place + 1, most)] * scale + real(0.0))
    return place, lower, upper, place < most and x > float64(values[0] * scale + real(0.0))


def between_in_table(x: Any, shared: Any, data: Any, word: Any) -> Any:
    """Rounds to a scaled number of a table in the other modes that are not stochastic."""
    settings, values, thresholds, choices, count, limits = data
    wide, most = float64(x), count[0] - 1
    place, lower, upper, inside = _neighbours(wide, shared[0], values, most)
    place = chosen(wide, place, lower, upper, choices[min(place, most - 1)]) if inside else place
    return values[place] * shared[0] + real(0.0)


def drawn_in_table(x: Any, shared: Any, data: Any, word: Any) -> Any:
    """Rounds to a scaled number of a table by a random word."""
    settings, values, thresholds, choices, count, limits = data
    wide, most = float64(x), count[0] - 1
    place, lower, upper, inside = _neighbours(wide, shared[0], values, most)
    place = drawn(wide, place, lower, upper if inside else lower + float64(1.0), word) if inside else place
    return values[place] * shared[0] + real(0.0)


def largest_over_top(low: Any, high: Any, data: Any) -> Any:
    """Computes the factor that scales the largest magnitude to the largest float; NaN where it is not finite."""
    parameters, limits = data  # limits: largest number, whether scales are powers of two
    top = float_of(unsigned(high))
    scale = limits[0] / top
    scale = max(scale, _TINY)
    scale = min(scale, real(1.0) / _TINY)
    power = float_of(bits_of(scale) & _EXPONENT)
    scale = power if limits[1] != real(0.0) else scale
    return real(np.nan) if unsigned(high) >= INFINITE else scale


def float_over(x: Any, shared: Any, data: Any, word: Any) -> Any:
    """A float in any mode, divided by the scale."""
    parameters, limits = data
    return float_of(by_mode(bits_of(x * shared), read(parameters), word)) / shared
