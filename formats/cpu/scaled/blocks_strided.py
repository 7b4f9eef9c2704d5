"""Rounding blocks along another axis than the last: the compiled loops for CPU, every mode, float32 and float64.

Memory is ``outer`` times ``length`` times ``inner`` numbers, and a block is some neighbours along the middle. A strip
of columns, each a block, is rounded at a time, so that memory is read in its order and loops run along it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from numba import njit
from numpy import float32, int64, uint32, uint64

from ..addends import addends, fill, mode32, mode64
from ..bits import bits_of32, bits_of64, float_of32, float_of64, scratch32, scratch64
from ..element_tail import to_element32, to_element64
from ..threads import compiled, in_pieces
from .block_scales import scale32, scale64

if TYPE_CHECKING:
    import torch

    from ...arithmetic.elements import Element
    from ...base.modes import RandomBits, Rounding

STRIP = 512  # columns: what the loops keep about a strip stays in the first cache


@njit(inline="always")  # type: ignore[untyped-decorator]
def strip(item: Any, length: Any, inner: Any, block: Any) -> Any:
    """(offset of its first number, rows, columns) of strip number ``item``."""
    strips, blocks = (inner + STRIP - 1) // STRIP, (length + block - 1) // block
    column, rest = (item % strips) * STRIP, item // strips
    row = (rest % blocks) * block
    start = ((rest // blocks) * length + row) * inner + column
    return start, min(block, length - row), min(int64(STRIP), inner - column)


@njit(inline="always")  # type: ignore[untyped-decorator]
def _scale32(bits: Any, columns: Any, before: Any, tensor_scale: Any) -> None:
    """Divides or multiplies numbers by the first parts of the scales of their columns."""
    if tensor_scale == float32(0.0):
        for j in range(columns):
            bits[j] = bits_of32(float_of32(bits[j]) * float_of32(before[j]))
    else:
        for j in range(columns):
            bits[j] = bits_of32(float_of32(bits[j]) / float_of32(before[j]))


def _strips32(
    source: Any, target: Any, first: Any, last: Any, length: Any, inner: Any, block: Any, addend: Any, emax: Any,
    emin: Any, m: Any, largest: Any, tensor_scale: Any, zero_sign: Any, settings: Any, given: Any,
) -> None:  # fmt: skip
    bits, words, tops = scratch32(), scratch32(), scratch32()
    before, after, smallest, most = scratch32(), scratch32(), scratch32(), scratch32()
    mode, places, sign = mode32(settings), uint32(m), uint32(zero_sign << 31)
    for item in range(first, last):
        start, rows, columns = strip(item, length, inner, block)
        for j in range(columns):
            tops[j] = uint32(0)
        for row in range(rows):
            at = start + row * inner
            for j in range(columns):
                magnitude = uint32(bits_of32(source[at + j]) & uint32(0x7FFFFFFF))
                tops[j] = magnitude if magnitude > tops[j] else tops[j]  # noqa: FURB136
        for j in range(columns):
            scale = scale32(tops[j], addend, emax, emin, largest, tensor_scale)
            before[j], after[j] = bits_of32(scale[0]), bits_of32(scale[1])
            smallest[j], most[j] = scale[2], bits_of32(scale[3])
        for row in range(rows):
            at = start + row * inner
            fill(words, columns, at, settings, given)
            for j in range(columns):
                bits[j] = bits_of32(source[at + j])
            _scale32(bits, columns, before, tensor_scale)
            for j in range(columns):
                y = to_element32(bits[j], smallest[j], places, float_of32(most[j]), sign, mode, words[j])
                target[at + j] = y * float_of32(after[j])


@njit(inline="always")  # type: ignore[untyped-decorator]
def _scale64(bits: Any, columns: Any, before: Any, tensor_scale: Any) -> None:
    if tensor_scale != 0.0:
        for j in range(columns):
            bits[j] = bits_of64(float_of64(bits[j]) / float_of64(before[j]))


def _strips64(
    source: Any, target: Any, first: Any, last: Any, length: Any, inner: Any, block: Any, addend: Any, emax: Any,
    emin: Any, m: Any, largest: Any, tensor_scale: Any, zero_sign: Any, settings: Any, given: Any,
) -> None:  # fmt: skip
    bits, words, tops = scratch64(), scratch32(), scratch64()
    before, after, smallest, most = scratch64(), scratch64(), scratch64(), scratch64()
    mode, places, sign = mode64(settings), uint64(m), uint64(zero_sign << 63)
    for item in range(first, last):
        start, rows, columns = strip(item, length, inner, block)
        for j in range(columns):
            tops[j] = uint64(0)
        for row in range(rows):
            at = start + row * inner
            for j in range(columns):
                magnitude = uint64(bits_of64(source[at + j]) & uint64(0x7FFFFFFFFFFFFFFF))
                tops[j] = magnitude if magnitude > tops[j] else tops[j]  # noqa: FURB136
        for j in range(columns):
            scale = scale64(tops[j], addend, emax, emin, largest, tensor_scale)
            before[j], after[j] = bits_of64(scale[0]), bits_of64(scale[1])
            smallest[j], most[j] = scale[2], bits_of64(scale[3])
        for row in range(rows):
            at = start + row * inner
            fill(words, columns, at, settings, given)
            for j in range(columns):
                bits[j] = bits_of64(source[at + j])
            _scale64(bits, columns, before, tensor_scale)
            for j in range(columns):
                y = to_element64(bits[j], smallest[j], places, float_of64(most[j]), sign, mode, words[j])
                target[at + j] = y * float_of64(after[j])


def round_strided_blocks(
    source: torch.Tensor,
    target: torch.Tensor,
    length: int,
    inner: int,
    block: int,
    rule_addend: int,
    element: Element,
    tensor_scale: float,
    rounding: Rounding,
    random: RandomBits | torch.Tensor | None,
) -> None:
    """Rounds blocks of elements ``inner`` apart in memory, with a shared scale.

    Args:
        source: float32 or float64 on the CPU, its elements filling one gapless piece of memory; not empty; contiguous
            if rounding is stochastic.
        target: same dtype, shape and strides; may be ``source``, may not otherwise overlap it.
        length: how many elements lie along the axis; no block reaches beyond its end, where the last may be shorter.
        inner: the stride of the axis.
        block: elements in a block.
        rule_addend: added to the float64 pattern of a block's largest magnitude before its exponent is read.
        element: what the scaled numbers are rounded to; at most 21 stored significand bits.
        tensor_scale: 0; for blocks of NVFP4, the scale of the tensor.
        rounding: the mode.
        random: the random bits of stochastic rounding.
    """
    n = source.numel()
    extra = addends(rounding, random, source)
    body = _strips32 if source.itemsize == 4 else _strips64
    kernel = compiled(body, source.dtype, "ppiiiiiiiiidfimw")
    fixed = (length, inner, block, rule_addend, element.emax, element.emin, element.significand_bits)
    rest = (*fixed, element.max, tensor_scale, int(element.signed_zero), extra.settings, extra.words)
    data = (source.data_ptr(), target.data_ptr())
    strips = n // (length * inner) * -(-length // block) * -(-inner // STRIP)
    in_pieces(lambda first, last: kernel(*data, first, last, *rest), strips, n)
