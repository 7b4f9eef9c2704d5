"""Integer quantization along another axis than the last: the compiled loops for CPU, every mode, float32 and float64.

Memory is ``outer`` times ``length`` times ``inner`` numbers, and a group is some neighbours along the middle. A strip
of columns, each a group, is quantized at a time: once through it for the scales, and once more to round.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from numba import njit
from numpy import float64, int64

from ..addends import BETWEEN, fill, mode_of
from ..bits import scratch32
from ..step_tail import between_steps, on_grid, to_integer
from ..threads import compiled, in_pieces
from ..widths import bits_of, float_of, real, scratch, signed, unsigned
from .blocks_strided import STRIP, strip
from .range_scales import FIRST, LAST, ends, key_of, range_scale

if TYPE_CHECKING:
    from ..arguments import Double, Int, Mode, Numbers, Real, Words


@njit(inline="always")  # type: ignore[untyped-decorator]
def _ends(source: Any, start: Any, rows: Any, columns: Any, stride: Any, bottoms: Any, tops: Any) -> None:
    for j in range(columns):
        bottoms[j], tops[j] = unsigned(LAST), unsigned(FIRST)
    for row in range(rows):
        at = start + row * stride
        for j in range(columns):
            key = key_of(bits_of(source[at + j]))
            bottoms[j] = unsigned(key) if key < signed(bottoms[j]) else bottoms[j]
            tops[j] = unsigned(key) if key > signed(tops[j]) else tops[j]


@njit(inline="always")  # type: ignore[untyped-decorator]
def _run_ends(source: Any, start: Any, rows: Any, columns: Any, run: Any, stride: Any, bottoms: Any, tops: Any) -> None:
    for j in range(columns):
        bottom, top = LAST, FIRST
        for row in range(rows):
            at = start + row * stride + j * run
            low, high = ends(source, at, at + run)
            bottom, top = min(low, bottom), max(high, top)
        bottoms[j], tops[j] = unsigned(bottom), unsigned(top)


@njit(inline="always")  # type: ignore[untyped-decorator]
def _row(
    target: Any, at: Any, count: Any, bits: Any, words: Any, inverses: Any, scales: Any, zeros: Any, low: Any,
    high: Any, between: Any, mode: Any,
) -> None:  # fmt: skip
    if between == 0:  # as two loops, of which the compiler vectorises this one
        for j in range(count):
            steps = to_integer(float_of(bits[j]) * float_of(inverses[j]), mode, words[j])
            target[at + j] = on_grid(steps, float_of(scales[j]), float_of(zeros[j]), low, high)
        return
    for j in range(count):
        inverse, scale, zero = float_of(inverses[j]), float_of(scales[j]), float_of(zeros[j])
        steps = between_steps(float_of(bits[j]), inverse, scale, zero, mode, words[j])
        target[at + j] = on_grid(steps, scale, zero, low, high)


def strips_of_groups(
    source: Numbers, target: Numbers, known_scales: Numbers, known_zeros: Numbers, first: Int, last: Int, length: Int,
    inner: Int, group: Int, known: Int, low: Real, high: Real, symmetric: Int, least: Double, settings: Mode,
    given: Words,
) -> None:  # fmt: skip
    """Quantizes strips ``first`` to before ``last``; see :func:`.round_groups`."""
    bits, words, mode = scratch(), scratch32(), mode_of(settings)
    between = settings[BETWEEN]
    bottoms, tops, inverses, scales, zeros = scratch(), scratch(), scratch(), scratch(), scratch()
    code_min, code_max = float64(low), float64(high)
    for item in range(first, last):
        start, rows, columns = strip(item, length, inner, group)
        if known != 0:
            strips = (inner + STRIP - 1) // STRIP
            at = (item // strips) * inner + (item % strips) * STRIP
            for j in range(columns):
                scales[j], zeros[j] = bits_of(known_scales[at + j]), bits_of(known_zeros[at + j])
        else:
            _ends(source, start, rows, columns, inner, bottoms, tops)
            for j in range(columns):
                scale, zero = range_scale(signed(bottoms[j]), signed(tops[j]), code_min, code_max, symmetric, least)
                scales[j], zeros[j] = bits_of(scale), bits_of(zero)
        for j in range(columns):
            inverses[j] = bits_of(real(1.0) / float_of(scales[j]))
        for row in range(rows):
            at = start + row * inner
            fill(words, columns, at, settings, given)
            for j in range(columns):
                bits[j] = bits_of(source[at + j])
            _row(target, at, columns, bits, words, inverses, scales, zeros, low, high, between, mode)


def _ranges(
    source: Numbers, scales: Numbers, zeros: Numbers, first: Int, last: Int, outer: Int, length: Int, inner: Int,
    low: Double, high: Double, symmetric: Int, least: Double,
) -> None:  # fmt: skip
    bottoms, tops = scratch(), scratch()
    for column in range(first, last, STRIP):
        columns = min(int64(STRIP), last - column)
        if inner == 1:
            _ends(source, column, outer, columns, length, bottoms, tops)
        else:
            _run_ends(source, column * inner, outer, columns, inner, length * inner, bottoms, tops)
        for j in range(columns):
            scale, zero = range_scale(signed(bottoms[j]), signed(tops[j]), low, high, symmetric, least)
            scales[column + j], zeros[column + j] = scale, zero


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
    kernel = compiled(_ranges, x.dtype)
    data = (x.data_ptr(), scales.data_ptr(), zeros.data_ptr())
    rest = (x.numel() // (length * inner), length, inner, *codes, int(symmetric), least)
    in_pieces(lambda first, last: kernel(*data, first, last, *rest), length, x.numel())
    return scales, zeros
