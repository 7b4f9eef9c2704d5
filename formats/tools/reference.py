"""The definition of rounding: one number at a time, in exact rational arithmetic.

Read :func:`round_exactly` first. The tests and :func:`.verify` compare the kernels with it, bit for bit.
"""

from __future__ import annotations

import math
from fractions import Fraction
from functools import cache

from ..base.modes import NEAREST, Overflow, Rounding
from ..families.floats import FloatFormat


def round_exactly(
    x: Fraction,
    fmt: FloatFormat,
    rounding: Rounding = Rounding.NEAREST_EVEN,
    overflow: Overflow | None = None,
    word: int | None = None,
    *,
    negative: bool | None = None,
) -> float:
    """Rounds a rational number to a binary float format: the definition of rounding, in exact arithmetic.

    Args:
        x: the number, of any size.
        fmt: the format.
        rounding: the rounding mode.
        overflow: the policy beyond the largest value; None for the format's own.
        word: the random word, 32 bits, of stochastic rounding.
        negative: the sign of a zero; None for a positive zero.
    """
    negative = x < 0 if negative is None else negative
    if not fmt.signed and negative:
        return 0.0
    magnitude, smallest = abs(x), _power(fmt.emin)
    rounded = Fraction(0)
    if magnitude and not (fmt.flush == "daz" and magnitude < smallest):
        # The exponent e, with 2^e <= magnitude < 2^(e + 1). Below emin, neighbours have the distance of subnormals.
        e = exponent(magnitude)
        is_normal = e >= fmt.emin
        if fmt.flush != "ftz":
            e = max(e, fmt.emin)
        # The distance of neighbours: 2^m values in each binade. Without subnormals the first value is 2^emin.
        exact_tail = is_normal or fmt.subnormals or fmt.flush == "ftz"
        quantum = _power(e - fmt.significand_bits if exact_tail else fmt.emin)
        # The magnitude is rounded to a multiple of the distance. Ties to even look at the parity of the code, which
        # is the parity of the exponent field if there are no significand bits.
        odd = (e + fmt.exponent_bias) % 2 == 1 if is_normal and fmt.significand_bits == 0 else None
        rounded = quantum * round_to_integer(magnitude / quantum, rounding, negative=negative, odd=odd, word=word)
    if fmt.flush == "ftz" and rounded < smallest:
        rounded = Fraction(0)
    # Beyond the largest value: modes that round inward keep it, the others overflow.
    sign = -1.0 if negative else 1.0
    if rounded > _rational(fmt.max):
        inward = {Rounding.TOWARD_ZERO: True, Rounding.TO_ODD: True, Rounding.UP: negative, Rounding.DOWN: not negative}
        return sign * (fmt.max if inward.get(rounding, False) else _beyond(fmt, overflow))
    return sign * float(rounded) if rounded or fmt.has_negative_zero else 0.0


def round_to_integer(
    magnitude: Fraction, rounding: Rounding, *, negative: bool, odd: bool | None = None, word: int | None = None
) -> int:
    """A magnitude rounded to an integer; ``odd`` overrides the parity of its integer part."""
    whole, rest = divmod(magnitude.numerator, magnitude.denominator)
    parity = bool(whole % 2) if odd is None else odd
    fraction = Fraction(rest, magnitude.denominator)
    return whole + goes_up(fraction, rounding, negative=negative, odd=parity, word=word)


def goes_up(fraction: Fraction, rounding: Rounding, *, negative: bool, odd: bool, word: int | None = None) -> bool:
    """Whether a magnitude is rounded up; ``fraction`` (0 <= fraction < 1) is its distance from the lower neighbour.

    ``odd`` is the parity of the lower neighbour; ``word`` is the random word, 32 bits, of stochastic rounding.
    """
    if not fraction:
        return False
    if rounding is Rounding.STOCHASTIC:
        return word is not None and math.floor(fraction * 2**32) + word >= 2**32
    if rounding in NEAREST:
        beyond_half = 2 * fraction.numerator - fraction.denominator
        ties = {Rounding.NEAREST_EVEN: odd, Rounding.NEAREST_AWAY: True, Rounding.NEAREST_UP: not negative}
        return beyond_half > 0 or (beyond_half == 0 and ties[rounding])
    away = {Rounding.TOWARD_ZERO: False, Rounding.UP: not negative, Rounding.DOWN: negative, Rounding.TO_ODD: not odd}
    return away[rounding]


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


def exponent(magnitude: Fraction) -> int:
    """floor(log2(magnitude)), exactly."""
    guess = magnitude.numerator.bit_length() - magnitude.denominator.bit_length()
    return guess if _power(guess) <= magnitude else guess - 1


@cache
def _power(exponent: int) -> Fraction:
    """The power of two, which costs as much as all else of a rounding."""
    return Fraction(2) ** exponent


@cache
def _rational(number: float) -> Fraction:
    """A number, such as the largest of a format, as a fraction: each comparison with a float would compute it again."""
    return Fraction(number)
