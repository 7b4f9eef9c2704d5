"""Integer quantization of groups of neighbours with a scale each: the compiled loops for CPU, every mode and carrier.

As many groups as a scratch holds are taken at a time: first their ranges, then their scales, then their numbers. Longer
groups are taken in parts. The scales may also be given.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from numba import njit
from numpy import float32, float64, int64

from ..addends import BETWEEN, addends, fill, mode32, mode64
from ..bits import SCRATCH, bits_of32, bits_of64, float_of32, float_of64, scratch32, scratch64
from ..step_tail import between_steps32, between_steps64, on_grid, to_integer32, to_integer64
from ..threads import compiled, in_pieces
from .range_scales import FIRST32, FIRST64, LAST32, LAST64, key32, key64, range32, range64

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from ...base.modes import RandomBits, Rounding


@njit(inline="always")  # type: ignore[untyped-decorator]
def _load32(source: Any, first: Any, count: Any, bits: Any, words: Any, settings: Any, given: Any) -> None:
    fill(words, count, first, settings, given)
    for i in range(count):
        bits[i] = bits_of32(source[first + i])


@njit(inline="always")  # type: ignore[untyped-decorator]
def _ends32(bits: Any, first: Any, count: Any) -> Any:
    bottom, top = LAST32, FIRST32
    for i in range(count):
        key = key32(bits[first + i])
        bottom = key if key < bottom else bottom  # noqa: FURB136
        top = key if key > top else top  # noqa: FURB136
    return bottom, top


@njit(inline="always")  # type: ignore[untyped-decorator]
def _quantize32(
    target: Any, at: Any, count: Any, bits: Any, words: Any, first: Any, scale: Any, zero: Any, low: Any, high: Any,
    between: Any, mode: Any,
) -> None:  # fmt: skip
    inverse = float32(1.0) / scale
    if between == 0:  # as two loops, of which the compiler vectorises this one
        for i in range(count):
            steps = to_integer32(float_of32(bits[first + i]) * inverse, mode, words[first + i])
            target[at + i] = on_grid(steps, scale, zero, low, high)
        return
    for i in range(count):
        steps = between_steps32(float_of32(bits[first + i]), inverse, scale, zero, mode, words[first + i])
        target[at + i] = on_grid(steps, scale, zero, low, high)


@njit(inline="always")  # type: ignore[untyped-decorator]
def _long_group32(
    source: Any, target: Any, start: Any, end: Any, bits: Any, words: Any, scale: Any, zero: Any, low: Any, high: Any,
    between: Any, mode: Any, settings: Any, given: Any,
) -> None:  # fmt: skip
    for at in range(start, end, SCRATCH):
        part = min(int64(SCRATCH), end - at)
        _load32(source, at, part, bits, words, settings, given)
        _quantize32(target, at, part, bits, words, 0, scale, zero, low, high, between, mode)


@njit(inline="always")  # type: ignore[untyped-decorator]
def _long_ends32(source: Any, start: Any, end: Any) -> Any:
    bottom, top = LAST32, FIRST32
    for i in range(start, end):
        key = key32(bits_of32(source[i]))
        bottom = key if key < bottom else bottom  # noqa: FURB136
        top = key if key > top else top  # noqa: FURB136
    return bottom, top


def _groups32(
    source: Any, target: Any, scales: Any, zeros: Any, known: Any, first: Any, last: Any, length: Any, group: Any,
    low: Any, high: Any, symmetric: Any, least: Any, settings: Any, given: Any,
) -> None:  # fmt: skip
    bits, words, mode = scratch32(), scratch32(), mode32(settings)
    between = settings[BETWEEN]
    scale_bits, zero_bits = scratch32(), scratch32()
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
            _load32(source, start, end - start, bits, words, settings, given)
        offset, place = int64(0), within
        for k in range(groups):
            size = min(group, length - place)
            if known != 0:
                scale, zero = scales[item + k], zeros[item + k]
            else:
                short = count <= SCRATCH
                ends = _ends32(bits, offset, size) if short else _long_ends32(source, start, end)
                scale, zero = range32(ends[0], ends[1], code_min, code_max, symmetric, least)
            scale_bits[k], zero_bits[k] = bits_of32(scale), bits_of32(zero)
            offset += size
            place = place + group if place + group < length else int64(0)
        offset, place = int64(0), within
        for k in range(groups):
            size = min(group, length - place)
            scale, zero = float_of32(scale_bits[k]), float_of32(zero_bits[k])
            if size > SCRATCH:
                _long_group32(
                    source, target, start, end, bits, words, scale, zero, low, high, between, mode, settings, given
                )
            elif size == 32:
                _quantize32(target, start + offset, 32, bits, words, offset, scale, zero, low, high, between, mode)
            else:
                _quantize32(target, start + offset, size, bits, words, offset, scale, zero, low, high, between, mode)
            offset += size
            place = place + group if place + group < length else int64(0)
        item += groups


@njit(inline="always")  # type: ignore[untyped-decorator]
def _load64(source: Any, first: Any, count: Any, bits: Any, words: Any, settings: Any, given: Any) -> None:
    fill(words, count, first, settings, given)
    for i in range(count):
        bits[i] = bits_of64(source[first + i])


@njit(inline="always")  # type: ignore[untyped-decorator]
def _ends64(bits: Any, first: Any, count: Any) -> Any:
    bottom, top = LAST64, FIRST64
    for i in range(count):
        key = key64(bits[first + i])
        bottom = key if key < bottom else bottom  # noqa: FURB136
        top = key if key > top else top  # noqa: FURB136
    return bottom, top


@njit(inline="always")  # type: ignore[untyped-decorator]
def _quantize64(
    target: Any, at: Any, count: Any, bits: Any, words: Any, first: Any, scale: Any, zero: Any, low: Any, high: Any,
    between: Any, mode: Any,
) -> None:  # fmt: skip
    inverse = float64(1.0) / scale
    if between == 0:  # as two loops, of which the compiler vectorises this one
        for i in range(count):
            steps = to_integer64(float_of64(bits[first + i]) * inverse, mode, words[first + i])
            target[at + i] = on_grid(steps, scale, zero, low, high)
        return
    for i in range(count):
        steps = between_steps64(float_of64(bits[first + i]), inverse, scale, zero, mode, words[first + i])
        target[at + i] = on_grid(steps, scale, zero, low, high)


@njit(inline="always")  # type: ignore[untyped-decorator]
def _long_group64(
    source: Any, target: Any, start: Any, end: Any, bits: Any, words: Any, scale: Any, zero: Any, low: Any, high: Any,
    between: Any, mode: Any, settings: Any, given: Any,
) -> None:  # fmt: skip
    for at in range(start, end, SCRATCH):
        part = min(int64(SCRATCH), end - at)
        _load64(source, at, part, bits, words, settings, given)
        _quantize64(target, at, part, bits, words, 0, scale, zero, low, high, between, mode)


@njit(inline="always")  # type: ignore[untyped-decorator]
def _long_ends64(source: Any, start: Any, end: Any) -> Any:
    bottom, top = LAST64, FIRST64
    for i in range(start, end):
        key = key64(bits_of64(source[i]))
        bottom = key if key < bottom else bottom  # noqa: FURB136
        top = key if key > top else top  # noqa: FURB136
    return bottom, top


def _groups64(
    source: Any, target: Any, scales: Any, zeros: Any, known: Any, first: Any, last: Any, length: Any, group: Any,
    low: Any, high: Any, symmetric: Any, least: Any, settings: Any, given: Any,
) -> None:  # fmt: skip
    bits, words, mode = scratch64(), scratch32(), mode64(settings)
    between = settings[BETWEEN]
    scale_bits, zero_bits = scratch64(), scratch64()
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
            _load64(source, start, end - start, bits, words, settings, given)
        offset, place = int64(0), within
        for k in range(groups):
            size = min(group, length - place)
            if known != 0:
                scale, zero = scales[item + k], zeros[item + k]
            else:
                short = count <= SCRATCH
                ends = _ends64(bits, offset, size) if short else _long_ends64(source, start, end)
                scale, zero = range64(ends[0], ends[1], code_min, code_max, symmetric, least)
            scale_bits[k], zero_bits[k] = bits_of64(scale), bits_of64(zero)
            offset += size
            place = place + group if place + group < length else int64(0)
        offset, place = int64(0), within
        for k in range(groups):
            size = min(group, length - place)
            scale, zero = float_of64(scale_bits[k]), float_of64(zero_bits[k])
            if size > SCRATCH:
                _long_group64(
                    source, target, start, end, bits, words, scale, zero, low, high, between, mode, settings, given
                )
            else:
                _quantize64(target, start + offset, size, bits, words, offset, scale, zero, low, high, between, mode)
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
    rounding: Rounding,
    random: RandomBits | torch.Tensor | None,
    *,
    symmetric: bool,
) -> None:
    """Quantizes groups of consecutive elements, with a scale each, and back.

    Args:
        source: float32 or float64 on the CPU, contiguous, not empty.
        target: same dtype and shape, contiguous; may be ``source``, may not otherwise overlap it.
        layout: how many elements are in a row (no group reaches beyond the end of its row, where the last one may be
            shorter), 1, and how many in a group.
        codes: smallest and largest code.
        known: scales and zero points, one for each group, contiguous, dtype of ``source``; None if they shall follow
            from minimum and maximum.
        least: no scale is smaller.
        rounding: the mode.
        random: the random bits of stochastic rounding.
        symmetric: whether the zero point is 0.
    """
    n, (length, _, group) = source.numel(), layout
    extra = addends(rounding, random, source, between=rounding != "nearest-even")
    kernel = compiled(_groups32 if source.itemsize == 4 else _groups64, source.dtype, "ppppiiiiiffidmw")
    scales, zeros = (0, 0) if known is None else (known[0].data_ptr(), known[1].data_ptr())
    data = (source.data_ptr(), target.data_ptr(), scales, zeros, int(known is not None))
    rest = (length, group, *codes, int(symmetric), least, extra.settings, extra.words)
    in_pieces(lambda first, last: kernel(*data, first, last, *rest), n // length * -(-length // group), n)
