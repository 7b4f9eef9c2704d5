"""The two nests of loops over numbers that share a scale, for CPU: contiguous blocks, and strips of columns.

Memory is ``outer`` times ``length`` times ``inner`` numbers, and a block is some neighbours along the middle. With an
``inner`` of 1 :func:`rows` takes the blocks that fit in a scratch at a time: first their extremes, then their shared
values, then their numbers, so that one block does not wait for another. Otherwise :func:`strips` takes a
strip of columns, each a block, at a time, so that memory is read in its order and loops run along it.

The shared values of blocks, and the rounding of a number, are parts, as in the kernel for GPUs.
"""

from __future__ import annotations

from typing import Any

from numba import njit
from numpy import int64

from ..addends import fill
from ..bits import SCRATCH, scratch32
from ..widths import KernelPart, bits_of, signed, unfilled, unsigned
from .range_scales import FIRST, LAST

STRIP = 512  # Columns: the values that the loops hold about a strip fit in the first cache.

key: Any = KernelPart()
"""pattern -> the signed integer by which numbers are compared."""
two_ended: Any = KernelPart()
"""Whether a block's smallest key is needed in addition to the largest."""
shared_of: Any = KernelPart()
"""(smallest key, largest key, number of the block, format) -> the four patterns that a block shares."""
is_ready: Any = KernelPart()
"""Maps the scale that a block shares to whether its values are rounded without division."""
ready: Any = KernelPart()
"""(pattern, shared values of its block) -> the pattern that is rounded."""
number_of: Any = KernelPart()
"""(pattern, shared values of its block, parameters of the format, random word) -> the number that it is rounded to."""


def pieces(elements: int, layout: tuple[int, int, int]) -> int:
    """Counts the strips of a number of elements, or the blocks, if the stride of their axis is 1."""
    length, inner, block = layout
    return elements // (length * inner) * -(-length // block) * -(-inner // STRIP)


@njit(inline="always")  # type: ignore[untyped-decorator]
def strip(item: Any, length: Any, inner: Any, block: Any) -> Any:
    """(offset of its first number, rows, columns, number of its first block) of strip number ``item``."""
    strips_in_row, blocks = (inner + STRIP - 1) // STRIP, (length + block - 1) // block
    column, rest = (item % strips_in_row) * STRIP, item // strips_in_row
    row = (rest % blocks) * block
    start = ((rest // blocks) * length + row) * inner + column
    return start, min(block, length - row), min(int64(STRIP), inner - column), rest * inner + column


@njit(inline="always")  # type: ignore[untyped-decorator]
def extremes(source: Any, first: Any, last: Any) -> Any:
    """(smallest key, largest key) of the numbers from ``first`` to before ``last``."""
    low, high = LAST, FIRST
    for i in range(first, last):
        k = key(bits_of(source[i]))
        if two_ended:
            low = k if k < low else low  # noqa: FURB136  numba's own would widen
        high = k if k > high else high  # noqa: FURB136
    return low, high


@njit(inline="always")  # type: ignore[untyped-decorator]
def extremes_of_columns(source: Any, start: Any, rows: Any, columns: Any, stride: Any, lows: Any, highs: Any) -> None:
    """Writes the smallest and the largest key of each column of a strip to ``lows`` and ``highs``."""
    for j in range(columns):
        lows[j], highs[j] = unsigned(LAST), unsigned(FIRST)
    for row in range(rows):
        at = start + row * stride
        for j in range(columns):
            k = key(bits_of(source[at + j]))
            if two_ended:
                lows[j] = unsigned(k) if k < signed(lows[j]) else lows[j]
            highs[j] = unsigned(k) if k > signed(highs[j]) else highs[j]


@njit(inline="always")  # type: ignore[untyped-decorator]
def _round(target: Any, at: Any, count: Any, bits: Any, words: Any, first: Any, shared: Any, fmt: Any) -> None:
    for i in range(count):
        target[at + i] = number_of(bits[first + i], shared, fmt, words[first + i])


@njit(inline="always")  # type: ignore[untyped-decorator]
def _write_block(target: Any, at: Any, count: Any, bits: Any, words: Any, first: Any, shared: Any, fmt: Any) -> None:
    # A loop of its own: in one loop the compiler would round the numbers of short blocks with branches.
    if not is_ready(shared):
        for i in range(count):
            bits[first + i] = ready(bits[first + i], shared)
    # With the usual lengths as constants LLVM makes vector instructions without loops.
    if count == 32:
        _round(target, at, 32, bits, words, first, shared, fmt)
    elif count == 16:
        _round(target, at, 16, bits, words, first, shared, fmt)
    else:
        _round(target, at, count, bits, words, first, shared, fmt)


@njit(inline="always")  # type: ignore[untyped-decorator]
def rows(
    source: Any, target: Any, first: Any, last: Any, length: Any, _inner: Any, block: Any, fmt: Any, settings: Any,
    given: Any,
) -> None:  # fmt: skip
    """Rounds contiguous blocks, ``first`` to before ``last``.

    Args:
        source: pointer to the numbers.
        target: pointer to where they are rounded to; may be ``source``.
        first: the first block.
        last: the one after the last.
        length: the number of elements along the axis of blocks.
        block: numbers in a block; the last one of an axis may be shorter.
        fmt: parameters of the format.
        settings: the settings of the mode.
        given: pointer to the caller's random words.
    """
    bits, words = unfilled(), scratch32()
    shared0, shared1, shared2, shared3 = unfilled(), unfilled(), unfilled(), unfilled()  # first the keys are in two
    in_row = (length + block - 1) // block
    together = max(SCRATCH // min(block, length), int64(1))
    item: Any = first
    within: Any = (first % in_row) * block
    start: Any = (first // in_row) * length + within
    while item < last:
        blocks = min(together, last - item)  # As many as a scratch has room for.
        end = ((item + blocks) // in_row) * length + ((item + blocks) % in_row) * block
        offset: Any = start
        place: Any = within
        for k in range(blocks):
            count = min(block, length - place)
            low, high = extremes(source, offset, offset + count)
            shared0[k], shared1[k] = unsigned(low), unsigned(high)
            offset += count
            place = place + block if place + block < length else int64(0)
        for k in range(blocks):
            shared = shared_of(signed(shared0[k]), signed(shared1[k]), item + k, fmt)
            shared0[k], shared1[k], shared2[k], shared3[k] = shared
        for at in range(start, end, SCRATCH):  # Repeated only for one long block.
            part = min(int64(SCRATCH), end - at)
            fill(words, part, at, settings, given)
            for i in range(part):
                bits[i] = bits_of(source[at + i])
            offset, place = int64(0), within
            for k in range(blocks):
                count = min(block, length - place, part)
                shared = shared0[k], shared1[k], shared2[k], shared3[k]
                _write_block(target, at + offset, count, bits, words, offset, shared, fmt)
                offset += count
                place = place + block if place + block < length else int64(0)
        start, within, item = end, place, item + blocks


@njit(inline="always")  # type: ignore[untyped-decorator]
def strips(
    source: Any, target: Any, first: Any, last: Any, length: Any, inner: Any, block: Any, fmt: Any, settings: Any,
    given: Any,
) -> None:  # fmt: skip
    """Rounds strips ``first`` to before ``last``; ``inner``: the stride of the axis of blocks. See :func:`rows`."""
    bits, words = unfilled(), scratch32()
    shared0, shared1, shared2, shared3 = unfilled(), unfilled(), unfilled(), unfilled()
    for item in range(first, last):
        start, height, columns, number = strip(item, length, inner, block)
        extremes_of_columns(source, start, height, columns, inner, shared0, shared1)
        for j in range(columns):
            shared = shared_of(signed(shared0[j]), signed(shared1[j]), number + j, fmt)
            shared0[j], shared1[j], shared2[j], shared3[j] = shared
        for row in range(height):
            at = start + row * inner
            fill(words, columns, at, settings, given)
            for j in range(columns):
                shared = shared0[j], shared1[j], shared2[j], shared3[j]
                bits[j] = ready(bits_of(source[at + j]), shared)  # In a loop of its own, as above.
            for j in range(columns):
                shared = shared0[j], shared1[j], shared2[j], shared3[j]
                target[at + j] = number_of(bits[j], shared, fmt, words[j])
