"""Rounding to equally spaced numbers, scale * (integer - zero point): the compiled loop for CPU.

It serves fixed point (one power-of-two scale) and integer affine quantization (a scale and zero point per row).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numba import njit
from numpy import float32, float64, int32, uint32

from roundoff.formats.native_loops import compiled, in_pieces
from roundoff.formats.reinterpret import bits_of32, float_of32

# The patterns of minus and plus infinity, as _in_order orders them.
_LOWEST, _HIGHEST = int32(-0x7F800001), int32(0x7F800000)


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
def _in_order(bits: Any) -> Any:
    """Float32 patterns as integers of the same order (-0 below +0, NaN at either end), and back again."""
    return int32(bits ^ int32(int32(bits >> int32(31)) & int32(0x7FFFFFFF)))


def _scales(
    source: Any, scales: Any, zeros: Any, first: Any, last: Any, length: Any,
    code_min: Any, code_max: Any, symmetric: Any, smallest: Any,
) -> None:  # fmt: skip
    for row in range(first, last):
        low, high = int32(0x7FFFFFFF), int32(-0x80000000)
        for i in range(row * length, (row + 1) * length):
            key = _in_order(int32(bits_of32(source[i])))
            low = key if key < low else low  # noqa: FURB136
            high = key if key > high else high  # noqa: FURB136
        bottom: Any = float64(float_of32(uint32(_in_order(low))))
        top: Any = float64(float_of32(uint32(_in_order(high))))
        # The arithmetic of roundoff.formats.calibration, operation by operation.
        if symmetric:
            reach = max(-bottom, top) / code_max
        else:
            bottom, top = min(bottom, 0.0), max(top, 0.0)
            reach = (top - bottom) / (code_max - code_min)
        scale = float32(max(reach, smallest))
        zero = 0.0 if symmetric else min(max(code_min - np.rint(bottom / float64(scale)), code_min), code_max)
        # NaN sorts beyond infinity, to either side; with one of them in the row there is no scale.
        usable = low > _LOWEST and high < _HIGHEST
        scales[row] = scale if usable else float32(np.nan)
        zeros[row] = float32(zero)


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
    scales = torch.empty(x.shape[:-1], device="cpu")
    zeros = torch.empty_like(scales)
    kernel = compiled(_scales, x.dtype, "pppiiiddid")
    data = (x.data_ptr(), scales.data_ptr(), zeros.data_ptr())
    rest = (x.shape[-1], code_min, code_max, symmetric, smallest)
    in_pieces(lambda first, last: kernel(*data, first, last, *rest), scales.numel(), x.numel())
    return scales, zeros
