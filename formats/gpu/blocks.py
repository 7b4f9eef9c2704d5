"""The kernel for numbers that share a scale, along any axis: the scale is found and used in one launch."""

from __future__ import annotations

from typing import Any

import triton.language as tl

from ..cpu.scaled.range_scales import FIRST, LAST
from ..cpu.widths import KernelPart
from .places import offset_of, word_of

key_of: Any = KernelPart()
"""number -> the integer by which minimum and maximum are found."""
scale_of: Any = KernelPart()
"""(lowest key, highest key, parameters of the format) -> the shared values of a block."""
number_of: Any = KernelPart()
"""(number, shared values of the block, parameters of the format, random word) -> the result; see :mod:`.scaled`."""


def blocks(
    source: Any, target: Any, data: Any, given: Any, count: tl.int64, length: tl.int64, inner: tl.int64,
    block: tl.int64, base: tl.int64, bits: Any, shape: Any, from_strides: Any, to_strides: Any,
    DIMENSIONS: tl.constexpr, WORDS: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr, WHOLE: tl.constexpr,
) -> None:  # fmt: skip
    """Rounds ``count`` blocks, ``ROWS`` of them in each program, ``WIDTH`` numbers of each at a time.

    Args:
        source: the values, as (outer, length, inner) in row-major order.
        target: memory for the results, with the same layout.
        data: the parameters of the format.
        given: the caller's random words.
        count: the number of blocks.
        length: the number of values along the axis of blocks.
        inner: the product of the sizes of later axes.
        block: numbers in a block; the last one of an axis may be shorter.
        base: the base of the keys of random words.
        bits: the number of bits of a random word that the rounding uses.
        shape: the shape of the tensors, for DIMENSIONS above 0.
        from_strides: strides of the source in memory, for DIMENSIONS above 0.
        to_strides: strides of the target.
        DIMENSIONS: 0 where memory is in row-major order.
        WORDS: where random words come from.
        ROWS: a power of two.
        WIDTH: a power of two.
        WHOLE: whether a block is no longer than ``WIDTH``, and kept in registers.
    """
    # The blocks of this program, one in each row: number, first element, size.
    item = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    blocks_in_axis = (length + block - 1) // block
    later, rest = item % inner, item // inner
    first = rest % blocks_in_axis * block
    start = ((rest // blocks_in_axis * length + first) * inner + later)[:, None]
    size = tl.where(item < count, tl.minimum(length - first, block), 0)[:, None]  # 0 for rows beyond the last block.
    column = tl.arange(0, WIDTH)[None, :]
    index = start + column * inner
    # The smallest and the largest key; the first WIDTH numbers stay in registers.
    x = tl.load(source + offset_of(index, shape, from_strides, DIMENSIONS), mask=column < size, other=0)
    key = key_of(x)
    low, high = tl.where(column < size, key, LAST), tl.where(column < size, key, FIRST)
    if not WHOLE:
        for at in range(WIDTH, block, WIDTH):
            inside = column + at < size
            place = offset_of(index + at * inner, shape, from_strides, DIMENSIONS)
            key = key_of(tl.load(source + place, mask=inside, other=0))
            low, high = tl.minimum(low, tl.where(inside, key, LAST)), tl.maximum(high, tl.where(inside, key, FIRST))
    # As tl.min and tl.max reduce, which Triton's interpreter does not run.
    lowest = tl.reduce(low, 1, tl.standard._elementwise_min, keep_dims=True)  # noqa: SLF001
    highest = tl.reduce(high, 1, tl.standard._elementwise_max, keep_dims=True)  # noqa: SLF001
    # The shared scale; then rounds the numbers in registers, and reads and rounds the others.
    shared = scale_of(lowest, highest, data)
    word = word_of(index, base, bits, given, column < size, WORDS)
    rounded = number_of(x, shared, data, word)
    tl.store(target + offset_of(index, shape, to_strides, DIMENSIONS), rounded, mask=column < size)
    if not WHOLE:
        for at in range(WIDTH, block, WIDTH):
            inside, there = column + at < size, index + at * inner
            x = tl.load(source + offset_of(there, shape, from_strides, DIMENSIONS), mask=inside, other=0)
            word = word_of(there, base, bits, given, inside, WORDS)
            rounded = number_of(x, shared, data, word)
            tl.store(target + offset_of(there, shape, to_strides, DIMENSIONS), rounded, mask=inside)
