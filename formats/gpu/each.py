"""The kernel that rounds every number by itself, for all families and modes."""

from __future__ import annotations

from typing import Any

import triton.language as tl

from ..cpu.widths import KernelPart
from .places import offset_of, word_of

number_of: Any = KernelPart()
"""(number, its place, what the format is, random word) -> what it is rounded to; see :mod:`.numbers`."""


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
