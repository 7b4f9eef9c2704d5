"""Rounding blocks of neighbours that share a scale: the compiled loops for CPU, every mode and carrier.

See :mod:`.blocks_nearest`, which is faster and can only round float32 to nearest-even; here the shared
tail rounds. As many blocks as a scratch holds are taken at a time: first their largest magnitudes, then their scales,
then their numbers, so that what one block needs does not wait for another. Longer blocks are taken in parts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from numba import njit
from numpy import int64

from ..addends import fill, mode_of, run_in_mode
from ..addressed import Addressed, Calling, numbers
from ..bits import SCRATCH, scratch32
from ..element_tail import to_element
from ..widths import MAGNITUDE, WIDTH, bits_of, float_of, left, real, scratch, unsigned
from .block_scales import block_scale
from .blocks_strided import STRIP, pieces, strips_of_blocks

if TYPE_CHECKING:
    import torch

    from ...arithmetic.elements import Element
    from ...base.modes import How, Rounding
    from ..arguments import Double, Int, Mode, Numbers, Real, Words


@njit(inline="always")  # type: ignore[untyped-decorator]
def _load(source: Any, first: Any, count: Any, bits: Any, words: Any, settings: Any, given: Any) -> None:
    fill(words, count, first, settings, given)
    for i in range(count):
        bits[i] = bits_of(source[first + i])


@njit(inline="always")  # type: ignore[untyped-decorator]
def _top(bits: Any, first: Any, count: Any) -> Any:
    top = unsigned(0)
    for i in range(count):
        magnitude = unsigned(bits[first + i] & MAGNITUDE)
        top = magnitude if magnitude > top else top  # noqa: FURB136
    return top


@njit(inline="always")  # type: ignore[untyped-decorator]
def _scale(bits: Any, first: Any, count: Any, before: Any, divide: Any) -> None:
    """Divides or multiplies numbers of a block in the scratch by the first part of its scale."""
    if divide:
        for i in range(count):
            bits[first + i] = bits_of(float_of(bits[first + i]) / before)
    elif before != real(1.0):
        for i in range(count):
            bits[first + i] = bits_of(float_of(bits[first + i]) * before)


@njit(inline="always")  # type: ignore[untyped-decorator]
def _round(
    target: Any, at: Any, count: Any, bits: Any, words: Any, first: Any, scale: Any, m: Any, sign: Any, mode: Any
) -> None:
    after, smallest, most = scale
    for i in range(count):
        y = to_element(bits[first + i], smallest, m, most, sign, mode, words[first + i])
        target[at + i] = y * after


def _rows(
    source: Numbers, target: Numbers, first: Int, last: Int, length: Int, _inner: Int, block: Int, addend: Int,
    emax: Int, emin: Int, m: Int, largest: Double, tensor_scale: Real, zero_sign: Int, settings: Mode, given: Words,
) -> None:  # fmt: skip
    bits, words, mode = scratch(), scratch32(), mode_of(settings)
    places, sign = unsigned(m), left(unsigned(zero_sign), unsigned(WIDTH - unsigned(1)))
    tops, before, after, smallest, most = scratch(), scratch(), scratch(), scratch(), scratch()
    divide = tensor_scale != real(0.0)
    in_row = (length + block - 1) // block
    together = max(SCRATCH // block, int64(1))
    item: Any = first
    start: Any = (first // in_row) * length + (first % in_row) * block
    within: Any = (first % in_row) * block
    while item < last:
        count = min(block, length - within)
        if count > SCRATCH:
            top = unsigned(0)
            for i in range(count):
                magnitude = unsigned(bits_of(source[start + i]) & MAGNITUDE)
                top = magnitude if magnitude > top else top  # noqa: FURB136
            scale = block_scale(top, addend, emax, emin, largest, tensor_scale)
            for at in range(start, start + count, SCRATCH):
                part = min(int64(SCRATCH), start + count - at)
                _load(source, at, part, bits, words, settings, given)
                _scale(bits, 0, part, scale[0], divide)
                _round(target, at, part, bits, words, 0, scale[1:], places, sign, mode)
            start, item = start + count, item + 1
            within = within + block if within + block < length else int64(0)
            continue
        blocks = min(together, last - item)
        end = ((item + blocks) // in_row) * length + ((item + blocks) % in_row) * block
        _load(source, start, end - start, bits, words, settings, given)
        offset: Any = int64(0)
        place: Any = within
        for k in range(blocks):
            count = min(block, length - place)
            tops[k] = _top(bits, offset, count)
            offset += count
            place = place + block if place + block < length else int64(0)
        for k in range(blocks):
            scale = block_scale(tops[k], addend, emax, emin, largest, tensor_scale)
            before[k], after[k] = bits_of(scale[0]), bits_of(scale[1])
            smallest[k], most[k] = scale[2], bits_of(scale[3])
        offset = int64(0)
        for k in range(blocks):
            count = min(block, length - within)
            _scale(bits, offset, count, float_of(before[k]), divide)
            scale = (float_of(after[k]), smallest[k], float_of(most[k]))
            # With the usual lengths as constants LLVM makes vector instructions without loops.
            if count == 32:
                _round(target, start + offset, 32, bits, words, offset, scale, places, sign, mode)
            elif count == 16:
                _round(target, start + offset, 16, bits, words, offset, scale, places, sign, mode)
            else:
                _round(target, start + offset, count, bits, words, offset, scale, places, sign, mode)
            offset += count
            within = within + block if within + block < length else int64(0)
        start, item = end, item + blocks


def round_blocks_in_mode(
    source: torch.Tensor,
    target: torch.Tensor,
    layout: tuple[int, int, int],
    rule_addend: int,
    element: Element,
    tensor_scale: float,
    how: How,
) -> None:
    """Rounds blocks of neighbours along an axis, with a shared scale.

    Args:
        source: float32 or float64 on the CPU, its elements filling one gapless piece of memory; not empty; contiguous
            if rounding is stochastic.
        target: same dtype, shape and strides; may be ``source``, may not otherwise overlap it.
        layout: how many elements lie along the axis (no block reaches beyond its end, where the last one may be
            shorter), the stride of the axis, and how many elements are in a block.
        rule_addend: added to the float64 pattern of a block's largest magnitude before its exponent is read.
        element: what the scaled numbers are rounded to; at most 21 stored significand bits.
        tensor_scale: 0; for blocks of NVFP4, the scale of the tensor.
        how: the mode, and the random bits of stochastic rounding.
    """
    fixed = (rule_addend, element.emax, element.emin, element.significand_bits)
    rest = (*layout, *fixed, element.max, tensor_scale, int(element.signed_zero))
    loop = _rows if layout[1] == 1 else strips_of_blocks
    run_in_mode(loop, how, (source, target), rest, pieces(source.numel(), layout))


def addressed_blocks_in_mode(
    dtype: torch.dtype, block: int, rule_addend: int, element: Element, rounding: Rounding, *, strided: bool
) -> Addressed:
    """The loop of :func:`round_blocks_in_mode` along the axis of memory, or another one, for callers without Python."""
    fixed = (rule_addend, element.emax, element.emin, element.significand_bits, int(element.signed_zero), STRIP)
    loop = strips_of_blocks if strided else _rows
    return Addressed(Calling.BLOCKS_IN_MODE, loop, dtype, numbers((block, *fixed), (element.max,), rounding))
