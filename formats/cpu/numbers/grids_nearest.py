"""Rounding to equally spaced numbers, scale * (integer - zero point): the compiled loop for CPU.

It serves fixed point (one power-of-two scale) and integer affine quantization (a scale and zero point per row).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numba import njit

from ..addressed import Addressed, Calling, numbers
from ..arguments import Double, Int, Numbers, Real
from ..scaled.range_scales import scale_of
from ..threads import ELEMENTS_PER_THREAD, compiled, in_pieces
from ..widths import real


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


def row_loop(
    source: Numbers, target: Numbers, inverses: Numbers, scales: Numbers, zeros: Numbers, period: Int, first: Int,
    last: Int, length: Int, low: Real, high: Real,
) -> None:  # fmt: skip
    """Rounds rows ``first`` to before ``last``; see :func:`round_rows`."""
    for row in range(first, last):
        k = row % period
        _row(source, target, row * length, (row + 1) * length, inverses[k], scales[k], zeros[k], low, high)


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
        rows: the number of rows of the memory; a divisor of the number of elements.
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
    data = (source.data_ptr(), target.data_ptr())
    kernel = compiled(row_loop, source.dtype, in_place=target is source)
    if rows == 1:
        size = source.element_size()

        def part(first: int, last: int) -> None:
            kernel(*(a + first * size for a in data), *addresses, 1, 0, 1, last - first, low, high)

        in_pieces(part, n, n)
    else:
        in_pieces(lambda first, last: kernel(*data, *addresses, period, first, last, length, low, high), rows, n)


def _whole(
    source: Numbers, target: Numbers, n: Int, code_min: Double, code_max: Double, symmetric: Int, smallest: Double,
    scale: Real, zero: Real,
) -> None:  # fmt: skip
    if scale == real(0.0):
        scale, zero = scale_of(source, 0, n, code_min, code_max, symmetric, smallest)
    _row(source, target, 0, n, real(1.0) / scale, scale, zero, real(code_min), real(code_max))


def is_small(x: torch.Tensor) -> bool:
    """Whether :func:`round_whole` is for this tensor: float32, and too few elements to be worth a second thread."""
    return x.dtype == torch.float32 and (x.numel() < 2 * ELEMENTS_PER_THREAD or torch.get_num_threads() == 1)


def round_whole(
    source: torch.Tensor,
    target: torch.Tensor,
    codes: tuple[int, int],
    smallest: float,
    fixed: tuple[float, int],
    *,
    symmetric: bool,
) -> None:
    """Rounds to nearest-even with one scale and zero point, in one call and one thread: for small tensors.

    Args:
        source: float32 on the CPU, its elements filling one gapless piece of memory; not empty.
        target: same dtype, shape and strides; may be ``source``, may not otherwise overlap it.
        codes: smallest and largest integer.
        smallest: no scale from the data is smaller.
        fixed: scale and zero point; a scale of 0 if they shall follow from minimum and maximum.
        symmetric: whether the zero point is 0.
    """
    kernel = compiled(_whole, source.dtype, in_place=target is source)
    kernel(source.data_ptr(), target.data_ptr(), source.numel(), *codes, symmetric, smallest, *fixed)


def addressed_whole(codes: tuple[int, int], smallest: float, fixed: tuple[float, int], *, symmetric: bool) -> Addressed:
    """The loop of :func:`round_whole`, for callers without Python."""
    parameters = numbers((int(symmetric), fixed[1]), (*codes, smallest, fixed[0]))
    return Addressed(Calling.WHOLE, _whole, torch.float32, parameters, places=True)
