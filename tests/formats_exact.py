"""Scalar references in exact rational arithmetic, which every format family is compared with, bit for bit."""

from __future__ import annotations

import math
from fractions import Fraction

from roundoff.formats.modes import Overflow, Rounding


def goes_up(fraction: Fraction, rounding: Rounding, *, negative: bool, odd: bool, word: int | None = None) -> bool:
    """Whether a magnitude that lies ``fraction`` (0 <= fraction < 1) of the way to the next one is rounded up.

    ``odd`` is the parity of the lower neighbour; ``word`` is the random word, 32 bits, of stochastic rounding.
    """
    half = Fraction(1, 2)
    return (
        fraction > 0
        and {
            Rounding.NEAREST_EVEN: fraction > half or (fraction == half and odd),
            Rounding.NEAREST_AWAY: fraction >= half,
            Rounding.TOWARD_ZERO: False,
            Rounding.UP: not negative,
            Rounding.DOWN: negative,
            Rounding.TO_ODD: not odd,
            Rounding.STOCHASTIC: word is not None and math.floor(fraction * 2**32) + word >= 2**32,
        }[rounding]
    )


def round_to_integer(
    magnitude: Fraction, rounding: Rounding, *, negative: bool, odd: bool | None = None, word: int | None = None
) -> int:
    """A magnitude rounded to an integer; ``odd`` overrides the parity of its integer part."""
    whole = math.floor(magnitude)
    parity = bool(whole % 2) if odd is None else odd
    return whole + goes_up(magnitude - whole, rounding, negative=negative, odd=parity, word=word)


def exponent(magnitude: Fraction) -> int:
    """floor(log2(magnitude)), exactly."""
    guess = magnitude.numerator.bit_length() - magnitude.denominator.bit_length()
    return guess if Fraction(2) ** guess <= magnitude else guess - 1


def round_float(
    x: float,
    *,
    significand_bits: int,
    bias: int,
    emin: int,
    largest: Fraction,
    subnormals: bool,
    negative_zero: bool,
    overflow: Overflow,
    rounding: Rounding = Rounding.NEAREST_EVEN,
    word: int | None = None,
) -> float:
    """``x`` rounded to a binary float format; the definition that the kernels must reproduce."""
    if math.isnan(x):
        return math.nan
    negative = math.copysign(1.0, x) < 0
    sign = -1.0 if negative else 1.0
    beyond = {Overflow.INFINITY: math.inf, Overflow.NAN: math.nan, Overflow.SATURATE: float(largest)}[overflow]
    if math.isinf(x):
        return sign * beyond
    magnitude = abs(Fraction(x))
    if not magnitude:
        return sign * 0.0 if negative_zero else 0.0
    e = max(exponent(magnitude), emin)
    is_normal = magnitude >= Fraction(2) ** emin
    quantum = Fraction(2) ** (e - significand_bits) if is_normal or subnormals else Fraction(2) ** emin
    # With no significand bits two neighbours differ in the exponent alone: the code's parity is the exponent field's.
    odd = (e + bias) % 2 == 1 if is_normal and significand_bits == 0 else None
    rounded = quantum * round_to_integer(magnitude / quantum, rounding, negative=negative, odd=odd, word=word)
    if rounded > largest:
        inward = {Rounding.TOWARD_ZERO: True, Rounding.TO_ODD: True, Rounding.UP: negative, Rounding.DOWN: not negative}
        return sign * (float(largest) if inward.get(rounding, False) else beyond)
    if not rounded and not negative_zero:
        return 0.0
    return sign * float(rounded)
