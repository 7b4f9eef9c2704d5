"""Sequential accumulation in float32 alone, where that is exact enough: every product and every sum rounded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from numba import njit

from roundoff.formats.cpu_kernels import _cheapest
from roundoff.formats.nearest_loops import _any32, _chain32, _chain_constants
from roundoff.formats.reinterpret import bits_of32, float_of32

if TYPE_CHECKING:
    from roundoff.formats import FloatFormat


def loop(product: FloatFormat | None, total: FloatFormat) -> Any | None:
    """The float32 loop for products rounded to ``product`` and sums to ``total``, or None if it must be float64.

    Operands must have at most 12 significant bits, so that their products have 24. Rounding a sum twice, to float32 and
    to ``total``, is harmless if both summands have at most as many significand bits as ``total``, at most 10.
    """
    if product is None or not product.significand_bits <= total.significand_bits <= 10:
        return None
    lowest = product.emin - (product.significand_bits if product.subnormals else 0)
    # Products below float32's normal numbers are inexact: they must be far below what could round to the quantum.
    if lowest - 1 <= -126 or not (product.fits_in(torch.float32) and total.fits_in(torch.float32)):
        return None
    chains = all(_cheapest(fmt.parameters(torch.float32), torch.float32) == "chain32" for fmt in (product, total))
    return rounded_chain32 if chains else rounded_any32


def rounded_chain32(
    a: Any, b: Any, acc: Any, batches: Any, rows: Any, depth: Any, columns: Any, slab: Any, q: Any, p: Any
) -> None:
    """``acc = round(acc + round(a b))`` for formats that ``_chain32`` rounds; see ``rounded64``."""
    smallest_q, top_q, spread_q, grow_q, shrink_q = _chain_constants(
        (bits_of32(q[0]), bits_of32(q[1]), bits_of32(q[2]))
    )
    smallest, top, spread, grow, shrink = _chain_constants((bits_of32(p[0]), bits_of32(p[1]), bits_of32(p[2])))
    for batch in range(batches):
        for start in range(0, depth, slab):
            for row in range(batch * rows, (batch + 1) * rows):
                into = row * columns
                for k in range(start, min(start + slab, depth)):
                    x, at = a[row * depth + k], (batch * depth + k) * columns
                    for j in range(columns):
                        bits = bits_of32(x * b[at + j])
                        term = float_of32(_chain32(bits, smallest_q, top_q, spread_q, grow_q, shrink_q))
                        bits = bits_of32(acc[into + j] + term)
                        acc[into + j] = float_of32(_chain32(bits, smallest, top, spread, grow, shrink))


@njit(inline="always")  # type: ignore[untyped-decorator]
def _any(value: Any, words: Any) -> Any:
    bits = bits_of32(value)
    return float_of32(_any32(bits, words[0], words[1], words[2], words[3], words[4], words[5], words[6]))


@njit(inline="always")  # type: ignore[untyped-decorator]
def _parameters(p: Any) -> Any:
    """What ``_any32`` wants."""
    return bits_of32(p[0]), bits_of32(p[1]), bits_of32(p[2]), p[3], bits_of32(p[6]), bits_of32(p[7]), bits_of32(p[8])


def rounded_any32(
    a: Any, b: Any, acc: Any, batches: Any, rows: Any, depth: Any, columns: Any, slab: Any, q: Any, p: Any
) -> None:
    """As :func:`rounded_chain32`, for any float formats."""
    product_words, words = _parameters(q), _parameters(p)
    for batch in range(batches):
        for start in range(0, depth, slab):
            for row in range(batch * rows, (batch + 1) * rows):
                into = row * columns
                for k in range(start, min(start + slab, depth)):
                    x, at = a[row * depth + k], (batch * depth + k) * columns
                    for j in range(columns):
                        term = _any(x * b[at + j], product_words)
                        acc[into + j] = _any(acc[into + j] + term, words)
