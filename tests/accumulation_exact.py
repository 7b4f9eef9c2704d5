"""Low-precision accumulation as it is defined: one output element at a time, in exact rational arithmetic."""

import math
from fractions import Fraction

from formats_exact import round_float


def add(x, y):
    """The exact sum of floats or Fractions; zeros, infinities and NaN as IEEE 754 has them."""
    if _special(x) or _special(y) or (_zero(x) and _zero(y)):
        return _as_float(x) + _as_float(y)
    total = Fraction(x) + Fraction(y)
    return total or 0.0


def multiply(x, y):
    """The exact product of two floats."""
    if _special(x) or _special(y) or _zero(x) or _zero(y):
        return x * y
    return Fraction(x) * Fraction(y)


def accumulated(terms, how):
    """What ``how`` makes of the exact products (or summands) ``terms``, in their order."""
    if how.product is not None:
        terms = [round_float(term, how.product) for term in terms]
    total, lost = 0.0, 0.0
    for start in range(0, len(terms), how.every):
        block = terms[start]
        for term in terms[start + 1 : start + how.every]:
            block = add(block, term)
        if not how.compensated:
            total = round_float(add(total, block), how.format)
            continue
        summand = round_float(add(block, -lost), how.format)
        after = round_float(add(total, summand), how.format)
        lost = round_float(add(round_float(add(after, -total), how.format), -summand), how.format)
        total = after
    return total


def dot(xs, ys, how):
    """The rounded sum of the products."""
    return accumulated([multiply(x, y) for x, y in zip(xs, ys, strict=True)], how)


def _special(x):
    return isinstance(x, float) and not math.isfinite(x)


def _zero(x):
    return x == 0


def _as_float(x):
    """A Fraction beside an infinity or a NaN counts for nothing, beyond being finite."""
    return x if isinstance(x, float) else 1.0
