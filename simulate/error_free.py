"""Sums and products of floats with what their rounding lost, in the Python that numba compiles.

``*_tensors`` has the same for tensors.
"""

from __future__ import annotations

from typing import Any

from numba import njit, types
from numba.extending import intrinsic
from numpy import uint32, uint64

from roundoff.formats.reinterpret import bits_of32, bits_of64

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
    """The carrier's sum and what is missing to the exact one (Knuth); NaN where the sum is infinite."""
    total = x + y
    part = total - x
    return total, (x - (total - part)) + (y - part)


@njit(inline="always")  # type: ignore[untyped-decorator]
def two_product64(x: Any, y: Any) -> Any:
    """The float64 product and what is missing to the exact one; 0 or NaN where float64 cannot tell."""
    product = x * y
    return product, fma64(x, y, -product)


@njit(inline="always")  # type: ignore[untyped-decorator]
def odd32(total: Any, error: Any, odd: Any) -> Any:
    """The bits of ``total + error`` rounded to odd, if ``odd`` is 1; of ``total`` if it is 0."""
    bits = bits_of32(total)
    inexact = odd if abs(error) > types.float32(0) else uint32(0)
    opposite = uint32(uint32(bits ^ bits_of32(error)) >> uint32(31))
    return uint32(uint32(bits - uint32(opposite & inexact)) | inexact)


@njit(inline="always")  # type: ignore[untyped-decorator]
def odd64(total: Any, error: Any, odd: Any) -> Any:
    """As :func:`odd32`, for float64."""
    bits = bits_of64(total)
    inexact = odd if abs(error) > 0.0 else uint64(0)
    opposite = uint64(uint64(bits ^ bits_of64(error)) >> uint64(63))
    return uint64(uint64(bits - uint64(opposite & inexact)) | inexact)
