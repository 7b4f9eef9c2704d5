"""The loop of fused sums, in the Python that numba compiles; vectorized over columns."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy import int64, uint32, uint64

from ...formats.cpu.arguments import Int, Integers, Numbers
from ...formats.cpu.widths import (
    INFINITE,
    MAGNITUDE,
    STORED,
    ByWidth,
    bits_of,
    float_of,
    real,
    signed,
    unfilled,
    unsigned,
)

NOTHING = -10_000
"""The exponent of zero."""

TILE = 64
"""Number of columns with sums that are computed together; they and a block of the right matrix stay in the cache."""

_INFINITY: Any = ByWidth(np.float32(np.inf), np.float64(np.inf))
_ZERO: Any = ByWidth(np.float32(0.0), np.float64(0.0))
_EXPONENT: Any = ByWidth(uint32(0xFF), uint64(0x7FF))
_BIAS: Any = ByWidth(np.int32(127), int64(1023))
_LEAST: Any = ByWidth(np.int32(-126), int64(-1022))


@njit(inline="always")  # type: ignore[untyped-decorator]
def _normal_power(exponent: Any) -> Any:
    """2^exponent, for the exponents of normal values of the carrier."""
    return float_of(unsigned(unsigned(signed(exponent + _BIAS)) << STORED))


@njit(inline="always")  # type: ignore[untyped-decorator]
def _exponent(x: Any, least: Any) -> Any:
    """floor(log2 |x|), at least ``least``."""
    return max(signed(signed(unsigned(unsigned(bits_of(x) >> STORED) & _EXPONENT)) - _BIAS), least)


@njit(inline="always")  # type: ignore[untyped-decorator]
def _converted(x: Any, bits: Any, emin: Any, beyond: Any, to_nearest: Any) -> Any:
    """``x`` as a value of a float format, cut towards zero or rounded to nearest-even; infinity from ``beyond`` on."""
    exponent = _exponent(x, emin)
    scaled = x * _normal_power(signed(bits - exponent))
    value = (np.rint(scaled) if to_nearest else np.trunc(scaled)) * _normal_power(signed(exponent - bits))
    infinite = _INFINITY if value > _ZERO else -_INFINITY
    value = infinite if abs(value) >= beyond else value + _ZERO  # -0 + 0 is +0
    return x if unsigned(bits_of(x) & MAGNITUDE) >= INFINITE else value


@njit(inline="always")  # type: ignore[untyped-decorator]
def _largest_exponents(memory: Any, chain: Any, a: Any, b: Any, places: Any, shape: Any, emin: Any, floor: Any) -> None:
    """Finds E of each column: of the products and of the accumulator, which is their addend."""
    (out, row, right), (start, end, width, columns) = places, shape  # Offsets of the sums, of a's row and of b.
    for j in range(width):
        addend = chain[out + j]
        exponent = _exponent(addend, emin) if addend != _ZERO else signed(NOTHING)
        memory[j] = bits_of(real(max(exponent, floor)))
    for k in range(start, end):
        exponent_of_a, at = a[row + k], right + k * columns
        for j in range(width):
            memory[j] = bits_of(max(float_of(memory[j]), real(exponent_of_a + b[at + j])))


@njit(inline="always")  # type: ignore[untyped-decorator]
def _add_block(
    memory: Any, chain: Any, a: Any, b: Any, places: Any, shape: Any, fraction_bits: Any, group: Any
) -> None:
    """Adds all terms as multiples of 2^(E - F), cut towards zero; the carrier holds their sums exactly.

    A term is a product, or the exact sum of the products of a group.
    """
    (out, row, right), (start, end, width, columns) = places, shape
    # Four arrays share the memory: units, their reciprocals, sums, and sums of a group.
    scales, sums, of_group = int64(TILE), int64(2 * TILE), int64(3 * TILE)
    for j in range(width):
        largest = float_of(memory[j])
        exponent = max(signed(largest), _LEAST) if largest > real(NOTHING / 2) else signed(0)  # All zeros: any scale.
        scale = _normal_power(signed(fraction_bits - exponent))
        memory[j] = bits_of(_normal_power(signed(exponent - fraction_bits)))
        memory[scales + j] = bits_of(scale)
        memory[sums + j] = bits_of(np.trunc(chain[out + j] * scale))  # The accumulator, in units of 2^(E - F).
        memory[of_group + j] = bits_of(_ZERO)
    for k in range(start, end):
        x, at = a[row + k], right + k * columns
        if group == 1:
            for j in range(width):
                term = np.trunc(real(real(x * b[at + j]) * float_of(memory[scales + j])))
                memory[sums + j] = bits_of(real(float_of(memory[sums + j]) + term))
            continue
        for j in range(width):
            memory[of_group + j] = bits_of(real(float_of(memory[of_group + j]) + real(x * b[at + j])))
        if (k - start + 1) % group == 0 or k + 1 == end:
            for j in range(width):
                term = np.trunc(real(float_of(memory[of_group + j]) * float_of(memory[scales + j])))
                memory[sums + j] = bits_of(real(float_of(memory[sums + j]) + term))
                memory[of_group + j] = bits_of(_ZERO)


def fused_products(
    a: Numbers, b: Numbers, a_exponents: Numbers, b_exponents: Numbers, target: Numbers, chain: Numbers, first: Int,
    last: Int, rows: Int, depth: Int, columns: Int, settings: Integers,
) -> None:  # fmt: skip
    """Computes the rows from ``first`` to before ``last`` of products of matrices, by chains of fused sums.

    Args:
        a: (batches, rows, depth), finite.
        b: (batches, depth, columns), finite.
        a_exponents: The exponent of each element of ``a``; :data:`NOTHING` for zero.
        b_exponents: The exponent of each element of ``b``.
        target: (batches, rows, columns), zeros.
        chain: (batches, rows, columns), the addends of the first blocks; the accumulators meanwhile.
        first: The first row, counted over all batches.
        last: One after the last row.
        rows: Number of rows of each batch.
        depth: Number of products of each sum.
        columns: Number of columns.
        settings: L, F, significand bits, emin and emax of the result, whether it is rounded to nearest, the floor of E,
            the number of products after which the chain restarts (0: never), and of products in a group.
    """
    block, restart, to_nearest = settings[0], settings[7], settings[5] != int64(0)
    fraction_bits, bits = signed(settings[1]), signed(settings[2])
    emin, floor = signed(settings[3]), signed(settings[6])
    beyond = _INFINITY if settings[4] + 1 > int64(_BIAS) else _normal_power(signed(settings[4] + 1))
    memory = unfilled()  # no argument overlaps it, so the loops are vectorized without a test
    for left in range(0, columns, TILE):
        width = min(int64(TILE), columns - left)
        for start in range(0, depth, block):
            end = min(start + block, depth)
            restarts = restart > 0 and (end == depth or end % restart == 0)  # Blocks divide the distance of restarts.
            for row in range(first, last):
                out = row * columns + left
                places = out, row * depth, (row // rows) * depth * columns + left
                shape = start, end, width, columns
                _largest_exponents(memory, chain, a_exponents, b_exponents, places, shape, emin, floor)
                _add_block(memory, chain, a, b, places, shape, fraction_bits, settings[8])
                for j in range(width):
                    total = real(float_of(memory[2 * TILE + j]) * float_of(memory[j]))
                    chain[out + j] = _converted(total, bits, emin, beyond, to_nearest)
                for j in range(width if restarts else int64(0)):
                    target[out + j] = real(np.float32(target[out + j] + chain[out + j]))
                    chain[out + j] = _ZERO
    for i in range(first * columns, last * columns if restart == 0 else first * columns):
        target[i] = chain[i]
