"""The loops of low-precision accumulation, in the Python that numba compiles: vectorised over the outputs.

Addresses are those of carrier numbers, format parameters included (:class:`.FloatParameters`
packed, then one word that is 1 unless the carrier itself is the format). Matrices fill gapless memory: ``a`` is
(batches, rows, depth), ``b`` (batches, depth, columns), ``acc`` (batches, rows, columns). ``depth`` is walked in slabs
of ``slab``, so that the slab of ``b`` stays in cache while every row passes over it; the sum still runs in order.

Sums are formed exactly and rounded once: the carrier's sum is rounded to odd with the help of its error, after which
rounding to at least two bits fewer is correct (Boldo and Melquiond, "Emulation of FMA and correctly rounded sums:
proved algorithms using rounding to odd", 2008).
"""

from __future__ import annotations

from typing import Any

from numba import njit
from numpy import uint64

from ...formats.cpu.bits import bits_of32, bits_of64, float_of32, float_of64
from ...formats.cpu.numbers.floats_nearest import _any32, _any64
from ..exact.error_free import (
    LARGEST,
    fma64,
    multiply_add64,
    multiply_add_anywhere64,
    odd32,
    odd64,
    product_anywhere64,
    two_product64,
    two_sum,
)


@njit(inline="always")  # type: ignore[untyped-decorator]
def _parameters(p: Any) -> Any:
    """What ``_any64`` wants, and the word for ``odd64``."""
    words = bits_of64(p[0]), bits_of64(p[1]), bits_of64(p[2]), p[3], bits_of64(p[6]), bits_of64(p[7]), bits_of64(p[8])
    return words, bits_of64(p[15])


@njit(inline="always")  # type: ignore[untyped-decorator]
def _rounded(bits: Any, words: Any) -> Any:
    return float_of64(_any64(bits, words[0], words[1], words[2], words[3], words[4], words[5], words[6]))


@njit(inline="always")  # type: ignore[untyped-decorator]
def _sum(x: Any, y: Any, words: Any, odd: Any) -> Any:
    """``x + y`` rounded once."""
    total, error = two_sum(x, y)
    return _rounded(odd64(total, error, odd), words)


@njit(inline="always")  # type: ignore[untyped-decorator]
def _product(x: Any, y: Any, words: Any, odd: Any) -> Any:
    """``x * y`` rounded once; of ordinary numbers, see :func:`ordinary64`."""
    product, lost = two_product64(x, y)
    return _rounded(odd64(product, lost, odd), words)


@njit(inline="always")  # type: ignore[untyped-decorator]
def _any_product(x: Any, y: Any, words: Any, odd: Any) -> Any:
    """``x * y`` rounded once."""
    return _rounded(product_anywhere64(x, y) if odd != uint64(0) else bits_of64(x * y), words)


@njit(inline="always")  # type: ignore[untyped-decorator]
def _multiply_add(x: Any, y: Any, z: Any, words: Any, odd: Any) -> Any:
    """``x * y + z`` rounded once; ``x`` and ``y`` ordinary numbers."""
    total, error = multiply_add64(x, y, z)
    plain = x * y + z
    bits = odd64(total, error, odd)
    bits = bits_of64(plain) if total == 0.0 else bits  # the sign of zero is that of the plain sum
    return _rounded(bits if abs(plain) <= LARGEST else bits_of64(plain), words)


@njit(inline="always")  # type: ignore[untyped-decorator]
def _any_multiply_add(x: Any, y: Any, z: Any, words: Any, odd: Any) -> Any:
    """``x * y + z`` rounded once."""
    return _rounded(multiply_add_anywhere64(x, y, z) if odd != uint64(0) else bits_of64(fma64(x, y, z)), words)


def ordinary64(x: Any, n: Any, answer: Any) -> None:
    """What products of two of ``x`` are like, as the bits of ``answer``: see ``EXACT`` and ``ORDINARY``."""
    found = uint64(0)
    for i in range(n):
        magnitude = uint64(bits_of64(x[i]) & uint64(0x7FFFFFFFFFFFFFFF))
        # Outside [2^-480, 2^480).
        far = uint64(magnitude - uint64(0x21F0000000000000)) >= uint64(0x3C00000000000000)
        here = uint64(uint64(magnitude & uint64(EXACT)) | (uint64(ORDINARY) if far else uint64(0)))
        here = uint64(0) if magnitude == uint64(0) else here
        found = uint64(found | (uint64(0) if magnitude >= uint64(0x7FF0000000000000) else here))
    answer[0] = float_of64(found)


EXACT = 0x7FFFFFF
"""None of these bits: at most 26 significant bits."""
ORDINARY = 1 << 27
"""Not this bit: magnitudes in [2^-480, 2^480), or 0, infinity, NaN: float64 holds products and their errors, exact
products if none of the bits above is set either, and sums of products and numbers of any format."""


def fused64(  # noqa: C901  three loops in one
    a: Any, b: Any, acc: Any, batches: Any, rows: Any, depth: Any, columns: Any, slab: Any, tile: Any, kind: Any, p: Any
) -> None:
    """``acc = round(acc + a b)``; numbers are of a ``kind``: any (2), ordinary (1), or with exact products, too (0)."""
    words, odd = _parameters(p)
    for batch in range(batches):
        for start in range(0, depth, slab):
            for first in range(batch * rows, (batch + 1) * rows, tile):
                for k in range(start, min(start + slab, depth)):
                    at = (batch * depth + k) * columns
                    for row in range(first, min(first + tile, (batch + 1) * rows)):
                        x, into = a[row * depth + k], row * columns
                        if kind == 2:
                            for j in range(columns):
                                acc[into + j] = _any_multiply_add(x, b[at + j], acc[into + j], words, odd)
                        elif kind == 1:
                            for j in range(columns):
                                acc[into + j] = _multiply_add(x, b[at + j], acc[into + j], words, odd)
                        else:
                            for j in range(columns):
                                acc[into + j] = _sum(acc[into + j], x * b[at + j], words, odd)


def rounded64(
    a: Any, b: Any, acc: Any, batches: Any, rows: Any, depth: Any, columns: Any, slab: Any, tile: Any, kind: Any,
    q: Any, p: Any,
) -> None:  # fmt: skip
    """``acc = round(acc + round(a b))``, the product by ``q``, the sum by ``p``; ``kind`` as in :func:`fused64`."""
    product_words, product_odd = _parameters(q)
    words, odd = _parameters(p)
    for batch in range(batches):
        for start in range(0, depth, slab):
            for first in range(batch * rows, (batch + 1) * rows, tile):
                for k in range(start, min(start + slab, depth)):
                    at = (batch * depth + k) * columns
                    for row in range(first, min(first + tile, (batch + 1) * rows)):
                        x, into = a[row * depth + k], row * columns
                        if kind == 2:
                            for j in range(columns):
                                term = _any_product(x, b[at + j], product_words, product_odd)
                                acc[into + j] = _sum(acc[into + j], term, words, odd)
                        else:
                            for j in range(columns):
                                term = _product(x, b[at + j], product_words, product_odd)
                                acc[into + j] = _sum(acc[into + j], term, words, odd)


def partial64(
    a: Any,
    b: Any,
    acc: Any,
    batches: Any,
    rows: Any,
    depth: Any,
    columns: Any,
    first: Any,
    last: Any,
    kind: Any,
    q: Any,
) -> None:
    """``acc = acc + round(a b)`` for the ``k`` from ``first`` to before ``last``, the sum in float64."""
    product_words, product_odd = _parameters(q)
    for batch in range(batches):
        for row in range(batch * rows, (batch + 1) * rows):
            into = row * columns
            for k in range(first, last):
                x, at = a[row * depth + k], (batch * depth + k) * columns
                if kind == 2:
                    for j in range(columns):
                        acc[into + j] = acc[into + j] + _any_product(x, b[at + j], product_words, product_odd)
                else:
                    for j in range(columns):
                        acc[into + j] = acc[into + j] + _product(x, b[at + j], product_words, product_odd)


@njit(inline="always")  # type: ignore[untyped-decorator]
def _compensate(before: Any, summand: Any, words: Any, odd: Any) -> Any:
    """The rest of a step of Kahan's summation, once what was lost has been taken from the summand: new sum and lost."""
    after = _sum(before, summand, words, odd)
    return after, _sum(_sum(after, -before, words, odd), -summand, words, odd)


def compensated_fused64(
    a: Any, b: Any, acc: Any, lost: Any, batches: Any, rows: Any, depth: Any, columns: Any, slab: Any, tile: Any,
    kind: Any, p: Any,
) -> None:  # fmt: skip
    """Kahan's summation of exact products: ``y = round(a b - lost)``, and so on."""
    words, odd = _parameters(p)
    for batch in range(batches):
        for start in range(0, depth, slab):
            for first in range(batch * rows, (batch + 1) * rows, tile):
                for k in range(start, min(start + slab, depth)):
                    at = (batch * depth + k) * columns
                    for row in range(first, min(first + tile, (batch + 1) * rows)):
                        x, into = a[row * depth + k], row * columns
                        if kind == 2:
                            for j in range(columns):
                                summand = _any_multiply_add(x, b[at + j], -lost[into + j], words, odd)
                                acc[into + j], lost[into + j] = _compensate(acc[into + j], summand, words, odd)
                        else:
                            for j in range(columns):
                                summand = _multiply_add(x, b[at + j], -lost[into + j], words, odd)
                                acc[into + j], lost[into + j] = _compensate(acc[into + j], summand, words, odd)


def compensated_rounded64(
    a: Any, b: Any, acc: Any, lost: Any, batches: Any, rows: Any, depth: Any, columns: Any, slab: Any, tile: Any,
    kind: Any, q: Any, p: Any,
) -> None:  # fmt: skip
    """Kahan's summation of products rounded by ``q``."""
    product_words, product_odd = _parameters(q)
    words, odd = _parameters(p)
    for batch in range(batches):
        for start in range(0, depth, slab):
            for first in range(batch * rows, (batch + 1) * rows, tile):
                for k in range(start, min(start + slab, depth)):
                    at = (batch * depth + k) * columns
                    for row in range(first, min(first + tile, (batch + 1) * rows)):
                        x, into = a[row * depth + k], row * columns
                        for j in range(columns):
                            y = b[at + j]
                            # Rounding the sums takes longer than this choice.
                            if kind == 2:
                                term = _any_product(x, y, product_words, product_odd)
                            else:
                                term = _product(x, y, product_words, product_odd)
                            summand = _sum(term, -lost[into + j], words, odd)
                            acc[into + j], lost[into + j] = _compensate(acc[into + j], summand, words, odd)


def running64(acc: Any, summands: Any, count: Any, terms: Any, stride: Any, p: Any) -> None:
    """``acc = round(acc + summand)`` for ``terms`` rows of ``count`` summands, ``stride`` apart."""
    words, odd = _parameters(p)
    for term in range(terms):
        for j in range(count):
            acc[j] = _sum(acc[j], summands[term * stride + j], words, odd)


def compensated64(acc: Any, lost: Any, summands: Any, count: Any, terms: Any, stride: Any, p: Any) -> None:
    """As :func:`running64`, by Kahan's summation."""
    words, odd = _parameters(p)
    for term in range(terms):
        for j in range(count):
            summand = _sum(summands[term * stride + j], -lost[j], words, odd)
            acc[j], lost[j] = _compensate(acc[j], summand, words, odd)


def running32(acc: Any, summands: Any, count: Any, terms: Any, stride: Any, p: Any) -> None:
    """As :func:`running64`, in float32."""
    shift, smallest, largest, magic = bits_of32(p[0]), bits_of32(p[1]), bits_of32(p[2]), p[3]
    beyond, zero, flip, odd = bits_of32(p[6]), bits_of32(p[7]), bits_of32(p[8]), bits_of32(p[15])
    for term in range(terms):
        for j in range(count):
            total, error = two_sum(acc[j], summands[term * stride + j])
            bits = odd32(total, error, odd)
            acc[j] = float_of32(_any32(bits, shift, smallest, largest, magic, beyond, zero, flip))
