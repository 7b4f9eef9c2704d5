"""Rounding blocks of neighbours that share a scale: the compiled loops for CPU, every mode and carrier.

See :mod:`.blocks_nearest`, which is faster and can only round float32 to nearest-even; here the shared
tail rounds. As many blocks as a scratch holds are taken at a time: first their largest magnitudes, then their scales,
then their numbers, so that what one block needs does not wait for another. Longer blocks are taken in parts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from numba import njit
from numpy import float32, float64, int64, uint32, uint64

from ..addends import addends, fill, mode32, mode64
from ..bits import SCRATCH, bits_of32, bits_of64, float_of32, float_of64, scratch32, scratch64
from ..element_tail import to_element32, to_element64
from ..threads import compiled, in_pieces
from .block_scales import scale32, scale64

if TYPE_CHECKING:
    import torch

    from ...arithmetic.elements import Element
    from ...base.modes import RandomBits, Rounding


@njit(inline="always")  # type: ignore[untyped-decorator]
def _load32(source: Any, first: Any, count: Any, bits: Any, words: Any, settings: Any, given: Any) -> None:
    fill(words, count, first, settings, given)
    for i in range(count):
        bits[i] = bits_of32(source[first + i])


@njit(inline="always")  # type: ignore[untyped-decorator]
def _top32(bits: Any, first: Any, count: Any) -> Any:
    top = uint32(0)
    for i in range(count):
        magnitude = uint32(bits[first + i] & uint32(0x7FFFFFFF))
        top = magnitude if magnitude > top else top  # noqa: FURB136
    return top


@njit(inline="always")  # type: ignore[untyped-decorator]
def _scale32(bits: Any, first: Any, count: Any, before: Any, divide: Any) -> None:
    """Divides or multiplies numbers of a block in the scratch by the first part of its scale."""
    if divide:
        for i in range(count):
            bits[first + i] = bits_of32(float_of32(bits[first + i]) / before)
    elif before != float32(1.0):
        for i in range(count):
            bits[first + i] = bits_of32(float_of32(bits[first + i]) * before)


@njit(inline="always")  # type: ignore[untyped-decorator]
def _round32(
    target: Any, at: Any, count: Any, bits: Any, words: Any, first: Any, scale: Any, m: Any, sign: Any, mode: Any
) -> None:
    after, smallest, most = scale
    for i in range(count):
        y = to_element32(bits[first + i], smallest, m, most, sign, mode, words[first + i])
        target[at + i] = y * after


def _rows32(
    source: Any, target: Any, first: Any, last: Any, length: Any, block: Any, addend: Any, emax: Any, emin: Any, m: Any,
    largest: Any, tensor_scale: Any, zero_sign: Any, settings: Any, given: Any,
) -> None:  # fmt: skip
    bits, words, mode, places, sign = scratch32(), scratch32(), mode32(settings), uint32(m), uint32(zero_sign << 31)
    tops, before, after, smallest, most = scratch32(), scratch32(), scratch32(), scratch32(), scratch32()
    divide = tensor_scale != float32(0.0)
    in_row = (length + block - 1) // block
    together = max(SCRATCH // block, int64(1))
    item: Any = first
    start: Any = (first // in_row) * length + (first % in_row) * block
    within: Any = (first % in_row) * block
    while item < last:
        count = min(block, length - within)
        if count > SCRATCH:
            top = uint32(0)
            for i in range(count):
                magnitude = uint32(bits_of32(source[start + i]) & uint32(0x7FFFFFFF))
                top = magnitude if magnitude > top else top  # noqa: FURB136
            scale = scale32(top, addend, emax, emin, largest, tensor_scale)
            for at in range(start, start + count, SCRATCH):
                part = min(int64(SCRATCH), start + count - at)
                _load32(source, at, part, bits, words, settings, given)
                _scale32(bits, 0, part, scale[0], divide)
                _round32(target, at, part, bits, words, 0, scale[1:], places, sign, mode)
            start, item = start + count, item + 1
            within = within + block if within + block < length else int64(0)
            continue
        blocks = min(together, last - item)
        end = ((item + blocks) // in_row) * length + ((item + blocks) % in_row) * block
        _load32(source, start, end - start, bits, words, settings, given)
        offset: Any = int64(0)
        place: Any = within
        for k in range(blocks):
            count = min(block, length - place)
            tops[k] = _top32(bits, offset, count)
            offset += count
            place = place + block if place + block < length else int64(0)
        for k in range(blocks):
            scale = scale32(tops[k], addend, emax, emin, largest, tensor_scale)
            before[k], after[k] = bits_of32(scale[0]), bits_of32(scale[1])
            smallest[k], most[k] = scale[2], bits_of32(scale[3])
        offset = int64(0)
        for k in range(blocks):
            count = min(block, length - within)
            _scale32(bits, offset, count, float_of32(before[k]), divide)
            scale = (float_of32(after[k]), smallest[k], float_of32(most[k]))
            # With the usual lengths as constants LLVM makes vector instructions without loops.
            if count == 32:
                _round32(target, start + offset, 32, bits, words, offset, scale, places, sign, mode)
            elif count == 16:
                _round32(target, start + offset, 16, bits, words, offset, scale, places, sign, mode)
            else:
                _round32(target, start + offset, count, bits, words, offset, scale, places, sign, mode)
            offset += count
            within = within + block if within + block < length else int64(0)
        start, item = end, item + blocks


@njit(inline="always")  # type: ignore[untyped-decorator]
def _load64(source: Any, first: Any, count: Any, bits: Any, words: Any, settings: Any, given: Any) -> None:
    fill(words, count, first, settings, given)
    for i in range(count):
        bits[i] = bits_of64(source[first + i])


@njit(inline="always")  # type: ignore[untyped-decorator]
def _top64(bits: Any, first: Any, count: Any) -> Any:
    top = uint64(0)
    for i in range(count):
        magnitude = uint64(bits[first + i] & uint64(0x7FFFFFFFFFFFFFFF))
        top = magnitude if magnitude > top else top  # noqa: FURB136
    return top


@njit(inline="always")  # type: ignore[untyped-decorator]
def _scale64(bits: Any, first: Any, count: Any, before: Any, divide: Any) -> None:
    if divide:
        for i in range(count):
            bits[first + i] = bits_of64(float_of64(bits[first + i]) / before)
    elif before != float64(1.0):
        for i in range(count):
            bits[first + i] = bits_of64(float_of64(bits[first + i]) * before)


@njit(inline="always")  # type: ignore[untyped-decorator]
def _round64(
    target: Any, at: Any, count: Any, bits: Any, words: Any, first: Any, scale: Any, m: Any, sign: Any, mode: Any
) -> None:
    after, smallest, most = scale
    for i in range(count):
        y = to_element64(bits[first + i], smallest, m, most, sign, mode, words[first + i])
        target[at + i] = y * after


def _rows64(
    source: Any, target: Any, first: Any, last: Any, length: Any, block: Any, addend: Any, emax: Any, emin: Any, m: Any,
    largest: Any, tensor_scale: Any, zero_sign: Any, settings: Any, given: Any,
) -> None:  # fmt: skip
    bits, words, mode, places, sign = scratch64(), scratch32(), mode64(settings), uint64(m), uint64(zero_sign << 63)
    tops, before, after, smallest, most = scratch64(), scratch64(), scratch64(), scratch64(), scratch64()
    divide = tensor_scale != float64(0.0)
    in_row = (length + block - 1) // block
    together = max(SCRATCH // block, int64(1))
    item: Any = first
    start: Any = (first // in_row) * length + (first % in_row) * block
    within: Any = (first % in_row) * block
    while item < last:
        count = min(block, length - within)
        if count > SCRATCH:
            top = uint64(0)
            for i in range(count):
                magnitude = uint64(bits_of64(source[start + i]) & uint64(0x7FFFFFFFFFFFFFFF))
                top = magnitude if magnitude > top else top  # noqa: FURB136
            scale = scale64(top, addend, emax, emin, largest, tensor_scale)
            for at in range(start, start + count, SCRATCH):
                part = min(int64(SCRATCH), start + count - at)
                _load64(source, at, part, bits, words, settings, given)
                _scale64(bits, 0, part, scale[0], divide)
                _round64(target, at, part, bits, words, 0, scale[1:], places, sign, mode)
            start, item = start + count, item + 1
            within = within + block if within + block < length else int64(0)
            continue
        blocks = min(together, last - item)
        end = ((item + blocks) // in_row) * length + ((item + blocks) % in_row) * block
        _load64(source, start, end - start, bits, words, settings, given)
        offset: Any = int64(0)
        place: Any = within
        for k in range(blocks):
            count = min(block, length - place)
            tops[k] = _top64(bits, offset, count)
            offset += count
            place = place + block if place + block < length else int64(0)
        for k in range(blocks):
            scale = scale64(tops[k], addend, emax, emin, largest, tensor_scale)
            before[k], after[k] = bits_of64(scale[0]), bits_of64(scale[1])
            smallest[k], most[k] = scale[2], bits_of64(scale[3])
        offset = int64(0)
        for k in range(blocks):
            count = min(block, length - within)
            _scale64(bits, offset, count, float_of64(before[k]), divide)
            scale = (float_of64(after[k]), smallest[k], float_of64(most[k]))
            _round64(target, start + offset, count, bits, words, offset, scale, places, sign, mode)
            offset += count
            within = within + block if within + block < length else int64(0)
        start, item = end, item + blocks


def round_blocks_in_mode(
    source: torch.Tensor,
    target: torch.Tensor,
    length: int,
    block: int,
    rule_addend: int,
    element: Element,
    tensor_scale: float,
    rounding: Rounding,
    random: RandomBits | torch.Tensor | None,
) -> None:
    """Rounds blocks of consecutive elements with a shared scale.

    Args:
        source: float32 or float64 on the CPU, contiguous, not empty.
        target: same dtype and shape, contiguous; may be ``source``, may not otherwise overlap it.
        length: elements in a row; no block reaches beyond the end of its row, where the last one may be shorter.
        block: elements in a block.
        rule_addend: added to the float64 pattern of a block's largest magnitude before its exponent is read.
        element: what the scaled numbers are rounded to; at most 21 stored significand bits.
        tensor_scale: 0; for blocks of NVFP4, the scale of the tensor.
        rounding: the mode.
        random: the random bits of stochastic rounding.
    """
    n = source.numel()
    extra = addends(rounding, random, source)
    kernel = compiled(_rows32 if source.itemsize == 4 else _rows64, source.dtype, "ppiiiiiiiidfimw")
    fixed = (length, block, rule_addend, element.emax, element.emin, element.significand_bits)
    rest = (*fixed, element.max, tensor_scale, int(element.signed_zero), extra.settings, extra.words)
    data = (source.data_ptr(), target.data_ptr())
    in_pieces(lambda first, last: kernel(*data, first, last, *rest), n // length * -(-length // block), n)
