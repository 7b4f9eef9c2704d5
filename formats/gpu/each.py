"""The kernels that round every number by itself, for all families and modes: of a tensor, or of many in place."""

from __future__ import annotations

from typing import Any

import triton.language as tl

from ..cpu.widths import KernelPart
from .places import offset_of, word_of

number_of: Any = KernelPart()
"""(number, its place, parameters of the format, random word) -> the rounded number; see :mod:`.numbers`."""


def each(
    source: Any, target: Any, data: Any, given: Any, count: tl.int64, base: tl.int64, bits: Any, shape: Any,
    from_strides: Any, to_strides: Any, DIMENSIONS: tl.constexpr, WORDS: tl.constexpr, BLOCK: tl.constexpr,
) -> None:  # fmt: skip
    """Rounds ``count`` numbers, ``BLOCK`` of them in each program."""
    start = tl.program_id(0).to(tl.int64) * BLOCK
    index = start + tl.arange(0, BLOCK)
    here, there = offset_of(index, shape, from_strides, DIMENSIONS), offset_of(index, shape, to_strides, DIMENSIONS)
    some(source + here, target + there, index, start + BLOCK, data, given, count, base, bits, WORDS)


def some(
    source: Any, target: Any, index: Any, end: Any, data: Any, given: Any, count: Any, base: Any, bits: Any,
    WORDS: tl.constexpr,
) -> None:  # fmt: skip
    """Rounds the elements at the addresses ``source`` that are before both ``end`` and ``count``."""
    if end <= count:  # without a mask memory is read four numbers at a time
        word = word_of(index, base, bits, given, None, WORDS)
        tl.store(target, number_of(tl.load(source), index, data, word))
    else:
        inside = index < count
        word = word_of(index, base, bits, given, inside, WORDS)
        tl.store(target, number_of(tl.load(source, mask=inside, other=0), index, data, word), mask=inside)


COLUMNS = 4
"""The number of columns of the table: the address of a tensor, its number of elements, its first program, and the
base of the keys of its random words."""


def many(
    like: Any, table: Any, data: Any, count: tl.int64, bits: Any, WORDS: tl.constexpr, ALIGNED: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:  # fmt: skip
    """Rounds ``BLOCK`` elements of one of ``count`` tensors in each program.

    Args:
        like: the address of a value of the carrier.
        table: a row for each tensor, int64; see ``COLUMNS``.
        data: the parameters of the format.
        count: the number of tensors.
        bits: the number of bits of a random word that the rounding uses.
        WORDS: the source of random words: none, or a hash.
        ALIGNED: whether all addresses are multiples of 16.
        BLOCK: a power of two.
    """
    program = tl.program_id(0).to(tl.int64)
    row, rest = count * 0, count
    while rest > 1:  # the last tensor that begins with this program or before it
        half = rest // 2
        begun = tl.load(table + (row + half) * COLUMNS + 2) <= program
        row = tl.where(begun, row + half, row)
        rest = tl.where(begun, rest - half, half)
    place = table + row * COLUMNS
    memory = tl.load(place).to(like.dtype)
    if ALIGNED:
        memory = tl.multiple_of(memory, 16)
    size, base = tl.load(place + 1), tl.load(place + 3)
    start = (program - tl.load(place + 2)) * BLOCK
    index = start + tl.arange(0, BLOCK)
    some(memory + index, memory + index, index, start + BLOCK, data, like, size, base, bits, WORDS)
