"""Rounding blocks along another axis than the last: the compiled loops for CPU, every mode, float32 and float64.

Memory is ``outer`` times ``length`` times ``inner`` numbers, and a block is some neighbours along the middle. A strip
of columns, each a block, is rounded at a time, so that memory is read in its order and loops run along it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from numba import njit
from numpy import int64

from ..addends import fill, mode_of
from ..bits import scratch32
from ..element_tail import to_element
from ..widths import MAGNITUDE, WIDTH, bits_of, float_of, left, real, scratch, unsigned
from .block_scales import LIFTS, block_scale

if TYPE_CHECKING:
    from ..arguments import Double, Int, Mode, Numbers, Real, Words

STRIP = 512  # columns: what the loops keep about a strip stays in the first cache


def pieces(elements: int, layout: tuple[int, int, int]) -> int:
    """Counts the strips that so many elements make, or the blocks, if the stride of their axis is 1."""
    length, inner, block = layout
    return elements // (length * inner) * -(-length // block) * -(-inner // STRIP)


@njit(inline="always")  # type: ignore[untyped-decorator]
def strip(item: Any, length: Any, inner: Any, block: Any) -> Any:
    """(offset of its first number, rows, columns) of strip number ``item``."""
    strips, blocks = (inner + STRIP - 1) // STRIP, (length + block - 1) // block
    column, rest = (item % strips) * STRIP, item // strips
    row = (rest % blocks) * block
    start = ((rest // blocks) * length + row) * inner + column
    return start, min(block, length - row), min(int64(STRIP), inner - column)


@njit(inline="always")  # type: ignore[untyped-decorator]
def largest_of_columns(source: Any, tops: Any, start: Any, rows: Any, columns: Any, inner: Any) -> None:
    """Writes the pattern of the largest magnitude of each column of a strip into ``tops``."""
    for j in range(columns):
        tops[j] = unsigned(0)
    for row in range(rows):
        at = start + row * inner
        for j in range(columns):
            magnitude = unsigned(bits_of(source[at + j]) & MAGNITUDE)
            tops[j] = magnitude if magnitude > tops[j] else tops[j]  # noqa: FURB136


@njit(inline="always")  # type: ignore[untyped-decorator]
def _scale(bits: Any, columns: Any, before: Any, tensor_scale: Any) -> None:
    """Divides or multiplies numbers by the first parts of the scales of their columns."""
    if tensor_scale != real(0.0):
        for j in range(columns):
            bits[j] = bits_of(float_of(bits[j]) / float_of(before[j]))
    elif LIFTS:
        for j in range(columns):
            bits[j] = bits_of(float_of(bits[j]) * float_of(before[j]))


def strips_of_blocks(
    source: Numbers, target: Numbers, first: Int, last: Int, length: Int, inner: Int, block: Int, addend: Int,
    emax: Int, emin: Int, m: Int, largest: Double, tensor_scale: Real, zero_sign: Int, settings: Mode, given: Words,
) -> None:  # fmt: skip
    """Rounds strips ``first`` to before ``last``; see :func:`.round_blocks_in_mode`."""
    bits, words, tops = scratch(), scratch32(), scratch()
    before, after, smallest, most = scratch(), scratch(), scratch(), scratch()
    mode, places, sign = mode_of(settings), unsigned(m), left(unsigned(zero_sign), unsigned(WIDTH - unsigned(1)))
    for item in range(first, last):
        start, rows, columns = strip(item, length, inner, block)
        largest_of_columns(source, tops, start, rows, columns, inner)
        for j in range(columns):
            scale = block_scale(tops[j], addend, emax, emin, largest, tensor_scale)
            before[j], after[j] = bits_of(scale[0]), bits_of(scale[1])
            smallest[j], most[j] = scale[2], bits_of(scale[3])
        for row in range(rows):
            at = start + row * inner
            fill(words, columns, at, settings, given)
            for j in range(columns):
                bits[j] = bits_of(source[at + j])
            _scale(bits, columns, before, tensor_scale)
            for j in range(columns):
                y = to_element(bits[j], smallest[j], places, float_of(most[j]), sign, mode, words[j])
                target[at + j] = y * float_of(after[j])
