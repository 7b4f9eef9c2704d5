"""Rounding to equally spaced numbers, scale * (integer - zero point): the compiled loop for CPU.

It serves fixed point (one power-of-two scale) and integer affine quantization (a scale and zero point per row).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numba import njit
from numpy import float32, float64, int32, uint32

from ..bits import bits_of32
from ..scaled.range_scales import FIRST32, LAST32, key32, range32
from ..threads import ELEMENTS_PER_THREAD, compiled, in_pieces


@njit(inline="always")  # type: ignore[untyped-decorator]
def _row(
    source: Any, target: Any, first: Any, last: Any, inverse: Any, scale: Any, zero: Any, low: Any, high: Any
) -> None:
    for i in range(first, last):
        code = np.rint(source[i] * inverse) + zero
        # Written so that NaN, which compares as false, passes through.
        code = low if code < low else code  # noqa: FURB136
        code = high if code > high else code  # noqa: FURB136
        target[i] = (code - zero) * scale


def _copying(
    source: Any, target: Any, inverses: Any, scales: Any, zeros: Any, period: Any, first: Any, last: Any, length: Any,
    low: Any, high: Any,
) -> None:  # fmt: skip
    for row in range(first, last):
        k = row % period
        _row(source, target, row * length, (row + 1) * length, inverses[k], scales[k], zeros[k], low, high)


def _in_place(
    data: Any, inverses: Any, scales: Any, zeros: Any, period: Any, first: Any, last: Any, length: Any,
    low: Any, high: Any,
) -> None:  # fmt: skip
    for row in range(first, last):
        k = row % period
        _row(data, data, row * length, (row + 1) * length, inverses[k], scales[k], zeros[k], low, high)


def round_rows(
    source: torch.Tensor,
    target: torch.Tensor,
    rows: int,
    inverses: torch.Tensor,
    scales: torch.Tensor,
    zeros: torch.Tensor,
    low: float,
    high: float,
) -> None:
    """Rounds memory rows of equal length to nearest-even, row r with scale number r modulo their count.

    Args:
        source: float32 or float64 on the CPU, its elements filling one gapless piece of memory.
        target: same dtype, shape and strides; may be ``source``, may not otherwise overlap it.
        rows: into how many rows the memory is cut; a divisor of the number of elements.
        inverses: reciprocals of the scales, contiguous, dtype of ``source``.
        scales: contiguous, dtype of ``source``.
        zeros: zero points, contiguous, dtype of ``source``.
        low: smallest integer.
        high: largest integer.
    """
    n = source.numel()
    if n == 0:
        return
    period, length = scales.numel(), n // rows
    addresses = (inverses.data_ptr(), scales.data_ptr(), zeros.data_ptr())
    data = (source.data_ptr(),) if target is source else (source.data_ptr(), target.data_ptr())
    body, signature = (_in_place, "ppppiiiiff") if target is source else (_copying, "pppppiiiiff")
    kernel = compiled(body, source.dtype, signature)
    if rows == 1:
        size = source.element_size()

        def part(first: int, last: int) -> None:
            kernel(*(a + first * size for a in data), *addresses, 1, 0, 1, last - first, low, high)

        in_pieces(part, n, n)
    else:
        in_pieces(lambda first, last: kernel(*data, *addresses, period, first, last, length, low, high), rows, n)


@njit(inline="always")  # type: ignore[untyped-decorator]
def _scale(source: Any, first: Any, last: Any, code_min: Any, code_max: Any, symmetric: Any, smallest: Any) -> Any:
    """(scale, zero point) from minimum and maximum; the scale is NaN where there is a NaN or an infinity."""
    if symmetric:
        # The largest magnitude is the largest pattern without the sign; NaN lies beyond infinity.
        largest = uint32(0)
        for i in range(first, last):
            magnitude = uint32(bits_of32(source[i]) & uint32(0x7FFFFFFF))
            largest = magnitude if magnitude > largest else largest  # noqa: FURB136
        last_key = int32(largest)
        return range32(int32(0), last_key, float64(code_min), float64(code_max), 1, smallest)
    low, high = LAST32, FIRST32
    for i in range(first, last):
        key = key32(bits_of32(source[i]))
        low = key if key < low else low  # noqa: FURB136
        high = key if key > high else high  # noqa: FURB136
    return range32(low, high, float64(code_min), float64(code_max), 0, smallest)


def _scales(
    source: Any, scales: Any, zeros: Any, first: Any, last: Any, length: Any,
    code_min: Any, code_max: Any, symmetric: Any, smallest: Any,
) -> None:  # fmt: skip
    for row in range(first, last):
        start = row * length
        scales[row], zeros[row] = _scale(source, start, start + length, code_min, code_max, symmetric, smallest)


def row_scales(
    x: torch.Tensor, code_min: int, code_max: int, smallest: float, *, symmetric: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Scales and zero points from minimum and maximum along the last axis, in one pass over memory.

    Args:
        x: float32 on the CPU, contiguous; its last axis is not empty.
        code_min: smallest code.
        code_max: largest code.
        smallest: no scale is smaller.
        symmetric: whether the zero point is 0.

    Returns:
        Two float32 tensors; the scale is NaN where there is a NaN or an infinity.
    """
    scales = torch.empty(x.shape[:-1], dtype=x.dtype, device="cpu")
    zeros = torch.empty_like(scales)
    kernel = compiled(_scales, x.dtype, "pppiiiddid")
    data = (x.data_ptr(), scales.data_ptr(), zeros.data_ptr())
    rest = (x.shape[-1], code_min, code_max, symmetric, smallest)
    in_pieces(lambda first, last: kernel(*data, first, last, *rest), scales.numel(), x.numel())
    return scales, zeros


def _whole_copying(
    source: Any, target: Any, n: Any, code_min: Any, code_max: Any, symmetric: Any, smallest: Any, scale: Any, zero: Any
) -> None:
    if scale == float32(0.0):
        scale, zero = _scale(source, 0, n, code_min, code_max, symmetric, smallest)
    _row(source, target, 0, n, float32(1.0) / scale, scale, zero, float32(code_min), float32(code_max))


def _whole_in_place(
    data: Any, n: Any, code_min: Any, code_max: Any, symmetric: Any, smallest: Any, scale: Any, zero: Any
) -> None:
    if scale == float32(0.0):
        scale, zero = _scale(data, 0, n, code_min, code_max, symmetric, smallest)
    _row(data, data, 0, n, float32(1.0) / scale, scale, zero, float32(code_min), float32(code_max))


def is_small(x: torch.Tensor) -> bool:
    """Whether :func:`round_whole` is for this tensor: float32, and too few elements to be worth a second thread."""
    return x.dtype == torch.float32 and (x.numel() < 2 * ELEMENTS_PER_THREAD or torch.get_num_threads() == 1)


def round_whole(
    source: torch.Tensor,
    target: torch.Tensor,
    codes: tuple[int, int],
    smallest: float,
    given: tuple[float, int],
    *,
    symmetric: bool,
) -> None:
    """Rounds to nearest-even with one scale and zero point, in one call and one thread: for small tensors.

    Args:
        source: float32 on the CPU, its elements filling one gapless piece of memory; not empty.
        target: same dtype, shape and strides; may be ``source``, may not otherwise overlap it.
        codes: smallest and largest integer.
        smallest: no scale from the data is smaller.
        given: scale and zero point; a scale of 0 if they shall follow from minimum and maximum.
        symmetric: whether the zero point is 0.
    """
    data = (source.data_ptr(),) if target is source else (source.data_ptr(), target.data_ptr())
    body, signature = (_whole_in_place, "piddidff") if target is source else (_whole_copying, "ppiddidff")
    compiled(body, source.dtype, signature)(*data, source.numel(), *codes, symmetric, smallest, *given)
