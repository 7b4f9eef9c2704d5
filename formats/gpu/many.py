"""The kernel that rounds all tensors of a list where they stand, every number by itself."""

from __future__ import annotations

from typing import Any

import triton.language as tl

from .each import some

COLUMNS = 4
"""The columns of the table: a tensor's address, how many numbers it has, its first program, the base of its random
words' keys."""


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
    some(memory + index, memory + index, index, start + BLOCK, data, like, size, base, bits, WORDS)
