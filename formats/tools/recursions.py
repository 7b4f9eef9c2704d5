"""The points where x <- x + gain (y - x), as critics, averages and moments do it, stops if every step is rounded.

docs/recursions.md derives them: x stops as soon as a step is at most half an ulp of x.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import NamedTuple

from ..families.floats import FloatFormat


class Stop(NamedTuple):
    """The points where a recursion stops.

    Attributes:
        first: the first number on its way that absorbs a step.
        last: the next one on that way; a step may lead there before one is absorbed. Infinite where it overflows.
    """

    first: float
    last: float


def reach(gain: float, significand_bits: int) -> tuple[float, float]:
    """Returns the lower and upper end of the share of y that a recursion reaches from 0; x's significand decides.

    Args:
        gain: in (0, 1].
        significand_bits: m, stored.
    """
    return tuple(gain / (gain + 2.0 ** -(significand_bits + extra)) for extra in (1, 2))  # type: ignore[return-value]


def bits_needed(gain: float, share: float = 0.9) -> int:
    """The fewest significand bits that let a recursion reach this share of y from 0, for any y."""
    return max(0, math.ceil(math.log2(share / (1 - share) / gain)) - 1)


def least_change(significand_bits: int, *, compensated: bool) -> tuple[float, float]:
    """The smallest change, relative to a number, that moves it when it is added again and again: least and most.

    Args:
        significand_bits: m, stored; of the number, and of its compensation.
        compensated: by Kahan's sum; else it is added plainly.
    """
    exponent = 2 * significand_bits + 2 if compensated else significand_bits + 1
    return 2.0 ** -(exponent + 1), 2.0**-exponent


def stop(format: FloatFormat, gain: float, target: float, start: float = 0.0) -> Stop:
    """Finds where x <- x + gain (y - x) stops, computed exactly and rounded once to the nearest even at every step.

    Args:
        format: the format of x, with subnormals; its largest number may be y.
        gain: in (0, 1/4], so that no step passes two numbers that would absorb one.
        target: y; any finite number, even if it is not a number of ``format``.
        start: a number of the format.

    Returns:
        The points; beyond the largest number, the format's result of overflow.
    """
    assert 0 < gain <= 1 / 4
    x, y, g = Fraction(start), Fraction(target), Fraction(gain)
    sign = -1 if x < 0 or (x == 0 and y < 0) else 1
    x, y = sign * x, sign * y
    if x > y:
        points = _inwards(format, g, y, x)
        if points is None:  # It reaches 0, and continues outward on the other side.
            mirrored = stop(format, gain, float(-y), 0.0)
            return Stop(-sign * mirrored.first, -sign * mirrored.last)
    else:
        points = _outwards(format, g, y, x)
    return Stop(*(sign * float(point) for point in points))


def _outwards(format: FloatFormat, gain: Fraction, y: Fraction, x: Fraction) -> tuple[float, float]:
    """Finds where x stops on its way up to y, both not negative, x <= y."""
    assert format.max is not None
    largest = Fraction(format.max)
    e = _binade(format, x)
    while True:
        gap, end = _gap(format, e), Fraction(2) ** (e + 1)
        begin = x if e == _binade(format, x) else end / 2
        point = _multiple(max(begin, y - gap / (2 * gain)), gap, y - gap / (2 * gain), up=True)
        point = min(point, y // gap * gap)  # below y there is always one
        if begin <= point < end and point <= largest:
            return float(point), float(min(point + gap, largest))
        if end > largest:
            import torch  # noqa: PLC0415  for one number

            from ..rounding import round  # noqa: PLC0415  beside the built-in of this name

            return format.max, float(round(torch.tensor([math.inf], dtype=torch.float64), format))
        e += 1


def _inwards(format: FloatFormat, gain: Fraction, y: Fraction, x: Fraction) -> tuple[float, float] | None:
    """Finds where x > 0 stops on its way down to y, which may be negative; None if it passes 0 on the way."""
    e = _binade(format, x)
    if x == Fraction(2) ** e and e > format.emin:
        e -= 1  # The gap below a power of two belongs to the lower binade.
    while True:
        gap, begin = _gap(format, e), Fraction(2) ** e if e > format.emin else Fraction(0)
        top = min(x, Fraction(2) ** (e + 1))
        limit = y + gap / (2 * gain)
        point = _multiple(min(top, limit), gap, limit, up=False)
        if y > 0:
            point = max(point, -(-y // gap) * gap)
        if point > begin:
            return float(point), float(point - gap)
        if begin == 0:
            return None if y < 0 else (0.0, 0.0)
        e -= 1


def _multiple(x: Fraction, gap: Fraction, tie: Fraction, *, up: bool) -> Fraction:
    """The multiple of the gap next to x; of a tie, only an even one stays where it is."""
    count = -(-x // gap) if up else x // gap
    if count * gap == tie and count % 2:
        count += 1 if up else -1
    return count * gap


def _binade(format: FloatFormat, x: Fraction) -> int:
    """The exponent of x, or the smallest one."""
    if x <= 0:
        return format.emin
    e = x.numerator.bit_length() - x.denominator.bit_length()
    e -= Fraction(2) ** e > x
    return max(e, format.emin)


def _gap(format: FloatFormat, e: int) -> Fraction:
    return Fraction(2) ** (e - format.significand_bits)
