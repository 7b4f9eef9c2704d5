"""Rounding one scaled number to a small float or integer, in any mode, as numba loops do it."""

from __future__ import annotations

from typing import Any

from numba import njit

from .tail import quotient, significand_of
from .widths import MAGNITUDE, SIGN, STORED, WIDTH, bits_of, float_of, real, signed, unsigned


@njit(inline="always")  # type: ignore[untyped-decorator]
def to_element(bits: Any, smallest: Any, m: Any, largest: Any, zero_sign: Any, mode: Any, word: Any) -> Any:
    """A number rounded to ``m`` stored significand bits and saturated at ``largest``.

    Args:
        bits: the pattern of a finite number.
        smallest: the biased exponent of the smallest normal element, unsigned; at least ``m`` + 1.
        m: unsigned, at most what the carrier stores.
        largest: the largest number of the carrier, positive.
        zero_sign: unsigned; the sign bit if negative numbers that vanish keep their sign, else 0.
        mode: the mode of :func:`.mode_of`.
        word: the random word, uint32; 0 if rounding is not stochastic.
    """
    sign = unsigned(bits & SIGN)
    significand, exponent = significand_of(unsigned(bits & MAGNITUDE))
    unit = smallest if exponent < smallest else exponent  # noqa: FURB136  numba's own would widen
    shift = unsigned(unsigned(unit - exponent) + unsigned(STORED - m))
    whole = quotient(significand, shift, unsigned(sign >> unsigned(WIDTH - unsigned(1))), mode, word)
    value = real(signed(whole)) * float_of(unsigned(unsigned(unit - m) << STORED))
    value = largest if value > largest else value  # noqa: FURB136
    sign = unsigned(sign & zero_sign) if whole == unsigned(0) else sign
    return float_of(unsigned(bits_of(value) | sign))
