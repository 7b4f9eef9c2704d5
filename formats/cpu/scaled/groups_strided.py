"""Integer quantization along another axis than the last: the compiled loops for CPU, every mode, float32 and float64.

Memory is ``outer`` times ``length`` times ``inner`` numbers, and a group is some neighbours along the middle. A strip
of columns, each a group, is quantized at a time: once through it for the scales, and once more to round.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from numba import njit
from numpy import float32, float64, int32, int64, uint32, uint64

from ..addends import BETWEEN, addends, fill, mode32, mode64
from ..bits import bits_of32, bits_of64, float_of32, float_of64, scratch32, scratch64
from ..step_tail import between_steps32, between_steps64, on_grid, to_integer32, to_integer64
from ..threads import compiled, in_pieces
from .blocks_strided import STRIP, strip
from .range_scales import FIRST32, FIRST64, LAST32, LAST64, key32, key64, range32, range64

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...base.modes import RandomBits, Rounding


@njit(inline="always")  # type: ignore[untyped-decorator]
def _ends32(source: Any, start: Any, rows: Any, columns: Any, stride: Any, bottoms: Any, tops: Any) -> None:
    for j in range(columns):
        bottoms[j], tops[j] = uint32(LAST32), uint32(FIRST32)
    for row in range(rows):
        at = start + row * stride
        for j in range(columns):
            key = key32(bits_of32(source[at + j]))
            bottoms[j] = uint32(key) if key < int32(bottoms[j]) else bottoms[j]
            tops[j] = uint32(key) if key > int32(tops[j]) else tops[j]


@njit(inline="always")  # type: ignore[untyped-decorator]
def _run_ends32(
    source: Any, start: Any, rows: Any, columns: Any, run: Any, stride: Any, bottoms: Any, tops: Any
) -> None:
    for j in range(columns):
        bottom, top = LAST32, FIRST32
        for row in range(rows):
            at = start + row * stride + j * run
            for i in range(at, at + run):
                key = key32(bits_of32(source[i]))
                bottom = key if key < bottom else bottom  # noqa: FURB136
                top = key if key > top else top  # noqa: FURB136
        bottoms[j], tops[j] = uint32(bottom), uint32(top)


@njit(inline="always")  # type: ignore[untyped-decorator]
def _row32(
    target: Any, at: Any, count: Any, bits: Any, words: Any, inverses: Any, scales: Any, zeros: Any, low: Any,
    high: Any, between: Any, mode: Any,
) -> None:  # fmt: skip
    if between == 0:  # as two loops, of which the compiler vectorises this one
        for j in range(count):
            steps = to_integer32(float_of32(bits[j]) * float_of32(inverses[j]), mode, words[j])
            target[at + j] = on_grid(steps, float_of32(scales[j]), float_of32(zeros[j]), low, high)
        return
    for j in range(count):
        inverse, scale, zero = float_of32(inverses[j]), float_of32(scales[j]), float_of32(zeros[j])
        steps = between_steps32(float_of32(bits[j]), inverse, scale, zero, mode, words[j])
        target[at + j] = on_grid(steps, scale, zero, low, high)


def _strips32(
    source: Any, target: Any, first: Any, last: Any, length: Any, inner: Any, group: Any,
    known: Any, known_scales: Any, known_zeros: Any, low: Any, high: Any, symmetric: Any, least: Any, settings: Any,
    given: Any,
) -> None:  # fmt: skip
    bits, words, mode = scratch32(), scratch32(), mode32(settings)
    between = settings[BETWEEN]
    bottoms, tops, inverses, scales, zeros = scratch32(), scratch32(), scratch32(), scratch32(), scratch32()
    code_min, code_max = float64(low), float64(high)
    for item in range(first, last):
        start, rows, columns = strip(item, length, inner, group)
        if known != 0:
            strips = (inner + STRIP - 1) // STRIP
            at = (item // strips) * inner + (item % strips) * STRIP
            for j in range(columns):
                scales[j], zeros[j] = bits_of32(known_scales[at + j]), bits_of32(known_zeros[at + j])
        else:
            _ends32(source, start, rows, columns, inner, bottoms, tops)
            for j in range(columns):
                scale, zero = range32(int32(bottoms[j]), int32(tops[j]), code_min, code_max, symmetric, least)
                scales[j], zeros[j] = bits_of32(scale), bits_of32(zero)
        for j in range(columns):
            inverses[j] = bits_of32(float32(1.0) / float_of32(scales[j]))
        for row in range(rows):
            at = start + row * inner
            fill(words, columns, at, settings, given)
            for j in range(columns):
                bits[j] = bits_of32(source[at + j])
            _row32(target, at, columns, bits, words, inverses, scales, zeros, low, high, between, mode)


def _ranges32(
    source: Any, scales: Any, zeros: Any, first: Any, last: Any, outer: Any, length: Any, inner: Any,
    low: Any, high: Any, symmetric: Any, least: Any,
) -> None:  # fmt: skip
    bottoms, tops = scratch32(), scratch32()
    for column in range(first, last, STRIP):
        columns = min(int64(STRIP), last - column)
        if inner == 1:
            _ends32(source, column, outer, columns, length, bottoms, tops)
        else:
            _run_ends32(source, column * inner, outer, columns, inner, length * inner, bottoms, tops)
        for j in range(columns):
            scale, zero = range32(int32(bottoms[j]), int32(tops[j]), low, high, symmetric, least)
            scales[column + j], zeros[column + j] = scale, zero


@njit(inline="always")  # type: ignore[untyped-decorator]
def _ends64(source: Any, start: Any, rows: Any, columns: Any, stride: Any, bottoms: Any, tops: Any) -> None:
    for j in range(columns):
        bottoms[j], tops[j] = uint64(LAST64), uint64(FIRST64)
    for row in range(rows):
        at = start + row * stride
        for j in range(columns):
            key = key64(bits_of64(source[at + j]))
            bottoms[j] = uint64(key) if key < int64(bottoms[j]) else bottoms[j]
            tops[j] = uint64(key) if key > int64(tops[j]) else tops[j]


@njit(inline="always")  # type: ignore[untyped-decorator]
def _run_ends64(
    source: Any, start: Any, rows: Any, columns: Any, run: Any, stride: Any, bottoms: Any, tops: Any
) -> None:
    for j in range(columns):
        bottom, top = LAST64, FIRST64
        for row in range(rows):
            at = start + row * stride + j * run
            for i in range(at, at + run):
                key = key64(bits_of64(source[i]))
                bottom = key if key < bottom else bottom  # noqa: FURB136
                top = key if key > top else top  # noqa: FURB136
        bottoms[j], tops[j] = uint64(bottom), uint64(top)


@njit(inline="always")  # type: ignore[untyped-decorator]
def _row64(
    target: Any, at: Any, count: Any, bits: Any, words: Any, inverses: Any, scales: Any, zeros: Any, low: Any,
    high: Any, between: Any, mode: Any,
) -> None:  # fmt: skip
    if between == 0:  # as two loops, of which the compiler vectorises this one
        for j in range(count):
            steps = to_integer64(float_of64(bits[j]) * float_of64(inverses[j]), mode, words[j])
            target[at + j] = on_grid(steps, float_of64(scales[j]), float_of64(zeros[j]), low, high)
        return
    for j in range(count):
        inverse, scale, zero = float_of64(inverses[j]), float_of64(scales[j]), float_of64(zeros[j])
        steps = between_steps64(float_of64(bits[j]), inverse, scale, zero, mode, words[j])
        target[at + j] = on_grid(steps, scale, zero, low, high)


def _strips64(
    source: Any, target: Any, first: Any, last: Any, length: Any, inner: Any, group: Any,
    known: Any, known_scales: Any, known_zeros: Any, low: Any, high: Any, symmetric: Any, least: Any, settings: Any,
    given: Any,
) -> None:  # fmt: skip
    bits, words, mode = scratch64(), scratch32(), mode64(settings)
    between = settings[BETWEEN]
    bottoms, tops, inverses, scales, zeros = scratch64(), scratch64(), scratch64(), scratch64(), scratch64()
    code_min, code_max = float64(low), float64(high)
    for item in range(first, last):
        start, rows, columns = strip(item, length, inner, group)
        if known != 0:
            strips = (inner + STRIP - 1) // STRIP
            at = (item // strips) * inner + (item % strips) * STRIP
            for j in range(columns):
                scales[j], zeros[j] = bits_of64(known_scales[at + j]), bits_of64(known_zeros[at + j])
        else:
            _ends64(source, start, rows, columns, inner, bottoms, tops)
            for j in range(columns):
                scale, zero = range64(int64(bottoms[j]), int64(tops[j]), code_min, code_max, symmetric, least)
                scales[j], zeros[j] = bits_of64(scale), bits_of64(zero)
        for j in range(columns):
            inverses[j] = bits_of64(float64(1.0) / float_of64(scales[j]))
        for row in range(rows):
            at = start + row * inner
            fill(words, columns, at, settings, given)
            for j in range(columns):
                bits[j] = bits_of64(source[at + j])
            _row64(target, at, columns, bits, words, inverses, scales, zeros, low, high, between, mode)


def _ranges64(
    source: Any, scales: Any, zeros: Any, first: Any, last: Any, outer: Any, length: Any, inner: Any,
    low: Any, high: Any, symmetric: Any, least: Any,
) -> None:  # fmt: skip
    bottoms, tops = scratch64(), scratch64()
    for column in range(first, last, STRIP):
        columns = min(int64(STRIP), last - column)
        if inner == 1:
            _ends64(source, column, outer, columns, length, bottoms, tops)
        else:
            _run_ends64(source, column * inner, outer, columns, inner, length * inner, bottoms, tops)
        for j in range(columns):
            scale, zero = range64(int64(bottoms[j]), int64(tops[j]), low, high, symmetric, least)
            scales[column + j], zeros[column + j] = scale, zero


def round_strided_groups(
    source: torch.Tensor,
    target: torch.Tensor,
    layout: tuple[int, int, int],
    codes: tuple[int, int],
    known: Sequence[torch.Tensor] | None,
    least: float,
    rounding: Rounding,
    random: RandomBits | torch.Tensor | None,
    *,
    symmetric: bool,
) -> None:
    """Quantizes groups of elements ``inner`` apart in memory, with a scale each, and back.

    Args:
        source: float32 or float64 on the CPU, its elements filling one gapless piece of memory; not empty; contiguous
            if rounding is stochastic.
        target: same dtype, shape and strides; may be ``source``, may not otherwise overlap it.
        layout: how many elements lie along the axis (no group reaches beyond its end, where the last one may be
            shorter), the stride of the axis, and how many elements are in a group.
        codes: smallest and largest code.
        known: scales and zero points, as the tensor lies in memory with a group for each of its elements; None if they
            shall follow from minimum and maximum.
        least: no scale is smaller.
        rounding: the mode.
        random: the random bits of stochastic rounding.
        symmetric: whether the zero point is 0.
    """
    n, (length, inner, group) = source.numel(), layout
    extra = addends(rounding, random, source, between=rounding != "nearest-even")
    kernel = compiled(_strips32 if source.itemsize == 4 else _strips64, source.dtype, "ppiiiiiippffidmw")
    data = (source.data_ptr(), target.data_ptr())
    scales, zeros = (0, 0) if known is None else (known[0].data_ptr(), known[1].data_ptr())
    fixed = (length, inner, group, int(known is not None), scales, zeros)
    rest = (*fixed, *codes, int(symmetric), least, extra.settings, extra.words)
    strips = n // (length * inner) * -(-length // group) * -(-inner // STRIP)
    in_pieces(lambda first, last: kernel(*data, first, last, *rest), strips, n)


def channel_scales(
    x: torch.Tensor, length: int, inner: int, codes: tuple[int, int], least: float, *, symmetric: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Scales and zero points from minimum and maximum of each channel; the scale is NaN for one not finite.

    Args:
        x: float32 or float64 on the CPU, its elements filling one gapless piece of memory; not empty.
        length: the number of channels.
        inner: the stride of their axis.
        codes: smallest and largest code.
        least: no scale is smaller.
        symmetric: whether the zero point is 0.
    """
    scales = torch.empty(length, dtype=x.dtype, device="cpu")
    zeros = torch.empty_like(scales)
    kernel = compiled(_ranges32 if x.itemsize == 4 else _ranges64, x.dtype, "pppiiiiiddid")
    data = (x.data_ptr(), scales.data_ptr(), zeros.data_ptr())
    rest = (x.numel() // (length * inner), length, inner, *codes, int(symmetric), least)
    in_pieces(lambda first, last: kernel(*data, first, last, *rest), length, x.numel())
    return scales, zeros
