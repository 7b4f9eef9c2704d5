"""Rounding as it is defined: one number at a time, in exact rational arithmetic.

The kernels are compared with this, bit for bit, by the tests and by :func:`.verify`.
"""

from __future__ import annotations

import math
from fractions import Fraction
from functools import cache

from ..base.modes import Overflow, Rounding
from ..families.floats import FloatFormat


@cache
def _power(exponent: int) -> Fraction:
    """The power of two, which costs as much as all else of a rounding."""
    return Fraction(2) ** exponent


@cache
def _rational(number: float) -> Fraction:
    """A number, such as the largest of a format, as a fraction: each comparison with a float would make it anew."""
    return Fraction(number)


def goes_up(fraction: Fraction, rounding: Rounding, *, negative: bool, odd: bool, word: int | None = None) -> bool:
    """Whether a magnitude that lies ``fraction`` (0 <= fraction < 1) of the way to the next one is rounded up.

    ``odd`` is the parity of the lower neighbour; ``word`` is the random word, 32 bits, of stochastic rounding.
    """
    if not fraction:
        return False
    if rounding is Rounding.STOCHASTIC:
        return word is not None and math.floor(fraction * 2**32) + word >= 2**32
    if rounding in (Rounding.NEAREST_EVEN, Rounding.NEAREST_AWAY):
        beyond_half = 2 * fraction.numerator - fraction.denominator
        return beyond_half > 0 or (beyond_half == 0 and (odd or rounding is Rounding.NEAREST_AWAY))
    away = {Rounding.TOWARD_ZERO: False, Rounding.UP: not negative, Rounding.DOWN: negative, Rounding.TO_ODD: not odd}
    return away[rounding]


def round_to_integer(
    magnitude: Fraction, rounding: Rounding, *, negative: bool, odd: bool | None = None, word: int | None = None
) -> int:
    """A magnitude rounded to an integer; ``odd`` overrides the parity of its integer part."""
    whole, rest = divmod(magnitude.numerator, magnitude.denominator)
    parity = bool(whole % 2) if odd is None else odd
    fraction = Fraction(rest, magnitude.denominator)
    return whole + goes_up(fraction, rounding, negative=negative, odd=parity, word=word)


def exponent(magnitude: Fraction) -> int:
    """floor(log2(magnitude)), exactly."""
    guess = magnitude.numerator.bit_length() - magnitude.denominator.bit_length()
    return guess if _power(guess) <= magnitude else guess - 1


def round_float(
    x: float | Fraction,
    fmt: FloatFormat,
    rounding: Rounding = Rounding.NEAREST_EVEN,
    overflow: Overflow | None = None,
    word: int | None = None,
) -> float:
    """``x`` rounded to a binary float format; ``word`` is the random word, 32 bits, of stochastic rounding.

    NaN stays; an infinity gives what overflow to nearest gives; see :func:`roundoff.formats.round`.
    """
    if isinstance(x, Fraction):
        return round_exactly(x, fmt, rounding, overflow, word)
    if math.isnan(x):
        return math.nan
    if math.isinf(x):
        policy = fmt.overflow_policy if overflow is None else overflow
        if not fmt.signed and x < 0:
            return 0.0
        return math.copysign(1.0, x) * (math.inf if policy is Overflow.PROPAGATE else _beyond(fmt, overflow))
    return round_exactly(Fraction(x), fmt, rounding, overflow, word, negative=math.copysign(1.0, x) < 0)


def _beyond(fmt: FloatFormat, overflow: Overflow | None) -> float:
    """Returns the result for positive values beyond the largest number."""
    policy = fmt.overflow_policy if overflow is None else overflow
    return {Overflow.INFINITY: math.inf, Overflow.NAN: math.nan}.get(policy, fmt.max)


def round_exactly(
    x: Fraction,
    fmt: FloatFormat,
    rounding: Rounding = Rounding.NEAREST_EVEN,
    overflow: Overflow | None = None,
    word: int | None = None,
    *,
    negative: bool | None = None,
) -> float:
    """Rounds any rational number as :func:`round_float` does; ``negative`` tells the sign of a zero."""
    negative = x < 0 if negative is None else negative
    sign = -1.0 if negative else 1.0
    m, emin = fmt.significand_bits, fmt.emin
    if not fmt.signed and negative:
        return 0.0
    magnitude, smallest = abs(x), _power(emin)
    rounded = Fraction(0)
    if magnitude and not (fmt.flush == "daz" and magnitude < smallest):
        e = exponent(magnitude)
        is_normal = e >= emin
        if fmt.flush != "ftz":
            e = max(e, emin)
        quantum = _power(e - m if is_normal or fmt.subnormals or fmt.flush == "ftz" else emin)
        # With no significand bits two neighbours differ in the exponent alone: the code's parity is its field's.
        odd = (e + fmt.exponent_bias) % 2 == 1 if is_normal and m == 0 else None
        rounded = quantum * round_to_integer(magnitude / quantum, rounding, negative=negative, odd=odd, word=word)
    if fmt.flush == "ftz" and rounded < smallest:
        rounded = Fraction(0)
    largest = fmt.max
    if rounded > _rational(largest):
        inward = {Rounding.TOWARD_ZERO: True, Rounding.TO_ODD: True, Rounding.UP: negative, Rounding.DOWN: not negative}
        return sign * (largest if inward.get(rounding, False) else _beyond(fmt, overflow))
    return sign * float(rounded) if rounded or fmt.has_negative_zero else 0.0
