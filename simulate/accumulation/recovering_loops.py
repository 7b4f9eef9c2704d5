"""Sequential accumulation of rounded products in float32 alone, where float32 holds the errors of products.

As :mod:`.fast_loops`, for numbers of up to 24 significant bits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from numba import njit
from numpy import uint32

from ...formats.cpu.bits import bits_of32
from ...formats.families.floats import FP32
from ..exact.error_free import fma32, odd32
from .fast_loops import (
    LARGEST_M,
    LARGEST_M_ROUNDED_TWICE,
    chain_parameters32,
    chained32,
    chains,
    nearest32,
    parameters32,
    sum32,
)

if TYPE_CHECKING:
    from ...formats import FloatFormat


def loop(product: FloatFormat | None, total: FloatFormat, *, compensated: bool) -> Any | None:
    """The loop for products rounded to ``product`` and sums to ``total``; None if the float64 loops are as fast."""
    if product is None or compensated:
        return None
    if any(fmt.significand_bits > LARGEST_M and fmt != FP32 for fmt in (product, total)):
        return None
    harmless = product.significand_bits <= total.significand_bits <= LARGEST_M_ROUNDED_TWICE
    return rounded_recovering_chain32 if harmless and chains(product) and chains(total) else rounded_recovering32


@njit(inline="always")  # type: ignore[untyped-decorator]
def _product(x: Any, y: Any, odd: Any) -> Any:
    """The bits of ``x * y`` rounded to odd, if its error is a float32."""
    product = x * y
    return odd32(product, fma32(x, y, -product), odd)


def rounded_recovering_chain32(
    a: Any, b: Any, acc: Any, batches: Any, rows: Any, depth: Any, columns: Any, slab: Any, tile: Any, q: Any, p: Any
) -> None:
    """``acc = round(acc + round(a b))`` for formats that ``_chain32`` rounds; sums are rounded twice."""
    product_chain, chain, odd = chain_parameters32(q), chain_parameters32(p), uint32(1)
    for batch in range(batches):
        for start in range(0, depth, slab):
            for first in range(batch * rows, (batch + 1) * rows, tile):
                for k in range(start, min(start + slab, depth)):
                    at = (batch * depth + k) * columns
                    for row in range(first, min(first + tile, (batch + 1) * rows)):
                        x, into = a[row * depth + k], row * columns
                        for j in range(columns):
                            term = chained32(_product(x, b[at + j], odd), product_chain)
                            acc[into + j] = chained32(bits_of32(acc[into + j] + term), chain)


def rounded_recovering32(
    a: Any, b: Any, acc: Any, batches: Any, rows: Any, depth: Any, columns: Any, slab: Any, tile: Any, q: Any, p: Any
) -> None:
    """``acc = round(acc + round(a b))`` for any formats."""
    (product_words, product_odd), (words, odd) = parameters32(q), parameters32(p)
    for batch in range(batches):
        for start in range(0, depth, slab):
            for first in range(batch * rows, (batch + 1) * rows, tile):
                for k in range(start, min(start + slab, depth)):
                    at = (batch * depth + k) * columns
                    for row in range(first, min(first + tile, (batch + 1) * rows)):
                        x, into = a[row * depth + k], row * columns
                        for j in range(columns):
                            term = nearest32(_product(x, b[at + j], product_odd), product_words)
                            acc[into + j] = sum32(acc[into + j], term, words, odd)
