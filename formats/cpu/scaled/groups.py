"""Integer quantization of groups of neighbours with a scale each: the compiled loops for CPU, every mode and carrier.

Scales may also be given. For channels, which have one scale each, a loop only finds the scales.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from numba import njit
from numpy import float64, int64

from ...base.modes import RoundingOptions
from ..addends import mode_of, run_in_mode
from ..arguments import Double, Int, Mode, Numbers, Real, Words
from ..tail import between_steps, on_grid, to_integer
from ..threads import compiled, in_pieces
from ..widths import KernelPart, bits_of, float_of, real, signed, specialised, unfilled, unsigned
from .nests import STRIP, extremes, extremes_of_columns, pieces, rows, strips
from .range_scales import FIRST, LAST, key_of, range_scale

nest: Any = KernelPart()
"""The nest of loops: :func:`.nests.rows` or :func:`.nests.strips`."""

# Scales follow from the smallest and the largest number of a group, so both are found.
_BY_RANGE: Any = {"key": key_of, "two_ended": True}


@njit(inline="always")  # type: ignore[untyped-decorator]
def _scale_from_range(low: Any, high: Any, _group: Any, fmt: Any) -> Any:
    _, _, code_min, code_max, symmetric, least, _ = fmt
    scale, zero = range_scale(low, high, float64(code_min), float64(code_max), symmetric, least)
    # A group shares up to four values: reciprocal, scale and zero point here.
    return bits_of(real(1.0) / scale), bits_of(scale), bits_of(zero), unsigned(0)


@njit(inline="always")  # type: ignore[untyped-decorator]
def _known_scale(_low: Any, _high: Any, group: Any, fmt: Any) -> Any:
    scales, zeros, _, _, _, _, _ = fmt
    return bits_of(real(1.0) / scales[group]), bits_of(scales[group]), bits_of(zeros[group]), unsigned(0)


@njit(inline="always")  # type: ignore[untyped-decorator]
def _always_ready(_shared: Any) -> Any:
    return True


@njit(inline="always")  # type: ignore[untyped-decorator]
def _unchanged_bits(bits: Any, _shared: Any) -> Any:
    return bits


@njit(inline="always")  # type: ignore[untyped-decorator]
def _grid_number(bits: Any, shared: Any, fmt: Any, word: Any) -> Any:
    _, _, low, high, _, _, mode = fmt
    inverse, scale, zero = float_of(shared[0]), float_of(shared[1]), float_of(shared[2])
    return on_grid(to_integer(float_of(bits) * inverse, mode, word), scale, zero, low, high)


@njit(inline="always")  # type: ignore[untyped-decorator]
def _grid_number_between(bits: Any, shared: Any, fmt: Any, word: Any) -> Any:  # For modes other than nearest-even.
    _, _, low, high, _, _, mode = fmt
    inverse, scale, zero = float_of(shared[0]), float_of(shared[1]), float_of(shared[2])
    return on_grid(between_steps(float_of(bits), inverse, scale, zero, mode, word), scale, zero, low, high)


def _groups(
    source: Numbers, target: Numbers, scales: Numbers, zeros: Numbers, first: Int, last: Int, length: Int, inner: Int,
    group: Int, low: Real, high: Real, symmetric: Int, least: Double, settings: Mode, given: Words,
) -> None:  # fmt: skip
    fmt = scales, zeros, low, high, symmetric, least, mode_of(settings)
    nest(source, target, first, last, length, inner, group, fmt, settings, given)


@cache
def _group_loop(dtype: torch.dtype, nest: Any, shared_of: Any, number_of: Any) -> Any:
    parts = {
        "nest": nest,
        "shared_of": shared_of,
        "is_ready": _always_ready,
        "ready": _unchanged_bits,
        "number_of": number_of,
    }
    return specialised(_groups, dtype, **parts, **_BY_RANGE)


def round_groups(
    source: torch.Tensor,
    target: torch.Tensor,
    layout: tuple[int, int, int],
    codes: tuple[int, int],
    parameters: Sequence[torch.Tensor] | None,
    least: float,
    options: RoundingOptions,
    *,
    symmetric: bool,
) -> None:
    """Quantizes groups of neighbours along an axis, with a scale each, and back.

    Args:
        source: float32 or float64 on the CPU, its elements filling one gapless piece of memory; not empty; contiguous
            if rounding is stochastic.
        target: same dtype, shape and strides; may be ``source``, may not otherwise overlap it.
        layout: the length and the stride of the axis, and the elements of a group; the last may be shorter.
        codes: smallest and largest code.
        parameters: scales and zero points in the order of the groups in memory; contiguous, dtype of ``source``; None
            to derive them from minimum and maximum.
        least: no scale is smaller.
        options: the mode, and the random bits of stochastic rounding.
        symmetric: whether the zero point is 0.
    """
    # Without parameters the loop ignores these addresses.
    data, rest = (source, target, *(parameters or (source, source))), (*layout, *codes, int(symmetric), least)
    shared_of = _known_scale if parameters else _scale_from_range
    number_of = _grid_number if options.rounding == "nearest-even" else _grid_number_between
    loop = _group_loop(source.dtype, rows if layout[1] == 1 else strips, shared_of, number_of)
    run_in_mode(loop, options, data, rest, pieces(source.numel(), layout))


def _ranges(
    source: Numbers, scales: Numbers, zeros: Numbers, first: Int, last: Int, outer: Int, length: Int, inner: Int,
    low: Double, high: Double, symmetric: Int, least: Double,
) -> None:  # fmt: skip
    lows, highs = unfilled(), unfilled()
    for channel in range(first, last, STRIP):
        channels = min(int64(STRIP), last - channel)
        if inner == 1:  # Neighbours in memory: all channels of a strip at a time.
            extremes_of_columns(source, channel, outer, channels, length, lows, highs)
        else:  # A channel is a run in each row.
            for j in range(channels):
                bottom, top = LAST, FIRST  # Keys beyond those of all numbers.
                for row in range(outer):
                    start = (row * length + channel + j) * inner
                    smallest, largest = extremes(source, start, start + inner)
                    bottom, top = min(smallest, bottom), max(largest, top)
                lows[j], highs[j] = unsigned(bottom), unsigned(top)
        for j in range(channels):
            scale, zero = range_scale(signed(lows[j]), signed(highs[j]), low, high, symmetric, least)
            scales[channel + j], zeros[channel + j] = scale, zero


def channel_scales(
    x: torch.Tensor, length: int, inner: int, codes: tuple[int, int], least: float, *, symmetric: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Computes scales and zero points from the extremes of each channel; with NaN or infinity the scale is NaN.

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
    kernel = compiled(specialised(_ranges, x.dtype, **_BY_RANGE), x.dtype)
    data = (x.data_ptr(), scales.data_ptr(), zeros.data_ptr())
    rest = (x.numel() // (length * inner), length, inner, *codes, int(symmetric), least)
    in_pieces(lambda first, last: kernel(*data, first, last, *rest), length, x.numel())
    return scales, zeros
