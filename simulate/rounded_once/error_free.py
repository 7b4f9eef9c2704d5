"""Sums and products of floats with what their rounding lost, in the Python that numba compiles.

:mod:`.tensors` has the same for tensors.
"""

from __future__ import annotations

from typing import Any

import torch
from numba import njit, types
from numba.extending import intrinsic
from numpy import int64, uint64

from ...formats.cpu.bits import bits_of64, float_of64, left64, right64
from ...formats.cpu.widths import WIDTH, bits_of, real, specialised, unsigned

LARGEST = 1.7976931348623157e308
"""The largest float64."""


def _fused(number: types.Type) -> Any:
    """A numba function of three such numbers: ``x * y + z``, rounded once."""

    @intrinsic  # type: ignore[untyped-decorator]
    def fma(_context: Any, _x: Any, _y: Any, _z: Any) -> Any:
        def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            return builder.fma(*arguments)

        return number(number, number, number), generate

    return fma


fma32 = _fused(types.float32)
fma64 = _fused(types.float64)


@njit(inline="always")  # type: ignore[untyped-decorator]
def two_sum(x: Any, y: Any) -> Any:
    """The carrier's sum and its error to the exact sum (Knuth); NaN where the sum is infinite."""
    total = x + y
    part = total - x
    return total, (x - (total - part)) + (y - part)


@njit(inline="always")  # type: ignore[untyped-decorator]
def two_product64(x: Any, y: Any) -> Any:
    """The float64 product and its error to the exact product; 0 or NaN where float64 cannot tell."""
    product = x * y
    return product, fma64(x, y, -product)


@njit(inline="always")  # type: ignore[untyped-decorator]
def to_odd(total: Any, error: Any, odd: Any) -> Any:
    """The bits of ``total + error`` rounded to odd, if ``odd`` is 1; of ``total`` if it is 0."""
    bits = bits_of(total)
    inexact = odd if abs(error) > real(0) else unsigned(0)
    opposite = unsigned(unsigned(bits ^ bits_of(error)) >> unsigned(WIDTH - unsigned(1)))
    return unsigned(unsigned(bits - unsigned(opposite & inexact)) | inexact)


odd32, odd64 = specialised(to_odd, torch.float32), specialised(to_odd, torch.float64)


@njit(inline="always")  # type: ignore[untyped-decorator]
def multiply_add64(x: Any, y: Any, z: Any) -> Any:
    """``x * y + z`` as a float64 and the rest (Boldo and Melquiond, 2008, algorithm Fmac).

    Holds while the product and its last bit are within the range of float64.
    """
    high, low = two_product64(x, y)
    low = low if abs(low) <= LARGEST else 0.0  # NaN if the product overflows.
    middle, first = two_sum(z, low)
    top, second = two_sum(high, middle)
    rest, lost = two_sum(first, second)
    return two_sum(top, float_of64(odd64(rest, lost, uint64(1))))


@njit(inline="always")  # type: ignore[untyped-decorator]
def split64(x: Any) -> Any:
    """``x`` as a number from 1 to below 2 and the exponent of a power of two; 0, infinity, NaN with some exponent."""
    small = abs(x) < 2.0**-960  # Perhaps subnormal: times 2^60 it is normal.
    bits = bits_of64(x * 2.0**60 if small else x)
    field = int64(uint64(bits >> uint64(52)) & uint64(0x7FF))
    significand = uint64(uint64(bits & uint64(0x800FFFFFFFFFFFFF)) | uint64(1023 << 52))
    plain = (field == int64(0)) | (field == int64(0x7FF))
    return x if plain else float_of64(significand), field - int64(1083) if small else field - int64(1023)


@njit(inline="always")  # type: ignore[untyped-decorator]
def power64(exponent: Any) -> Any:
    """2^exponent, for exponents from -1022 to 1023."""
    return float_of64(uint64(uint64(exponent + int64(1023)) << uint64(52)))


@njit(inline="always")  # type: ignore[untyped-decorator]
def scaled_odd64(bits: Any, exponent: Any) -> Any:
    """The bits of a normal number that was rounded to odd, or of zero, times 2^exponent, rounded to odd."""
    sign = uint64(bits & uint64(0x8000000000000000))
    magnitude = uint64(bits ^ sign)
    field = int64(uint64(magnitude >> uint64(52))) + exponent
    normal = uint64(uint64(magnitude & uint64((1 << 52) - 1)) | uint64(uint64(field) << uint64(52)))
    significand = uint64(uint64(magnitude & uint64((1 << 52) - 1)) | uint64(1 << 52))
    drop = uint64(int64(1) - field)
    subnormal = right64(significand, drop)
    lost = uint64(1) if left64(subnormal, drop) != significand else uint64(0)
    result = normal if field > int64(0) else uint64(subnormal | lost)
    result = uint64(0x7FEFFFFFFFFFFFFF) if field > int64(2046) else result
    return uint64((result if magnitude != uint64(0) else uint64(0)) | sign)


@njit(inline="always")  # type: ignore[untyped-decorator]
def product_anywhere64(x: Any, y: Any) -> Any:
    """The bits of ``x * y`` rounded to odd, whatever the exponents."""
    (x1, x_exponent), (y1, y_exponent) = split64(x), split64(y)
    product, lost = two_product64(x1, y1)
    bits = scaled_odd64(odd64(product, lost, uint64(1)), x_exponent + y_exponent)
    return bits if abs(product) <= LARGEST else bits_of64(product)


@njit(inline="always")  # type: ignore[untyped-decorator]
def multiply_add_anywhere64(x: Any, y: Any, z: Any) -> Any:
    """The bits of ``x * y + z`` rounded to odd, whatever the exponents: as ``multiply_add64`` of scaled numbers.

    In a sum with terms far apart the smaller one only decides on which side of the larger the sum is, so it may be
    made larger, as long as it stays small enough.
    """
    (x1, x_exponent), (y1, y_exponent), (z1, z_exponent) = split64(x), split64(y), split64(z)
    exponent = x_exponent + y_exponent
    exponent = exponent if x1 * y1 != 0.0 else int64(-3000)  # Below every other exponent.
    top = max(exponent, z_exponent if z1 != 0.0 else int64(-3000))
    x2 = x1 * power64(max(exponent - top, int64(-300)))
    z2 = z1 * power64(max(z_exponent - top, int64(-300)))
    total, error = multiply_add64(x2, y1, z2)
    # What is zero or not finite is so as a sum of numbers of any size.
    plain = x1 * y1 + z1
    zero = plain if x1 * y1 == 0.0 else 0.0
    bits = scaled_odd64(odd64(total, error, uint64(1)), top)
    bits = bits if total != 0.0 else bits_of64(zero)
    return bits if abs(plain) <= LARGEST else bits_of64(plain)
