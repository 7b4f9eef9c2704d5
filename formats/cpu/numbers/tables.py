"""Rounding to the numbers of a table: the compiled loops for CPU, every mode, float32 and float64.

Without scales a mode that is not stochastic is a list of thresholds: the place of a result in the table is the number
of thresholds below the value. With scales the loop first computes the numbers of a block.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from numba import njit
from numpy import float64, int64, uint32

from ...base.modes import Rounding, RoundingOptions
from ..addends import FIXED, KIND, fill, run_in_mode
from ..addressed import Addressed, Calling
from ..addressed import numbers as given_numbers
from ..arguments import Doubles, Int, Integers, Mode, Numbers, Real, Words
from ..bits import SCRATCH, bits_of64, float_of64, scratch32, scratch64

LOW, HIGH, TIE_LOW, TIE_HIGH = range(4)
"""The choice of a mode between two values: the lower, the upper, or the nearer with the lower or upper at a tie."""


class Table(NamedTuple):
    """A table as the loops and kernels read it."""

    values: torch.Tensor
    """The numbers in ascending order, of the carrier's type."""
    thresholds: dict[Rounding, torch.Tensor]
    """The thresholds for each mode but stochastic, float64, one less than numbers: the place of a result is the number
    of thresholds below the value."""
    choices: dict[Rounding, torch.Tensor]
    """The choice between each two numbers (``LOW``, ``HIGH``, ...) for each mode, int64."""
    largest: float
    """The largest magnitude."""


@njit(inline="always")  # type: ignore[untyped-decorator]
def _count_thresholds(numbers: Any, places: Any, part: Any, thresholds: Any, count: Any) -> None:
    """Writes how many thresholds each of ``part`` numbers is above; NaN is above none."""
    for i in range(part):
        places[i] = uint32(0)
    # A binary search, each step for all numbers: without branches, which could not be foretold.
    rest: Any = int64(count)
    while rest > int64(0):
        half = (rest + int64(1)) // int64(2)
        for i in range(part):
            threshold = thresholds[int64(places[i]) + half - int64(1)]
            above = half if float_of64(numbers[i]) > threshold else int64(0)
            places[i] = uint32(int64(places[i]) + above)
        rest -= half


@njit(inline="always")  # type: ignore[untyped-decorator]
def drawn(x: Any, place: Any, lower: Any, upper: Any, word: Any) -> Any:
    """``place`` or the next, by a random word, for ``x`` between two numbers; as magnitudes are rounded elsewhere."""
    rest = upper - x if x < 0.0 else x - lower  # A word raises magnitudes, also of negative numbers.
    fraction = int64(rest / (upper - lower) * 4294967296.0)
    up = int64(int64(fraction + int64(word)) >> int64(32))
    return place + int64(1) - up if x < 0.0 else place + up


@njit(inline="always")  # type: ignore[untyped-decorator]
def chosen(x: Any, place: Any, lower: Any, upper: Any, choice: Any) -> Any:
    """``place`` or the next, for ``x`` at or above ``lower`` and below ``upper``."""
    below, above = x - lower, upper - x
    nearer = above < below or (above == below and choice == TIE_HIGH)
    up = x > lower if choice == HIGH else (nearer and choice != LOW)
    return place + int64(1) if up else place


def _table_loop(
    source: Numbers, target: Numbers, values: Numbers, thresholds: Doubles, first: Int, last: Int, count: Int,
    settings: Mode, given: Words,
) -> None:  # fmt: skip
    numbers, places, words = scratch64(), scratch32(), scratch32()
    for at in range(first, last, SCRATCH):
        part = min(int64(SCRATCH), last - at)
        fill(words, part, at, settings, given)
        for i in range(part):
            numbers[i] = bits_of64(float64(source[at + i]))
        _count_thresholds(numbers, places, part, thresholds, count - 1)
        if settings[KIND] != FIXED:
            for i in range(part):
                x, place = float_of64(numbers[i]), int64(places[i])
                if place < count - 1 and x > float64(values[0]):  # Beyond the ends it saturates.
                    place = drawn(x, place, float64(values[place]), float64(values[place + 1]), words[i])
                places[i] = uint32(place)
        for i in range(part):
            x, number = source[at + i], values[int64(places[i])]
            target[at + i] = number if x == x else x  # noqa: PLR0124  NaN keeps its payload


@njit(inline="always")  # type: ignore[untyped-decorator]
def _block_scale(source: Any, start: Any, end: Any, largest: Any, least: Any, most: Any) -> Any:
    """(scale, reciprocal of the scale) of a block, of the carrier's type."""
    zero = largest - largest
    top, lost = zero, int64(0)
    for i in range(start, end):
        magnitude = abs(source[i])
        top = magnitude if magnitude > top else top  # noqa: FURB136
        lost += int64(0) if magnitude * zero == zero else int64(1)  # infinity and NaN
    scale = top / largest
    scale = least if scale < least else scale  # noqa: FURB136
    scale = most if scale > most else scale  # noqa: FURB136
    inverse = (largest / largest) / scale  # 1 / scale, in the carrier.
    scale = zero if top == zero else scale
    return zero / zero if lost > int64(0) else scale, inverse


@njit(inline="always")  # type: ignore[untyped-decorator]
def _places_between(
    numbers: Any, places: Any, part: Any, grid: Any, count: Any, choices: Any, stochastic: Any, words: Any
) -> None:
    """Finds places as :func:`_count_thresholds` does, by comparison with the numbers of the block."""
    for i in range(part):
        places[i] = uint32(0)
    for j in range(1, count):
        for i in range(part):
            reached = uint32(1) if float_of64(numbers[i]) >= float_of64(grid[j]) else uint32(0)
            places[i] = uint32(places[i] + reached)
    for i in range(part):
        x, place = float_of64(numbers[i]), int64(places[i])
        if place < count - 1 and x > float_of64(grid[0]):
            lower, upper = float_of64(grid[place]), float_of64(grid[place + 1])
            if stochastic:
                place = drawn(x, place, lower, upper, words[i])
            else:
                place = chosen(x, place, lower, upper, choices[place])
        places[i] = uint32(place)


def _block_loop(
    source: Numbers, target: Numbers, values: Numbers, thresholds: Doubles, choices: Integers, first: Int, last: Int,
    count: Int, length: Int, block: Int, largest: Real, least: Real, most: Real, nearest: Int, settings: Mode,
    given: Words,
) -> None:  # fmt: skip
    numbers, grid, places, words = scratch64(), scratch64(), scratch32(), scratch32()
    in_row = (length + block - 1) // block
    zero = largest - largest  # of the carrier's type; added, it makes 0 of -0
    for item in range(first, last):
        within = (item % in_row) * block
        start = (item // in_row) * length + within
        end = start + min(block, length - within)
        scale, inverse = _block_scale(source, start, end, largest, least, most)
        for j in range(count if nearest == 0 else int64(0)):
            grid[j] = bits_of64(float64(values[j] * scale + zero))
        for at in range(start, end, SCRATCH):
            part = min(int64(SCRATCH), end - at)
            if nearest != 0:
                for i in range(part):
                    numbers[i] = bits_of64(float64(source[at + i] * inverse))
                _count_thresholds(numbers, places, part, thresholds, count - 1)
            else:
                fill(words, part, at, settings, given)
                for i in range(part):
                    numbers[i] = bits_of64(float64(source[at + i]))
                _places_between(numbers, places, part, grid, count, choices, settings[KIND] != FIXED, words)
            for i in range(part):
                target[at + i] = values[int64(places[i])] * scale + zero


def round_to_table(source: torch.Tensor, target: torch.Tensor, table: Table, options: RoundingOptions) -> None:
    """Rounds the elements of ``source`` to numbers of a table.

    Args:
        source: float32 or float64 on the CPU, its elements filling one gapless piece of memory.
        target: same dtype, shape and strides; may be ``source``, may not otherwise overlap it.
        table: for this dtype.
        options: the mode, and the random bits of stochastic rounding; ``source`` is contiguous then.
    """
    thresholds = table.thresholds[Rounding.DOWN if options.random is not None else options.rounding]
    data = (source, target, table.values, thresholds)
    run_in_mode(_table_loop, options, data, (table.values.numel(),), source.numel())


def addressed_table(dtype: torch.dtype, table: Table, rounding: Rounding) -> Addressed:
    """The loop of :func:`round_to_table`, for callers without Python."""
    thresholds = table.thresholds[Rounding.DOWN if rounding is Rounding.STOCHASTIC else rounding]
    arguments = (table.values.data_ptr(), thresholds.data_ptr(), table.values.numel())
    return Addressed(Calling.TABLE, _table_loop, dtype, given_numbers(arguments, (), rounding))


def addressed_table_in_blocks(
    dtype: torch.dtype, table: Table, block: int, scales: tuple[float, float], rounding: Rounding
) -> Addressed:
    """The loop of :func:`round_scaled`, for callers without Python."""
    mode = Rounding.NEAREST_EVEN if rounding is Rounding.STOCHASTIC else rounding  # For words, any: nothing reads it.
    parts = (table.values, table.thresholds[mode], table.choices[mode])
    nearest = int(rounding is Rounding.NEAREST_EVEN)  # Rounds x / scale; the other modes compare x with the products.
    arguments = (*(part.data_ptr() for part in parts), table.values.numel(), block, nearest)
    return Addressed(
        Calling.TABLE_IN_BLOCKS, _block_loop, dtype, given_numbers(arguments, (table.largest, *scales), rounding)
    )


def round_scaled(
    source: torch.Tensor,
    target: torch.Tensor,
    layout: tuple[int, int],
    table: Table,
    scales: tuple[float, float],
    options: RoundingOptions,
) -> None:
    """Rounds blocks of consecutive elements to numbers of a table, times a scale for each block.

    Args:
        source: float32 or float64 on the CPU, contiguous, not empty.
        target: same dtype and shape, contiguous; may be ``source``, may not otherwise overlap it.
        layout: the number of elements in a row (no block crosses the end of its row, where the last block may be
            shorter), and in a block.
        table: for this dtype; at most ``SCRATCH`` numbers.
        scales: the smallest and the largest one.
        options: the mode, and the random bits of stochastic rounding.
    """
    length, block = layout
    mode = Rounding.NEAREST_EVEN if options.random is not None else options.rounding
    data = (source, target, table.values, table.thresholds[mode], table.choices[mode])
    nearest = int(options.rounding is Rounding.NEAREST_EVEN)
    rest = (table.values.numel(), length, block, table.largest, *scales, nearest)
    run_in_mode(_block_loop, options, data, rest, source.numel() // length * -(-length // block))
