"""Integer quantization of groups of neighbours with a scale each: the compiled loops for CPU, every mode and carrier.

As many groups as a scratch holds are taken at a time: first their ranges, then their scales, then their numbers. Longer
groups are taken in parts. The scales may also be given.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from numba import njit
from numpy import float64, int64

from ..addends import BETWEEN, fill, mode_of, run_in_mode
from ..bits import SCRATCH, scratch32
from ..step_tail import between_steps, on_grid, to_integer
from ..widths import bits_of, float_of, real, scratch
from .blocks_strided import pieces
from .groups_strided import strips_of_groups
from .range_scales import FIRST, LAST, key_of, range_scale, scale_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from ...base.modes import How
    from ..arguments import Double, Int, Mode, Numbers, Real, Words


@njit(inline="always")  # type: ignore[untyped-decorator]
def _load(source: Any, first: Any, count: Any, bits: Any, words: Any, settings: Any, given: Any) -> None:
    fill(words, count, first, settings, given)
    for i in range(count):
        bits[i] = bits_of(source[first + i])


@njit(inline="always")  # type: ignore[untyped-decorator]
def _ends(bits: Any, first: Any, count: Any) -> Any:
    bottom, top = LAST, FIRST
    for i in range(count):
        key = key_of(bits[first + i])
        bottom = key if key < bottom else bottom  # noqa: FURB136
        top = key if key > top else top  # noqa: FURB136
    return bottom, top


@njit(inline="always")  # type: ignore[untyped-decorator]
def _quantize(
    target: Any, at: Any, count: Any, bits: Any, words: Any, first: Any, scale: Any, zero: Any, low: Any, high: Any,
    between: Any, mode: Any,
) -> None:  # fmt: skip
    inverse = real(1.0) / scale
    if between == 0:  # as two loops, of which the compiler vectorises this one
        for i in range(count):
            steps = to_integer(float_of(bits[first + i]) * inverse, mode, words[first + i])
            target[at + i] = on_grid(steps, scale, zero, low, high)
        return
    for i in range(count):
        steps = between_steps(float_of(bits[first + i]), inverse, scale, zero, mode, words[first + i])
        target[at + i] = on_grid(steps, scale, zero, low, high)


@njit(inline="always")  # type: ignore[untyped-decorator]
def _long_group(
    source: Any, target: Any, start: Any, end: Any, bits: Any, words: Any, scale: Any, zero: Any, low: Any, high: Any,
    between: Any, mode: Any, settings: Any, given: Any,
) -> None:  # fmt: skip
    for at in range(start, end, SCRATCH):
        part = min(int64(SCRATCH), end - at)
        _load(source, at, part, bits, words, settings, given)
        _quantize(target, at, part, bits, words, 0, scale, zero, low, high, between, mode)


def _groups(
    source: Numbers, target: Numbers, scales: Numbers, zeros: Numbers, first: Int, last: Int, length: Int, _inner: Int,
    group: Int, known: Int, low: Real, high: Real, symmetric: Int, least: Double, settings: Mode, given: Words,
) -> None:  # fmt: skip
    bits, words, mode = scratch(), scratch32(), mode_of(settings)
    between = settings[BETWEEN]
    scale_bits, zero_bits = scratch(), scratch()
    code_min, code_max = float64(low), float64(high)
    in_row = (length + group - 1) // group
    item: Any = first
    while item < last:
        start, within = (item // in_row) * length + (item % in_row) * group, (item % in_row) * group
        count = min(group, length - within)
        groups = min(max(SCRATCH // group, int64(1)), last - item)
        end = (
            start + count if groups == 1 else ((item + groups) // in_row) * length + ((item + groups) % in_row) * group
        )
        if count <= SCRATCH:
            _load(source, start, end - start, bits, words, settings, given)
        offset, place = int64(0), within
        for k in range(groups):
            size = min(group, length - place)
            if known != 0:
                scale, zero = scales[item + k], zeros[item + k]
            elif count > SCRATCH:
                scale, zero = scale_of(source, start, end, code_min, code_max, symmetric, least)
            else:
                bottom, top = _ends(bits, offset, size)
                scale, zero = range_scale(bottom, top, code_min, code_max, symmetric, least)
            scale_bits[k], zero_bits[k] = bits_of(scale), bits_of(zero)
            offset += size
            place = place + group if place + group < length else int64(0)
        offset, place = int64(0), within
        for k in range(groups):
            size = min(group, length - place)
            scale, zero = float_of(scale_bits[k]), float_of(zero_bits[k])
            if size > SCRATCH:
                _long_group(
                    source, target, start, end, bits, words, scale, zero, low, high, between, mode, settings, given
                )
            elif size == 32:
                _quantize(target, start + offset, 32, bits, words, offset, scale, zero, low, high, between, mode)
            else:
                _quantize(target, start + offset, size, bits, words, offset, scale, zero, low, high, between, mode)
            offset += size
            place = place + group if place + group < length else int64(0)
        item += groups


def round_groups(
    source: torch.Tensor,
    target: torch.Tensor,
    layout: tuple[int, int, int],
    codes: tuple[int, int],
    known: Sequence[torch.Tensor] | None,
    least: float,
    how: How,
    *,
    symmetric: bool,
) -> None:
    """Quantizes groups of neighbours along an axis, with a scale each, and back.

    Args:
        source: float32 or float64 on the CPU, its elements filling one gapless piece of memory; not empty; contiguous
            if rounding is stochastic.
        target: same dtype, shape and strides; may be ``source``, may not otherwise overlap it.
        layout: how many elements lie along the axis (no group reaches beyond its end, where the last one may be
            shorter), the stride of the axis, and how many elements are in a group.
        codes: smallest and largest code.
        known: scales and zero points, as the tensor lies in memory with a group for each of its elements; contiguous,
            dtype of ``source``; None if they shall follow from minimum and maximum.
        least: no scale is smaller.
        how: the mode, and the random bits of stochastic rounding.
        symmetric: whether the zero point is 0.
    """
    data = (source, target, *(known or (source, source)))
    rest = (*layout, int(known is not None), *codes, int(symmetric), least)
    loop, between = _groups if layout[1] == 1 else strips_of_groups, how.rounding != "nearest-even"
    run_in_mode(loop, how, data, rest, pieces(source.numel(), layout), between=between)
