"""Exact sums of exact products, rounded once to the carrier: a Kulisch accumulator, in the Python that numba compiles.

The sum is an integer in units of 2^-2148, the last bit that a product of two float64 numbers can have, kept in limbs of
32 bits. Limbs are signed and 64 bits wide, so that carries wait until the end (Kulisch, "Computer Arithmetic and
Validity", 2013; for posits it is the quire).
"""

from __future__ import annotations

from typing import Any

from numba import njit, types
from numpy import int64, uint32, uint64

from ...formats.cpu.arguments import Int, Integers, Numbers
from ...formats.cpu.bits import bits_of64, float_of32, float_of64, left64, right64
from ...formats.cpu.tail import addend64
from ...formats.cpu.widths import ByWidth
from ..rounded_once.error_free import LARGEST

UNIT = -2148
"""Exponent of the unit."""
LIMBS = 140
"""More than 2^31 of the largest products need."""

_LOW = 0xFFFFFFFF
_FRACTION = (1 << 52) - 1


@njit(inline="always")  # type: ignore[untyped-decorator]
def _significand(bits: Any) -> Any:
    """The magnitude of a finite number as an integer, and the exponent of its unit, from 2^-1074."""
    field = int64(uint64(bits >> uint64(52)) & uint64(0x7FF))
    hidden = uint64(1 << 52) if field > int64(0) else uint64(0)
    return uint64(uint64(bits & uint64(_FRACTION)) | hidden), max(field, int64(1)) - int64(1)


@njit(inline="always")  # type: ignore[untyped-decorator]
def _add_product(limbs: Any, x: Any, y: Any) -> Any:
    """Adds ``x * y``, both finite; returns the first limb and the last that it changes."""
    x_bits, y_bits = bits_of64(x), bits_of64(y)
    (a, a_unit), (b, b_unit) = _significand(x_bits), _significand(y_bits)
    a0, a1, b0, b1 = a & uint64(_LOW), a >> uint64(32), b & uint64(_LOW), b >> uint64(32)
    # The product of 106 bits as four digits of 32.
    low, middle, other, high = a0 * b0, a0 * b1, a1 * b0, a1 * b1
    carry = uint64(uint64(low >> uint64(32)) + uint64(middle & uint64(_LOW)) + uint64(other & uint64(_LOW)))
    upper = uint64(high + uint64(middle >> uint64(32)) + uint64(other >> uint64(32)) + uint64(carry >> uint64(32)))
    position = a_unit + b_unit
    # The limb of the lowest digit, and the shift within it; shifted, the four digits extend over five limbs.
    shift, at = uint64(position & int64(31)), position >> int64(5)
    sign = int64(-1) if uint64(x_bits ^ y_bits) >> uint64(63) != uint64(0) else int64(1)
    term = uint64(uint64(low & uint64(_LOW)) << shift)
    limbs[at] += sign * int64(term & uint64(_LOW))
    term = uint64(uint64(uint64(carry & uint64(_LOW)) << shift) + uint64(term >> uint64(32)))
    limbs[at + 1] += sign * int64(term & uint64(_LOW))
    term = uint64(uint64(uint64(upper & uint64(_LOW)) << shift) + uint64(term >> uint64(32)))
    limbs[at + 2] += sign * int64(term & uint64(_LOW))
    term = uint64(uint64(uint64(upper >> uint64(32)) << shift) + uint64(term >> uint64(32)))
    limbs[at + 3] += sign * int64(term & uint64(_LOW))
    limbs[at + 4] += sign * int64(term >> uint64(32))
    return at, at + int64(4)


@njit(inline="always")  # type: ignore[untyped-decorator]
def _normalised(limbs: Any, first: Any, last: Any) -> Any:
    """Carries the limbs from ``first`` on into a magnitude of digits of 32 bits; returns the last one, and the sign."""
    carry, end = int64(0), last + int64(3)
    for i in range(first, end):
        value = limbs[i] + carry
        limbs[i] = value & int64(_LOW)
        carry = value >> int64(32)
    negative = carry < int64(0)
    if negative:  # The digits are the complement of the magnitude.
        carry = int64(1)
        for i in range(first, end):
            value = (limbs[i] ^ int64(_LOW)) + carry
            limbs[i] = value & int64(_LOW)
            carry = value >> int64(32)
    return end - int64(1), negative


@njit(inline="always")  # type: ignore[untyped-decorator]
def _digits(limbs: Any, at: Any, first: Any) -> Any:
    """Two digits, from ``at`` down, as one of 64 bits; below ``first`` there are zeros."""
    high = uint64(limbs[at]) if at >= first else uint64(0)
    low = uint64(limbs[at - int64(1)]) if at > first else uint64(0)
    return uint64(uint64(high << uint64(32)) | low)


@njit(inline="always")  # type: ignore[untyped-decorator]
def _rounded_bits(limbs: Any, first: Any, last: Any, negative: Any, target: Any, mode: Any, word: Any) -> Any:
    """The bits of the magnitude rounded to a carrier, which ``target`` describes."""
    precision, lowest, infinite, over = target
    positive_addend, negative_addend, parity, sticky = mode
    top = last
    while top > first and limbs[top] == int64(0):
        top -= int64(1)
    leading = uint64(limbs[top])  # Not zero, unless the sum is.
    if leading == uint64(0):
        return uint64(0)
    zeros = uint64(0)
    while uint64(leading >> uint64(uint64(31) - zeros)) == uint64(0):
        zeros = uint64(zeros + uint64(1))
    # 128 bits from the first that is set, and whether any is set below.
    one = _digits(limbs, top, first)
    two, three = _digits(limbs, top - int64(2), first), _digits(limbs, top - int64(4), first)
    above = uint64(left64(one, zeros) | right64(two, uint64(uint64(64) - zeros)))
    below = uint64(left64(two, zeros) | right64(three, uint64(uint64(64) - zeros)))
    lost = left64(three, zeros) != uint64(0)
    for i in range(first, top - int64(5)):
        lost = lost | (limbs[i] != int64(0))
    exponent = top * int64(32) + int64(31) - int64(zeros) + int64(UNIT)
    # Subnormal results drop more bits.
    drop = uint64(int64(64) - precision + max(lowest - exponent, int64(0)))
    whole = right64(above, drop)
    fraction = uint64(left64(above, uint64(uint64(64) - drop)) | right64(above, uint64(drop - uint64(64))))
    fraction = uint64(fraction | right64(below, drop))
    rest = lost | (left64(below, uint64(uint64(64) - drop)) != uint64(0)) | (drop > uint64(64))
    fraction = uint64(fraction | sticky) if rest else fraction
    minus = uint64(1) if negative else uint64(0)
    addend = addend64(positive_addend, negative_addend, parity, minus, uint64(whole & uint64(1)))
    addend = uint64(addend + uint64(uint64(word) << uint64(32)))
    scaled = uint64(max(exponent - lowest, int64(0)))  # Added to the integer part, whose first bit raises it by 1.
    result = uint64(uint64(scaled << uint64(precision - int64(1))) + whole)
    result = uint64(result + uint64(1)) if uint64(fraction + addend) < fraction else result
    result = max(result, over[2])
    return (over[1] if negative else over[0]) if result >= infinite else result


@njit(inline="always")  # type: ignore[untyped-decorator]
def _single(bits: Any) -> Any:
    return float_of32(uint32(uint32(bits) | uint32(bits >> uint64(32))))


_number: Any = ByWidth(_single, float_of64)
"""The carrier's number of bits, the sign in the first of 64."""


def dot_products(
    a: Numbers, b: Numbers, start: Numbers, target: Numbers, first: Int, last: Int, rows: Int, depth: Int,
    columns: Int, limbs: Integers, words: Integers, settings: Integers,
) -> None:  # fmt: skip
    """For the rows from ``first`` to before ``last`` of ``target``: start + a b.

    Args:
        a: (batches, rows, depth).
        b: (batches, columns, depth).
        start: (batches, rows, columns), or null.
        target: (batches, rows, columns).
        first: counts rows over all batches.
        last: one after the last row, counted in the same way.
        rows: number of rows of each batch.
        depth: summands of each result.
        columns: number of columns of the target.
        limbs: ``LIMBS`` zeros, zeros again afterwards.
        words: a random word for each element of the target; null if rounding draws none.
        settings: the mode (4 numbers), the carrier's precision, lowest exponent and bits of infinity, substitutes
            for larger positive and negative numbers, the least that is not zero, whether there is a start, and words.
    """
    mode = uint64(settings[0]), uint64(settings[1]), uint64(settings[2]), uint64(settings[3])
    over = uint64(settings[7]), uint64(settings[8]), uint64(settings[9])
    carrier = settings[4], settings[5], uint64(settings[6]), over
    for row in range(first, last):
        batch = row // rows
        for column in range(columns):
            place = row * columns + column
            low, high, special = int64(LIMBS), int64(0), 0.0
            for k in range(depth + settings[10]):
                if k < depth:
                    x, y = types.float64(a[row * depth + k]), types.float64(b[(batch * columns + column) * depth + k])
                else:
                    x, y = types.float64(start[place]), 1.0
                if abs(x) <= LARGEST and abs(y) <= LARGEST:
                    if x != 0.0 and y != 0.0:
                        at, end = _add_product(limbs, x, y)
                        low, high = min(low, at), max(high, end)
                else:  # NaN and infinities add up as in any sum.
                    special = special + x * y
            bits = uint64(0)
            if low <= high:
                end, negative = _normalised(limbs, low, high)
                word = words[place] if settings[11] != 0 else int64(0)
                bits = _rounded_bits(limbs, low, end, negative, carrier, mode, word)
                bits = uint64(bits | (uint64(1 << 63) if negative else uint64(0)))
                for i in range(low, end + int64(1)):  # Zeros for the next element.
                    limbs[i] = int64(0)
            target[place] = special if special != 0.0 else _number(bits)
