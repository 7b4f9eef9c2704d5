"""Rounding one number to an integer, in any mode, and to a code of a uniform grid, as numba loops do it."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy import float32, float64, int32, int64, uint32, uint64

from .bits import bits_of32, bits_of64, float_of32, float_of64, right32, right64
from .tail import addend32, addend64, round_shifted32, round_shifted64

# More steps than any code; one more is still exact.
_MOST_STEPS32, _MOST_STEPS64 = float32(1 << 20), float64(1 << 20)
_MOST_CODES32, _MOST_CODES64 = float32(1 << 22), float64(1 << 22)


@njit(inline="always")  # type: ignore[untyped-decorator]
def to_integer32(x: Any, mode: Any, word: Any) -> Any:
    """The float32 ``x`` rounded to an integer, as a float32; infinity and NaN stay.

    Args:
        x: the number.
        mode: of :func:`.mode32`.
        word: the random word, uint32; 0 if rounding is not stochastic.
    """
    positive, negative, parity, sticky = mode
    bits = bits_of32(x)
    sign = uint32(bits & uint32(0x80000000))
    magnitude = uint32(bits & uint32(0x7FFFFFFF))
    exponent = uint32(magnitude >> uint32(23))
    normal = uint32(1) if exponent > uint32(0) else uint32(0)
    significand = uint32(uint32(magnitude & uint32(0x7FFFFF)) | uint32(normal << uint32(23)))
    exponent = uint32(exponent | uint32(normal ^ uint32(1)))
    integer = uint32(150)  # the biased exponent from which on floats are integers
    shift = uint32(integer - exponent) if exponent < integer else uint32(0)
    odd = uint32(right32(significand, shift) & uint32(1))
    addend = uint32(addend32(positive, negative, parity, uint32(sign >> uint32(31)), odd) + word)
    whole = bits_of32(float32(int32(round_shifted32(significand, shift, addend, sticky))))
    whole = magnitude if exponent >= integer else whole
    return float_of32(uint32(whole | sign))


@njit(inline="always")  # type: ignore[untyped-decorator]
def to_integer64(x: Any, mode: Any, word: Any) -> Any:
    """As :func:`to_integer32`, for float64: uint64 and float64 throughout, but ``word`` is 32 bits."""
    positive, negative, parity, sticky = mode
    bits = bits_of64(x)
    sign = uint64(bits & uint64(0x8000000000000000))
    magnitude = uint64(bits & uint64(0x7FFFFFFFFFFFFFFF))
    exponent = uint64(magnitude >> uint64(52))
    normal = uint64(1) if exponent > uint64(0) else uint64(0)
    significand = uint64(uint64(magnitude & uint64(0xFFFFFFFFFFFFF)) | uint64(normal << uint64(52)))
    exponent = uint64(exponent | uint64(normal ^ uint64(1)))
    integer = uint64(1075)
    shift = uint64(integer - exponent) if exponent < integer else uint64(0)
    odd = uint64(right64(significand, shift) & uint64(1))
    addend = addend64(positive, negative, parity, uint64(sign >> uint64(63)), odd)
    addend = uint64(addend + uint64(uint64(word) << uint64(32)))
    whole = bits_of64(float64(int64(round_shifted64(significand, shift, addend, sticky))))
    whole = magnitude if exponent >= integer else whole
    return float_of64(uint64(whole | sign))


@njit(inline="always")  # type: ignore[untyped-decorator]
def between_steps32(x: Any, inverse: Any, scale: Any, zero: Any, mode: Any, word: Any) -> Any:
    """How many steps of a scale a float32 stands for: an integer, as a float32; NaN stays.

    It is one of the two floats k * scale and (k + 1) * scale that the number lies between, as they are, so that each of
    them stays what it is. (To nearest-even it is the number times the reciprocal, rounded to an integer.)

    Args:
        x: the number.
        inverse: the reciprocal of the scale.
        scale: the distance of the numbers.
        zero: the zero point; with it added, the steps are a code, whose parity rounding to odd looks at.
        mode: of :func:`.mode32`.
        word: the random word, uint32; 0 if rounding is not stochastic.
    """
    positive, negative, parity, sticky = mode
    minus = uint32(bits_of32(x) >> uint32(31))
    magnitude = abs(x)
    k = np.floor(magnitude * inverse)
    k = _MOST_STEPS32 if k > _MOST_STEPS32 else k  # noqa: FURB136  NaN passes through
    # The product was rounded, as the reciprocal was.
    k = k - float32(1.0) if k * scale > magnitude else k
    k = k + float32(1.0) if (k + float32(1.0)) * scale <= magnitude else k
    lower = k * scale
    rest, step = magnitude - lower, (k + float32(1.0)) * scale - lower
    # Comparisons that are false for NaN: it must not become an integer.
    part = float64(rest) / float64(step)
    fraction = uint32(int64(part * 4294967296.0 if part < 1.0 else 0.0))
    fraction = uint32(fraction | sticky) if rest > float32(0.0) else fraction
    code = k + zero
    odd = uint32(uint32(int32(code if code < _MOST_CODES32 else float32(0.0))) & uint32(1))
    addend = uint32(addend32(positive, negative, parity, minus, odd) + word)
    k = k + float32(1.0) if uint32(fraction + addend) < fraction else k
    return -k if minus != uint32(0) else k


@njit(inline="always")  # type: ignore[untyped-decorator]
def between_steps64(x: Any, inverse: Any, scale: Any, zero: Any, mode: Any, word: Any) -> Any:
    """As :func:`between_steps32`, for float64: uint64 and float64 throughout, but ``word`` is 32 bits."""
    positive, negative, parity, sticky = mode
    minus = uint64(bits_of64(x) >> uint64(63))
    magnitude = abs(x)
    k = np.floor(magnitude * inverse)
    k = _MOST_STEPS64 if k > _MOST_STEPS64 else k  # noqa: FURB136
    k = k - 1.0 if k * scale > magnitude else k
    k = k + 1.0 if (k + 1.0) * scale <= magnitude else k
    lower = k * scale
    rest, step = magnitude - lower, (k + 1.0) * scale - lower
    part = rest / step
    fraction = uint64(uint64(int64(part * 4294967296.0 if part < 1.0 else 0.0)) << uint64(32))
    fraction = uint64(fraction | sticky) if rest > 0.0 else fraction
    code = k + zero
    odd = uint64(uint64(int64(code if code < _MOST_CODES64 else 0.0)) & uint64(1))
    addend = addend64(positive, negative, parity, minus, odd)
    addend = uint64(addend + uint64(uint64(word) << uint64(32)))
    k = k + 1.0 if uint64(fraction + addend) < fraction else k
    return -k if minus != uint64(0) else k


@njit(inline="always")  # type: ignore[untyped-decorator]
def on_grid(steps: Any, scale: Any, zero: Any, low: Any, high: Any) -> Any:
    """The number of the code ``steps + zero``, saturated; ``steps`` is what was rounded, in units of the scale."""
    code = steps + zero
    # Written so that NaN, which compares as false, passes through.
    code = low if code < low else code  # noqa: FURB136
    code = high if code > high else code  # noqa: FURB136
    return (code - zero) * scale
