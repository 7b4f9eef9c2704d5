"""The exact reference of blocks with a shared power-of-two scale, one block at a time."""

import math
from fractions import Fraction

from families_exact import float_element
from formats_exact import exponent

from roundoff.formats.arithmetic.elements import ScaleRule
from roundoff.formats.base.modes import Rounding

NAN_SCALE = None


def shared_exponent(top: Fraction, element, rule: ScaleRule) -> int:
    """The exponent of the scale of a block with largest magnitude ``top``, after the words of :class:`ScaleRule`."""
    if top == 0:
        return -127
    largest = Fraction(element.max)
    up = 0 if top == Fraction(2) ** exponent(top) else 1
    if rule == ScaleRule.FLOOR:
        e = exponent(top) - exponent(largest)
    elif rule == ScaleRule.CEIL:
        e = exponent(top) + up - exponent(largest)
    elif rule == ScaleRule.EVEN:
        m = element.significand_bits
        rounded = float_element(top, -2000, m, Fraction(2) ** 2000, Rounding.NEAREST_EVEN, negative=False)
        e = exponent(rounded) - exponent(largest)
    else:
        ratio = top / largest
        e = exponent(ratio) + (ratio != Fraction(2) ** exponent(ratio))
    return max(-127, min(127, e))


def exact_block(block: list[float], element, rule: ScaleRule, rounding: Rounding) -> tuple[list[float], int | None]:
    """The block rounded, and the exponent of its scale; None for NaN."""
    if not all(map(math.isfinite, block)):
        return [math.nan] * len(block), NAN_SCALE
    shared = shared_exponent(max(abs(Fraction(x)) for x in block), element, rule)
    scale = Fraction(2) ** shared
    results = []
    for x in block:
        negative = math.copysign(1, x) < 0
        magnitude = float_element(
            abs(Fraction(x)) / scale,
            element.emin,
            element.significand_bits,
            Fraction(element.max),
            rounding,
            negative=negative,
        )
        number = float(magnitude * scale) * (-1 if negative else 1)
        results.append(number + 0.0 if element.integer else number)
    return results, shared
