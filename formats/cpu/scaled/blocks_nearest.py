"""Rounding blocks that share a power-of-two scale: the compiled loop for CPU, float32.

One pass over memory: the block's largest magnitude is found as an integer maximum of bit patterns (which puts NaN above
infinity above all numbers), the scale is derived from it, and the block, still in the first cache, is rounded.
Minima and maxima are written out: numba's functions would widen the integers and test for NaN.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from numba import njit
from numpy import float32, int64, uint32

from ...arithmetic.elements import Element
from ..addressed import Addressed, Calling, numbers
from ..arguments import Int, Numbers, Real
from ..bits import bits_of32, float_of32
from ..threads import compiled, in_pieces


@njit(inline="always")  # type: ignore[untyped-decorator]
def _round_elements(
    source: Any, target: Any, first: Any, count: Any, inverse: Any, scale: Any, smallest: Any, spread: Any,
    largest: Any, sign_mask: Any,
) -> None:  # fmt: skip
    for i in range(count):
        bits = bits_of32(source[first + i])
        x = float_of32(bits) * inverse
        # Adding 1.5 * 2^(23 - m) units of x's binade rounds x to m significand bits; below 2^emin the unit stays.
        binade = uint32(bits_of32(x) & uint32(0x7F800000))
        binade = smallest if binade < smallest else binade  # noqa: FURB136
        magic = float_of32(binade) * spread
        y = (x + magic) - magic
        y = largest if y > largest else y  # noqa: FURB136
        y = -largest if y < -largest else y  # noqa: FURB136
        y = y * scale
        target[first + i] = float_of32(uint32(bits_of32(y) | uint32(bits & sign_mask)))


@njit(inline="always")  # type: ignore[untyped-decorator]
def _to_nearest(
    source: Any, target: Any, first: Any, count: Any, addend: Any, emax: Any, smallest: Any, spread: Any, largest: Any,
    sign_mask: Any,
) -> None:  # fmt: skip
    top = uint32(0)
    for i in range(count):
        magnitude = uint32(bits_of32(source[first + i]) & uint32(0x7FFFFFFF))
        top = magnitude if magnitude > top else top  # noqa: FURB136
    # In float64 a subnormal float32 is a normal number, so that the rule can read its exponent field.
    wide = np.float64(float_of32(top)).view(np.int64)
    exponent = ((wide + addend) >> 52) - 1023 - emax
    exponent = max(int64(-127), min(int64(127), exponent))
    # 2^e as a float32; 2^-127 is subnormal, hence through float64.
    scale = float32(int64((exponent + 1023) << 52).view(np.float64))
    inverse = float32(int64((1023 - exponent) << 52).view(np.float64))
    # NaN or infinity in the block: the scale is NaN, and so is every element.
    scale = float32(np.nan) if top >= uint32(0x7F800000) else scale
    # With the usual lengths as constants LLVM unrolls the loop into vector instructions, which is faster; a maximum,
    # above, it would unroll into scalar ones.
    if count == 32:
        _round_elements(source, target, first, 32, inverse, scale, smallest, spread, largest, sign_mask)
    elif count == 16:
        _round_elements(source, target, first, 16, inverse, scale, smallest, spread, largest, sign_mask)
    else:
        _round_elements(source, target, first, count, inverse, scale, smallest, spread, largest, sign_mask)


def _nearest_blocks(
    source: Numbers, target: Numbers, first: Int, last: Int, length: Int, block: Int, addend: Int, emax: Int, emin: Int,
    spread: Real, largest: Real, sign_mask: Int,
) -> None:  # fmt: skip
    smallest = uint32((emin + 127) << 23)
    in_row = (length + block - 1) // block
    # Divided once: a division for each block would take as long as the rest.
    row_start = (first // in_row) * length
    within = (first % in_row) * block
    for _ in range(first, last):
        count = min(block, length - within)
        _to_nearest(
            source, target, row_start + within, count, addend, emax, smallest, spread, largest, uint32(sign_mask)
        )
        within += block
        if within >= length:
            within = 0
            row_start += length


class BlockSettings(NamedTuple):
    """The parameters of a format for the block loop."""

    block: int
    """Elements in a block."""
    addend: int
    """Added to the float64 pattern of a block's largest magnitude before its exponent is read."""
    emax: int
    emin: int
    spread: float
    """1.5 * 2^(23 - m)."""
    largest: float
    sign_mask: int
    """The sign bit, if zero has a sign; else 0."""


def block_settings(block: int, rule_addend: int, element: Element) -> BlockSettings:
    """The settings for blocks of elements with at most 21 stored significand bits; see :class:`BlockSettings`."""
    spread = 1.5 * 2.0 ** (23 - element.significand_bits)
    sign_mask = 1 << 31 if element.signed_zero else 0
    return BlockSettings(block, rule_addend, element.emax, element.emin, spread, element.max, sign_mask)


def round_blocks(source: torch.Tensor, target: torch.Tensor, length: int, settings: BlockSettings) -> None:
    """Rounds blocks of consecutive elements to nearest-even with a shared power-of-two scale.

    Args:
        source: float32 on the CPU, contiguous, not empty.
        target: same dtype and shape, contiguous; may be ``source``, may not otherwise overlap it.
        length: elements in a row; no block reaches beyond the end of its row, where the last one may be shorter.
        settings: the settings of :func:`block_settings`.
    """
    n = source.numel()
    data = (source.data_ptr(), target.data_ptr())
    kernel = compiled(_nearest_blocks, source.dtype, in_place=target is source)
    blocks = n // length * -(-length // settings.block)
    in_pieces(lambda first, last: kernel(*data, first, last, length, *settings), blocks, n)


def addressed_blocks(settings: BlockSettings) -> Addressed:
    """The loop of :func:`round_blocks`, for callers without Python."""
    block, addend, emax, emin, spread, largest, sign_mask = settings
    arguments = numbers((block, addend, emax, emin, sign_mask), (spread, largest))
    return Addressed(Calling.BLOCKS, _nearest_blocks, torch.float32, arguments, places=True)
