"""Rounding one scaled number to a small float or integer, in any mode, as numba loops do it."""

from __future__ import annotations

from typing import Any

from numba import njit
from numpy import float32, float64, int32, int64, uint32, uint64

from .bits import bits_of32, bits_of64, float_of32, float_of64, right32, right64
from .tail import addend32, addend64, round_shifted32, round_shifted64


@njit(inline="always")  # type: ignore[untyped-decorator]
def to_element32(bits: Any, smallest: Any, m: Any, largest: Any, zero_sign: Any, mode: Any, word: Any) -> Any:
    """A number rounded to ``m`` stored significand bits and saturated at ``largest``.

    Args:
        bits: the float32 pattern of a finite number.
        smallest: the biased exponent of the smallest normal element, uint32; at least ``m`` + 1.
        m: uint32, 0 to 23.
        largest: float32, positive.
        zero_sign: uint32; the sign bit if negative numbers that vanish keep their sign, else 0.
        mode: of :func:`.mode32`.
        word: the random word, uint32; 0 if rounding is not stochastic.
    """
    positive, negative, parity, sticky = mode
    sign = uint32(bits & uint32(0x80000000))
    magnitude = uint32(bits & uint32(0x7FFFFFFF))
    exponent = uint32(magnitude >> uint32(23))
    normal = uint32(1) if exponent > uint32(0) else uint32(0)
    significand = uint32(uint32(magnitude & uint32(0x7FFFFF)) | uint32(normal << uint32(23)))
    exponent = uint32(exponent | uint32(normal ^ uint32(1)))
    unit = smallest if exponent < smallest else exponent  # noqa: FURB136  numba's own would widen
    shift = uint32(uint32(unit - exponent) + uint32(uint32(23) - m))
    odd = uint32(right32(significand, shift) & uint32(1))
    addend = uint32(addend32(positive, negative, parity, uint32(sign >> uint32(31)), odd) + word)
    whole = round_shifted32(significand, shift, addend, sticky)
    value = float32(int32(whole)) * float_of32(uint32(uint32(unit - m) << uint32(23)))
    value = largest if value > largest else value  # noqa: FURB136
    sign = uint32(sign & zero_sign) if whole == uint32(0) else sign
    return float_of32(uint32(bits_of32(value) | sign))


@njit(inline="always")  # type: ignore[untyped-decorator]
def to_element64(bits: Any, smallest: Any, m: Any, largest: Any, zero_sign: Any, mode: Any, word: Any) -> Any:
    """As :func:`to_element32`, for float64: uint64 and float64 throughout, but ``word`` is 32 bits."""
    positive, negative, parity, sticky = mode
    sign = uint64(bits & uint64(0x8000000000000000))
    magnitude = uint64(bits & uint64(0x7FFFFFFFFFFFFFFF))
    exponent = uint64(magnitude >> uint64(52))
    normal = uint64(1) if exponent > uint64(0) else uint64(0)
    significand = uint64(uint64(magnitude & uint64(0xFFFFFFFFFFFFF)) | uint64(normal << uint64(52)))
    exponent = uint64(exponent | uint64(normal ^ uint64(1)))
    unit = smallest if exponent < smallest else exponent  # noqa: FURB136
    shift = uint64(uint64(unit - exponent) + uint64(uint64(52) - m))
    odd = uint64(right64(significand, shift) & uint64(1))
    addend = addend64(positive, negative, parity, uint64(sign >> uint64(63)), odd)
    addend = uint64(addend + uint64(uint64(word) << uint64(32)))
    whole = round_shifted64(significand, shift, addend, sticky)
    value = float64(int64(whole)) * float_of64(uint64(uint64(unit - m) << uint64(52)))
    value = largest if value > largest else value  # noqa: FURB136
    sign = uint64(sign & zero_sign) if whole == uint64(0) else sign
    return float_of64(uint64(bits_of64(value) | sign))
