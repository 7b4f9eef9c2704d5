"""One step of an accumulation (a product goes into a running sum), and the loop over all steps, for numba.

A step is put together from parts (:class:`.KernelPart`), which :mod:`.choice` chooses: how numbers are rounded to a
format, how products and sums are formed, and whether the error of a sum is kept. Each serves both carriers.

Sums are formed exactly and rounded once: the carrier's sum is rounded to odd with the help of its error, after which
rounding to at least two bits fewer is correct (Boldo and Melquiond, "Emulation of FMA and correctly rounded sums:
proved algorithms using rounding to odd", 2008).

A format ``f`` is a pair: the constants of its rounding, and 1, or 0 where the carrier itself is the format and nothing
is rounded to odd. ``q`` is the format of products, ``p`` of sums.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy import uint32, uint64

from ...formats.cpu.arguments import Int, Numbers, Patterns
from ...formats.cpu.bits import bits_of64
from ...formats.cpu.numbers.grids import within_turn
from ...formats.cpu.tail import on_grid
from ...formats.cpu.widths import INFINITE, MAGNITUDE, ByWidth, KernelPart, bits_of, float_of, real, unsigned
from ..rounded_once.error_free import (
    LARGEST,
    fma32,
    fma64,
    multiply_add64,
    multiply_add_anywhere64,
    odd32,
    odd64,
    product_anywhere64,
    two_sum,
)

_fma: Any = ByWidth(fma32, fma64)
_odd: Any = ByWidth(odd32, odd64)

# Numbers rounded to a format.

parameters: Any = KernelPart()
"""Reads the parameters of a format from its words."""
constants: Any = KernelPart()
"""Derives the constants of ``rounded`` from the parameters."""
rounded: Any = KernelPart()
narrower: Any = KernelPart()
"""Whether it is known that the carrier itself is not the format."""


@njit(inline="always")  # type: ignore[untyped-decorator]
def read_format(words: Any) -> Any:
    """The pair encoded by the words at an address: the parameters, 15 words, then 1, or 0."""
    return constants(parameters(words)), unsigned(1) if narrower else words[15]


@njit(inline="always")  # type: ignore[untyped-decorator]
def nearest(bits: Any, f: Any) -> Any:
    """The number with some bits, rounded to a format."""
    return float_of(rounded(bits, f[0]))


# Fixed point, in float64.


@njit(inline="always")  # type: ignore[untyped-decorator]
def grid_parameters(words: Any) -> Any:
    """The reciprocal of the distance of neighbours; the distance; the ends of the codes; their count if they wrap."""
    return float_of(words[0]), float_of(words[1]), float_of(words[2]), float_of(words[3]), float_of(words[4])


@njit(inline="always")  # type: ignore[untyped-decorator]
def to_grid(bits: Any, grid: Any) -> Any:
    """A number's ``bits`` rounded to fixed point: codes beyond the ends saturate, or wrap as two's complement does."""
    inverse, scale, low, high, turn = grid
    code = np.rint(float_of(bits) * inverse)
    if turn == real(0.0):
        return bits_of(on_grid(code + real(0.0), scale, real(0.0), low, high))
    code = code * real(0.0) if abs(code) == real(np.inf) else code  # an infinity has no code: NaN
    return bits_of(within_turn(code, turn, real(1.0) / turn, low, high) * scale)


# Sums.

add: Any = KernelPart()
"""``x + y`` rounded to a format."""


@njit(inline="always")  # type: ignore[untyped-decorator]
def add_once(x: Any, y: Any, f: Any) -> Any:
    """Rounds once."""
    total, error = two_sum(x, y)
    return nearest(_odd(total, error, f[1]), f)


@njit(inline="always")  # type: ignore[untyped-decorator]
def add_twice(x: Any, y: Any, f: Any) -> Any:
    """Rounds to the carrier first: see :func:`~roundoff.simulate.accumulation.choice.choose`."""
    return nearest(bits_of(x + y), f)


# Products.

product: Any = KernelPart()
"""The bits of ``x * y``, rounded to odd for a format."""


@njit(inline="always")  # type: ignore[untyped-decorator]
def product_exact(x: Any, y: Any, _f: Any) -> Any:
    """Multiplies numbers with a product that the carrier holds."""
    return bits_of(x * y)


@njit(inline="always")  # type: ignore[untyped-decorator]
def product_ordinary(x: Any, y: Any, f: Any) -> Any:
    """Multiplies numbers with a product error that the carrier holds."""
    rounded = x * y
    return _odd(rounded, _fma(x, y, -rounded), f[1])


@njit(inline="always")  # type: ignore[untyped-decorator]
def product_anywhere(x: Any, y: Any, f: Any) -> Any:
    """Multiplies any numbers, in float64."""
    return product_anywhere64(x, y) if f[1] != unsigned(0) else bits_of(x * y)


# A product and a sum.

add_product: Any = KernelPart()
"""``z + x * y``."""


@njit(inline="always")  # type: ignore[untyped-decorator]
def add_rounded(z: Any, x: Any, y: Any, q: Any, p: Any) -> Any:
    """The product is rounded, then the sum."""
    return add(z, nearest(product(x, y, q), q), p)


@njit(inline="always")  # type: ignore[untyped-decorator]
def add_rounded_only(z: Any, x: Any, y: Any, q: Any, _p: Any) -> Any:
    """The product is rounded, the sum is the carrier's."""
    return z + nearest(product(x, y, q), q)


@njit(inline="always")  # type: ignore[untyped-decorator]
def add_summand(z: Any, _x: Any, y: Any, _q: Any, p: Any) -> Any:
    """Rounds once; where ``x`` is 1."""
    return add_once(z, y, p)


@njit(inline="always")  # type: ignore[untyped-decorator]
def fused_exact(z: Any, x: Any, y: Any, _q: Any, p: Any) -> Any:
    """Rounds once; for numbers with a product that the carrier represents."""
    return add_once(z, x * y, p)


@njit(inline="always")  # type: ignore[untyped-decorator]
def fused_ordinary(z: Any, x: Any, y: Any, _q: Any, p: Any) -> Any:
    """Rounds once; for numbers with a product error that the carrier, float64, represents."""
    total, error = multiply_add64(x, y, z)
    plain = x * y + z
    bits = odd64(total, error, p[1])
    bits = bits_of64(plain) if total == 0.0 else bits  # A zero has the sign of the plain sum.
    return nearest(bits if abs(plain) <= LARGEST else bits_of64(plain), p)


@njit(inline="always")  # type: ignore[untyped-decorator]
def fused_anywhere(z: Any, x: Any, y: Any, _q: Any, p: Any) -> Any:
    """Rounds once; for any numbers, in float64."""
    return nearest(multiply_add_anywhere64(x, y, z) if p[1] != unsigned(0) else bits_of64(fma64(x, y, z)), p)


# Whole steps.

step: Any = KernelPart()
"""``x * y`` into the sum ``sums[i]``."""


@njit(inline="always")  # type: ignore[untyped-decorator]
def plain_step(sums: Any, _lost: Any, i: Any, x: Any, y: Any, q: Any, p: Any) -> None:
    """Adds a product to the sum, without a correction."""
    sums[i] = add_product(sums[i], x, y, q, p)


@njit(inline="always")  # type: ignore[untyped-decorator]
def compensated_step(sums: Any, lost: Any, i: Any, x: Any, y: Any, q: Any, p: Any) -> None:
    """Kahan's summation: the error of a sum, ``lost[i]``, is subtracted from the next summand."""
    before = sums[i]
    summand = add_product(-lost[i], x, y, q, p)
    after = add(before, summand, p)
    sums[i] = after
    lost[i] = add(add(after, -before, p), -summand, p)


def accumulate(
    a: Numbers, b: Numbers, sums: Numbers, lost: Numbers, batches: Int, rows: Int, depth: Int, columns: Int,
    whole: Int, width: Int, slab: Int, tile: Int, q: Patterns, p: Patterns,
) -> None:  # fmt: skip
    """The products of matrices into sums, k ascending, one :data:`step` for each; vectorised over columns.

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
        q: the words of the products' format; see :func:`read_format`.
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


# Magnitudes [from, from + span) with products that the carrier represents, if they are short enough; then magnitudes
# with product errors that it represents. In float32 these products and errors are multiples of 2^-149 below 2^126. In
# float64 also sums of such products and numbers of any format are representable.
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
    flags = unsigned(0)
    for i in range(n):
        magnitude = unsigned(bits_of(x[i]) & MAGNITUDE)
        # An unsigned difference wraps around.
        far = unsigned(INEXACT) if unsigned(magnitude - _FROM) >= _SPAN else unsigned(magnitude & _LONG)
        extreme = unsigned(EXTREME) if unsigned(magnitude - _ORDINARY_FROM) >= _ORDINARY_SPAN else unsigned(0)
        usual = (magnitude != unsigned(0)) & (magnitude < INFINITE)
        flags = unsigned(flags | (unsigned(far | extreme) if usual else unsigned(0)))
    answer[0] = flags
