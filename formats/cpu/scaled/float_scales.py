"""Scales of floats from the largest magnitude of their block: the compiled loops for CPU, which scale up and down.

Memory is ``outer`` times ``length`` times ``inner`` numbers, and a block is some neighbours along the middle. Between
the two loops the loop of the element format rounds all numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import torch
from numba import njit

from ..addressed import Addressed, Calling, address_of, numbers
from ..arguments import Int, Numbers, Real
from ..threads import compiled, in_pieces
from ..widths import INFINITE, ByWidth, bits_of, float_of, real, specialised, unfilled, unsigned
from .nests import STRIP, extremes, extremes_of_columns, pieces, strip
from .range_scales import magnitude_key

_SMALLEST: Any = ByWidth(2.0**-126, 2.0**-1022)
_LARGEST: Any = ByWidth(2.0**126, 2.0**1022)


@njit(inline="always")  # type: ignore[untyped-decorator]
def _scale_for(top: Any, largest: Any, power_of_two: Any) -> Any:
    """The scale for a largest magnitude with the pattern ``top``; NaN if it is NaN or infinity."""
    scale = largest / float_of(top)
    scale = max(min(scale, real(_LARGEST)), real(_SMALLEST))
    if power_of_two != 0:
        scale = float_of(unsigned(bits_of(scale) & INFINITE))  # Only the exponent: rounded down to a power of two.
    return real(np.nan) if top >= INFINITE else scale


@njit(inline="always")  # type: ignore[untyped-decorator]
def _up_strips(
    source: Any, target: Any, scales: Any, first: Any, last: Any, length: Any, inner: Any, block: Any, largest: Any,
    power_of_two: Any,
) -> None:  # fmt: skip
    unused, tops, factors = unfilled(), unfilled(), unfilled()
    for item in range(first, last):
        start, rows, columns, place = strip(item, length, inner, block)
        extremes_of_columns(source, start, rows, columns, inner, unused, tops)
        for j in range(columns):
            scale = _scale_for(tops[j], largest, power_of_two)
            scales[place + j], factors[j] = scale, bits_of(scale)
        for row in range(rows):
            at = start + row * inner
            for j in range(columns):
                target[at + j] = source[at + j] * float_of(factors[j])


def _up(
    source: Numbers, target: Numbers, scales: Numbers, first: Int, last: Int, length: Int, inner: Int, block: Int,
    largest: Real, power_of_two: Int,
) -> None:  # fmt: skip
    """Scales blocks up, and writes their scales: of blocks in a row, or of strips of columns of blocks."""
    if inner == 1:
        in_row = (length + block - 1) // block
        for item in range(first, last):
            within = (item % in_row) * block
            start, count = (item // in_row) * length + within, min(block, length - within)
            scale = _scale_for(unsigned(extremes(source, start, start + count)[1]), largest, power_of_two)
            scales[item] = scale
            for i in range(count):
                target[start + i] = source[start + i] * scale
    else:
        _up_strips(source, target, scales, first, last, length, inner, block, largest, power_of_two)


@cache
def _up_loop(dtype: torch.dtype) -> Any:
    return specialised(_up, dtype, key=magnitude_key, two_ended=False)


def _down(target: Numbers, scales: Numbers, first: Int, last: Int, length: Int, inner: Int, block: Int) -> None:
    """Divides blocks by their scales."""
    in_row = (length + block - 1) // block
    if inner == 1:
        for item in range(first, last):
            within = (item % in_row) * block
            start, count, scale = (item // in_row) * length + within, min(block, length - within), scales[item]
            for i in range(count):
                target[start + i] = target[start + i] / scale
        return
    factors = unfilled()
    for item in range(first, last):
        start, rows, columns, place = strip(item, length, inner, block)
        for j in range(columns):
            factors[j] = bits_of(scales[place + j])
        for row in range(rows):
            at = start + row * inner
            for j in range(columns):
                target[at + j] = target[at + j] / float_of(factors[j])


def round_scaled(
    source: torch.Tensor,
    target: torch.Tensor,
    layout: tuple[int, int, int],
    largest: float,
    rounded: Callable[[torch.Tensor], None],
    *,
    power_of_two: bool,
) -> None:
    """Rounds blocks of neighbours along an axis to floats that are scaled so that their largest is the format's.

    Args:
        source: float32 or float64 on the CPU, its elements filling one gapless piece of memory; not empty.
        target: same dtype, shape and strides; may be ``source``, may not otherwise overlap it.
        layout: the length and the stride of the axis, and the elements of a block; the last may be shorter.
        largest: the largest number of the format.
        rounded: rounds a tensor to the format in place.
        power_of_two: whether scales are powers of two.
    """
    length, _, block = layout
    items, n = pieces(source.numel(), layout), source.numel()
    scales = torch.empty(n // length * -(-length // block), dtype=source.dtype, device="cpu")  # One for each block.
    scale_up = compiled(_up_loop(source.dtype), source.dtype, in_place=target is source)
    scale_down = compiled(_down, source.dtype)
    start, into, scale_address = source.data_ptr(), target.data_ptr(), scales.data_ptr()
    options = (*layout, largest, int(power_of_two))
    in_pieces(lambda first, last: scale_up(start, into, scale_address, first, last, *options), items, n)
    rounded(target)
    in_pieces(lambda first, last: scale_down(into, scale_address, first, last, *layout), items, n)


def addressed_scaled(
    dtype: torch.dtype, block: int, largest: float, element: Addressed, *, power_of_two: bool
) -> Addressed:
    """The loops of :func:`round_scaled`, for callers without Python.

    Args:
        dtype: the carrier.
        block: the number of elements in a block; 0 for all.
        largest: the largest number of the format.
        element: the loop of the format.
        power_of_two: whether scales are powers of two.
    """
    down = compiled(_down, dtype)
    rest = (element.address(in_place=True), element.parameters, element.calling, address_of(down), STRIP)
    arguments = numbers((block, int(power_of_two), *rest), (largest,))
    return Addressed(Calling.SCALED, _up_loop(dtype), dtype, arguments, places=True, part=element)
