"""The loops of low-precision accumulation, in the Python that numba compiles: one for all steps, and a scan."""

from __future__ import annotations

from typing import Any

from numpy import uint32, uint64

from ...formats.cpu.arguments import Int, Numbers, Patterns
from ...formats.cpu.widths import INFINITE, MAGNITUDE, ByWidth, bits_of, unsigned
from .steps import read_format, step


def accumulate(
    a: Numbers, b: Numbers, sums: Numbers, lost: Numbers, batches: Int, rows: Int, depth: Int, columns: Int,
    whole: Int, width: Int, slab: Int, tile: Int, q: Patterns, p: Patterns,
) -> None:  # fmt: skip
    """The products of matrices into sums, k ascending, one :data:`~.steps.step` for each; vectorised over columns.

    ``depth`` is walked in slabs, so that a slab of ``b`` stays in cache while every row passes over it, and rows in
    tiles: the sums of a tile are independent, and the processor need not wait for one before it starts the next.

    Args:
        a: (batches, rows, depth), part of gapless matrices (batches, rows, whole).
        b: (batches, depth, columns), part of gapless matrices (batches, whole, width).
        sums: (batches, rows, columns), gapless.
        lost: the errors of the sums, of their shape, if the step keeps them.
        batches: number of matrices.
        rows: number of rows of ``a`` and the sums.
        depth: how many products go into each sum.
        columns: number of columns of ``b`` and the sums.
        whole: see ``a``.
        width: see ``b``.
        slab: number of k.
        tile: number of rows.
        q: the words of the products' format; see :func:`~.steps.read_format`.
        p: the words of the sums' format.
    """
    products, totals = read_format(q), read_format(p)
    for batch in range(batches):
        end = (batch + 1) * rows
        for start in range(0, depth, slab):
            for top in range(batch * rows, end, tile):
                for k in range(start, min(start + slab, depth)):
                    at = (batch * whole + k) * width
                    for row in range(top, min(top + tile, end)):
                        x, into = a[row * whole + k], row * columns
                        for j in range(columns):
                            step(sums, lost, into + j, x, b[at + j], products, totals)


# Magnitudes [from, from + span) whose products the carrier holds, if they are short enough; then those whose products'
# errors it holds. In float32 products of the former end above 2^-149 and lie below 2^126, and so do the latter's
# errors. In float64 sums of such products and numbers of any format are held, too.
_FROM: Any = ByWidth(uint32(0x20000000), uint64(0x21F0000000000000))  # 2^-63, 2^-480
_SPAN: Any = ByWidth(uint32(0x3F000000), uint64(0x3C00000000000000))  # to 2^63, 2^480
_ORDINARY_FROM: Any = ByWidth(uint32(0x26000000), uint64(0x21F0000000000000))  # 2^-51, 2^-480
_ORDINARY_SPAN: Any = ByWidth(uint32(0x39000000), uint64(0x3C00000000000000))
# A significand is short if these bits are zero: it has at most 12 bits of 24, or 26 of 53.
_LONG: Any = ByWidth(uint32(0xFFF), uint64(0x7FFFFFF))

INEXACT = 1 << 30
"""A product may be a value that the carrier does not hold."""
EXTREME = 1 << 31
"""A product's error may be a value that the carrier does not hold."""


def scan(x: Numbers, n: Int, answer: Patterns) -> None:
    """Computes flags for products of two elements of ``x``; the flags of two scanned tensors are combined with OR."""
    found = unsigned(0)
    for i in range(n):
        magnitude = unsigned(bits_of(x[i]) & MAGNITUDE)
        # An unsigned difference wraps around.
        far = unsigned(INEXACT) if unsigned(magnitude - _FROM) >= _SPAN else unsigned(magnitude & _LONG)
        extreme = unsigned(EXTREME) if unsigned(magnitude - _ORDINARY_FROM) >= _ORDINARY_SPAN else unsigned(0)
        usual = (magnitude != unsigned(0)) & (magnitude < INFINITE)
        found = unsigned(found | (unsigned(far | extreme) if usual else unsigned(0)))
    answer[0] = found
