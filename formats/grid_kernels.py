"""Rounding to equally spaced numbers, scale * (integer - zero point): the compiled loop for CPU.

It serves fixed point (one power-of-two scale) and integer affine quantization (a scale and zero point per row).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numba import njit

from roundoff.formats.native_loops import compiled, in_pieces

if TYPE_CHECKING:
    import torch


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
