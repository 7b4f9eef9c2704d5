"""Sequential accumulation in float32 alone, for operands whose products float32 holds exactly.

Sums are rounded to odd in float32, then to the format, or, where that is known to be harmless, rounded twice; see
:mod:`.loops`, which also tells the arguments. 512-bit vectors hold twice as many
numbers as in float64.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from numba import njit
from numpy import uint32

from ...formats.cpu.bits import bits_of32, float_of32
from ...formats.cpu.numbers.floats_nearest import _any32, _chain32, _chain_constants
from ...formats.families.floats import FP32
from ..exact.error_free import odd32, two_sum

if TYPE_CHECKING:
    from ...formats import FloatFormat

LARGEST_M = 21
"""Rounding to odd in float32 needs two bits more than the format has."""
LARGEST_M_ROUNDED_TWICE = 10
"""See :func:`loop`."""


def loop(product: FloatFormat | None, total: FloatFormat, *, compensated: bool) -> Any | None:
    """The loop for products rounded to ``product``, if it is not None, and sums to ``total``; None if there is none."""
    if total.significand_bits > LARGEST_M and total != FP32:
        return None
    chained = all(chains(fmt) for fmt in (product, total) if fmt is not None)
    # Rounding a sum twice, to float32 and to a format of m bits, is harmless if no summand has more than m bits, and
    # 2 (m + 1) + 2 <= 24 (Figueroa, "When is double rounding innocuous?", 1995).
    m = total.significand_bits
    harmless = (m if product is None else product.significand_bits) <= m <= LARGEST_M_ROUNDED_TWICE
    if compensated:
        if not (chained and harmless):
            return None
        return compensated_fused_chain32 if product is None else compensated_rounded_chain32
    if product is None:
        return fused_chain32 if chained else fused32
    if harmless:
        return rounded_chain32 if chained else rounded_twice32
    return rounded32


def chains(fmt: FloatFormat) -> bool:
    """Whether ``_chain32`` rounds to the format."""
    return fmt.parameters(torch.float32).rounds_by_addition(torch.float32)


def scan32(x: Any, n: Any, answer: Any) -> None:
    """What products of two of ``x`` are like, as the bits of ``answer``: see ``EXACT`` and ``RECOVERABLE``."""
    found = uint32(0)
    for i in range(n):
        magnitude = uint32(bits_of32(x[i]) & uint32(0x7FFFFFFF))
        # Outside [2^-63, 2^63) and [2^-51, 2^63); an unsigned difference wraps around.
        far = uint32(0x1000) if uint32(magnitude - uint32(0x20000000)) >= uint32(0x3F000000) else uint32(0)
        near = uint32(0x2000) if uint32(magnitude - uint32(0x26000000)) >= uint32(0x39000000) else uint32(0)
        outside = uint32(0) if magnitude == uint32(0) else uint32(far | near)
        here = uint32(outside | uint32(magnitude & uint32(0xFFF)))
        found = uint32(found | (uint32(0) if magnitude >= uint32(0x7F800000) else here))
    answer[0] = float_of32(found)


EXACT = 0x1FFF
"""None of these bits: at most 12 significant bits and magnitudes in [2^-63, 2^63), or 0, infinity, NaN: products end
above 2^-149 and lie below 2^126, so float32 holds them."""
RECOVERABLE = 0x2000
"""Not this bit: magnitudes in [2^-51, 2^63), or as before: a product's rounding error ends above 2^-149, so float32
holds it."""


@njit(inline="always")  # type: ignore[untyped-decorator]
def parameters32(p: Any) -> Any:
    """What ``_any32`` wants, and the word for ``odd32``."""
    words = bits_of32(p[0]), bits_of32(p[1]), bits_of32(p[2]), p[3], bits_of32(p[6]), bits_of32(p[7]), bits_of32(p[8])
    return words, bits_of32(p[15])


@njit(inline="always")  # type: ignore[untyped-decorator]
def chain_parameters32(p: Any) -> Any:
    """What ``_chain32`` wants."""
    return _chain_constants((bits_of32(p[0]), bits_of32(p[1]), bits_of32(p[2])))


@njit(inline="always")  # type: ignore[untyped-decorator]
def nearest32(bits: Any, words: Any) -> Any:
    """The number with these bits, rounded to any format."""
    return float_of32(_any32(bits, words[0], words[1], words[2], words[3], words[4], words[5], words[6]))


@njit(inline="always")  # type: ignore[untyped-decorator]
def chained32(bits: Any, chain: Any) -> Any:
    """The number with these bits, rounded to a format that ``_chain32`` rounds."""
    return float_of32(_chain32(bits, chain[0], chain[1], chain[2], chain[3], chain[4]))


@njit(inline="always")  # type: ignore[untyped-decorator]
def sum32(x: Any, y: Any, words: Any, odd: Any) -> Any:
    """``x + y`` rounded once."""
    total, error = two_sum(x, y)
    return nearest32(odd32(total, error, odd), words)


def fused_chain32(
    a: Any, b: Any, acc: Any, batches: Any, rows: Any, depth: Any, columns: Any, slab: Any, tile: Any, p: Any
) -> None:
    """``acc = round(acc + a b)`` for formats that ``_chain32`` rounds."""
    chain, odd = chain_parameters32(p), uint32(1)
    for batch in range(batches):
        for start in range(0, depth, slab):
            for first in range(batch * rows, (batch + 1) * rows, tile):
                for k in range(start, min(start + slab, depth)):
                    at = (batch * depth + k) * columns
                    for row in range(first, min(first + tile, (batch + 1) * rows)):
                        x, into = a[row * depth + k], row * columns
                        for j in range(columns):
                            total, error = two_sum(acc[into + j], x * b[at + j])
                            acc[into + j] = chained32(odd32(total, error, odd), chain)


def fused32(
    a: Any, b: Any, acc: Any, batches: Any, rows: Any, depth: Any, columns: Any, slab: Any, tile: Any, p: Any
) -> None:
    """``acc = round(acc + a b)`` for any formats."""
    words, odd = parameters32(p)
    for batch in range(batches):
        for start in range(0, depth, slab):
            for first in range(batch * rows, (batch + 1) * rows, tile):
                for k in range(start, min(start + slab, depth)):
                    at = (batch * depth + k) * columns
                    for row in range(first, min(first + tile, (batch + 1) * rows)):
                        x, into = a[row * depth + k], row * columns
                        for j in range(columns):
                            acc[into + j] = sum32(acc[into + j], x * b[at + j], words, odd)


def rounded_chain32(
    a: Any, b: Any, acc: Any, batches: Any, rows: Any, depth: Any, columns: Any, slab: Any, tile: Any, q: Any, p: Any
) -> None:
    """``acc = round(acc + round(a b))`` for formats that ``_chain32`` rounds; sums are rounded twice."""
    product_chain, chain = chain_parameters32(q), chain_parameters32(p)
    for batch in range(batches):
        for start in range(0, depth, slab):
            for first in range(batch * rows, (batch + 1) * rows, tile):
                for k in range(start, min(start + slab, depth)):
                    at = (batch * depth + k) * columns
                    for row in range(first, min(first + tile, (batch + 1) * rows)):
                        x, into = a[row * depth + k], row * columns
                        for j in range(columns):
                            term = chained32(bits_of32(x * b[at + j]), product_chain)
                            acc[into + j] = chained32(bits_of32(acc[into + j] + term), chain)


def rounded_twice32(
    a: Any, b: Any, acc: Any, batches: Any, rows: Any, depth: Any, columns: Any, slab: Any, tile: Any, q: Any, p: Any
) -> None:
    """As :func:`rounded_chain32`, for any formats."""
    product_words, words = parameters32(q)[0], parameters32(p)[0]
    for batch in range(batches):
        for start in range(0, depth, slab):
            for first in range(batch * rows, (batch + 1) * rows, tile):
                for k in range(start, min(start + slab, depth)):
                    at = (batch * depth + k) * columns
                    for row in range(first, min(first + tile, (batch + 1) * rows)):
                        x, into = a[row * depth + k], row * columns
                        for j in range(columns):
                            term = nearest32(bits_of32(x * b[at + j]), product_words)
                            acc[into + j] = nearest32(bits_of32(acc[into + j] + term), words)


def rounded32(
    a: Any, b: Any, acc: Any, batches: Any, rows: Any, depth: Any, columns: Any, slab: Any, tile: Any, q: Any, p: Any
) -> None:
    """``acc = round(acc + round(a b))`` for any formats."""
    product_words, (words, odd) = parameters32(q)[0], parameters32(p)
    for batch in range(batches):
        for start in range(0, depth, slab):
            for first in range(batch * rows, (batch + 1) * rows, tile):
                for k in range(start, min(start + slab, depth)):
                    at = (batch * depth + k) * columns
                    for row in range(first, min(first + tile, (batch + 1) * rows)):
                        x, into = a[row * depth + k], row * columns
                        for j in range(columns):
                            term = nearest32(bits_of32(x * b[at + j]), product_words)
                            acc[into + j] = sum32(acc[into + j], term, words, odd)


@njit(inline="always")  # type: ignore[untyped-decorator]
def _compensate(before: Any, summand: Any, chain: Any) -> Any:
    """The rest of a step of Kahan's summation, once what was lost has been taken from the summand: new sum and lost."""
    after = chained32(bits_of32(before + summand), chain)
    return after, chained32(bits_of32(chained32(bits_of32(after - before), chain) - summand), chain)


def compensated_fused_chain32(
    a: Any, b: Any, acc: Any, lost: Any, batches: Any, rows: Any, depth: Any, columns: Any, slab: Any, tile: Any, p: Any
) -> None:
    """Kahan's summation of exact products, for formats that ``_chain32`` rounds; sums are rounded twice."""
    chain, odd = chain_parameters32(p), uint32(1)
    for batch in range(batches):
        for start in range(0, depth, slab):
            for first in range(batch * rows, (batch + 1) * rows, tile):
                for k in range(start, min(start + slab, depth)):
                    at = (batch * depth + k) * columns
                    for row in range(first, min(first + tile, (batch + 1) * rows)):
                        x, into = a[row * depth + k], row * columns
                        for j in range(columns):
                            total, error = two_sum(x * b[at + j], -lost[into + j])
                            summand = chained32(odd32(total, error, odd), chain)
                            acc[into + j], lost[into + j] = _compensate(acc[into + j], summand, chain)


def compensated_rounded_chain32(
    a: Any,
    b: Any,
    acc: Any,
    lost: Any,
    batches: Any,
    rows: Any,
    depth: Any,
    columns: Any,
    slab: Any,
    tile: Any,
    q: Any,
    p: Any,
) -> None:
    """Kahan's summation of products rounded by ``q``, as :func:`compensated_fused_chain32`."""
    product_chain, chain = chain_parameters32(q), chain_parameters32(p)
    for batch in range(batches):
        for start in range(0, depth, slab):
            for first in range(batch * rows, (batch + 1) * rows, tile):
                for k in range(start, min(start + slab, depth)):
                    at = (batch * depth + k) * columns
                    for row in range(first, min(first + tile, (batch + 1) * rows)):
                        x, into = a[row * depth + k], row * columns
                        for j in range(columns):
                            term = chained32(bits_of32(x * b[at + j]), product_chain)
                            summand = chained32(bits_of32(term - lost[into + j]), chain)
                            acc[into + j], lost[into + j] = _compensate(acc[into + j], summand, chain)
