"""The kernel that rounds all tensors of a list where they stand, every number by itself."""

from __future__ import annotations

from typing import Any

import triton.language as tl

from ..cpu.widths import Part
from .places import word_of

number_of: Any = Part()
"""(number, its place, what the format is, random word) -> what it is rounded to; see :mod:`.numbers`."""

COLUMNS = 4
"""Of the table: a tensor's address, how many numbers it has, its first program, the base of its random words' keys."""


def many(
    like: Any, table: Any, data: Any, count: tl.int64, bits: Any, WORDS: tl.constexpr, ALIGNED: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:  # fmt: skip
    """Rounds ``BLOCK`` numbers of one of ``count`` tensors in each program.

    Args:
        like: the address of a number of the carrier.
        table: a row for each tensor, int64; see ``COLUMNS``.
        data: what the format is.
        count: how many tensors there are.
        bits: how many of a random word count.
        WORDS: where random words come from: from nowhere, or from a hash.
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
    if start + BLOCK <= size:
        word = word_of(index, base, bits, like, None, WORDS)
        tl.store(memory + index, number_of(tl.load(memory + index), index, data, word))
    else:
        inside = index < size
        word = word_of(index, base, bits, like, inside, WORDS)
        rounded = number_of(tl.load(memory + index, mask=inside, other=0), index, data, word)
        tl.store(memory + index, rounded, mask=inside)
