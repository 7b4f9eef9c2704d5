"""Exact elementwise arithmetic: a float64 result, and the remainder to the exact result.

A formula takes three operands ``x``, ``a`` and ``b`` (it may ignore some), a factor ``v`` and a ``sign``, and returns

    top     the exact result rounded to float64, or a float next to it
    rest    the difference to the exact result: zero exactly if it is zero, with the right sign, and its size to 2^-50
            of itself; 0 for quotients and roots of float32 numbers (see ``single``)
    plain   substitute for the result where ``top`` is zero or not finite, or ``plain`` itself is not finite
    safe    whether this holds: no intermediate result left the range of float64

``sign`` is 1, or -1 for an exact zero of a sum to be -0, as it is when rounding down (IEEE 754-2019, 6.3).

The formulas are written once, for floats in a loop that numba compiles and for tensors, which differ in the functions
of a :class:`Dialect`. Sums of several terms are expansions (Shewchuk, "Adaptive precision floating-point arithmetic and
fast robust geometric predicates", 1997, section 2): floats in ascending order, each below the last bit of the next.
"""

# ruff: noqa: ARG001  all formulas have the same arguments

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

_LARGEST = 1.7976931348623157e308
# Between these, a product or a quotient has an error that float64 holds, and its factors can be split in halves.
_LOW, _HIGH = 2.0**-900, 2.0**900
# Between these, so have products and quotients of three.
_LOW_OF_THREE, _HIGH_OF_THREE = 2.0**-200, 2.0**200


class Dialect(NamedTuple):
    """The functions that differ between floats in a loop and tensors."""

    compiled: Callable[[Any], Any]
    """Makes a function of the dialect from a Python function."""
    two_sum: Callable[[Any, Any], Any]
    """The float64 sum and its error to the exact sum."""
    two_product: Callable[[Any, Any], Any]
    """The float64 product and its error to the exact product."""
    odd: Callable[[Any, Any], Any]
    """``total + error`` rounded to odd, ``error`` being less than a last place of ``total``."""
    root: Callable[[Any], Any]
    """The square root, correctly rounded."""
    choose: Callable[[Any, Any, Any], Any]
    """The second where the first is true, else the third."""


class Formulas(NamedTuple):
    """The formulas for operands of one carrier."""

    sum: Any
    """``x + v a``, ``v`` being 1 or -1."""
    product: Any
    """``x a``."""
    quotient: Any
    """``x / a``."""
    root: Any
    """``sqrt(x)``."""
    fused: Any
    """``x + v a b``."""
    divided: Any
    """``x + v a / b``."""
    interpolation: Any
    """``x + b (a - x)``."""


def single(dialect: Dialect) -> Formulas:
    """The formulas for operands that are float32 numbers: nothing leaves the range, products of two are exact."""
    compiled, two_sum, two_product, odd, root, choose = dialect

    @compiled
    def top_of3(h0: Any, h1: Any, h2: Any) -> Any:
        """An expansion as its sum and the rest."""
        tail, lost = two_sum(h1, h0)
        return two_sum(h2, odd(tail, lost))

    @compiled
    def sum_(x: Any, a: Any, b: Any, v: Any, sign: Any) -> Any:
        y = v * a  # Exact: v is 1 or -1.
        top, rest = two_sum(x, y)
        return top, rest, sign * (sign * x + sign * y), True

    @compiled
    def product(x: Any, a: Any, b: Any, v: Any, sign: Any) -> Any:
        top = x * a
        return top, 0.0, top, True

    # A quotient of float32 numbers, and a root, is a number of 25 bits or farther from all of them than 2^-51 of
    # itself: rounding to the nearest float64, and then to float32 in any mode, is correct.

    @compiled
    def quotient(x: Any, a: Any, b: Any, v: Any, sign: Any) -> Any:
        top = x / a
        return top, 0.0, top, True

    @compiled
    def root_(x: Any, a: Any, b: Any, v: Any, sign: Any) -> Any:
        top = root(x)
        return top, 0.0, top, True

    @compiled
    def fused(x: Any, a: Any, b: Any, v: Any, sign: Any) -> Any:
        product, lost = two_product(v * a, b)  # 48 bits times 24
        total, h0 = two_sum(x, lost)
        h2, h1 = two_sum(total, product)
        top, rest = top_of3(h0, h1, h2)
        return top, rest, sign * (sign * x + sign * product), True

    @compiled
    def divided(x: Any, a: Any, b: Any, v: Any, sign: Any) -> Any:
        # (x b + v a) / b, by two steps of division; the numerator is a sum of two.
        numerator = v * a
        high, low = two_sum(x * b, numerator)
        first = high / b
        product, lost = two_product(first, b)
        top = first + (((high - product) - lost) + low) / b
        product, lost = two_product(top, b)
        rest = (((high - product) - lost) + low) / b
        return top, rest, sign * (sign * x + sign * (numerator / b)), True

    @compiled
    def interpolation(x: Any, a: Any, b: Any, v: Any, sign: Any) -> Any:
        high, low = two_sum(b * a, -(b * x))  # Products of float32 numbers are exact.
        total, h0 = two_sum(x, low)
        h2, h1 = two_sum(total, high)
        top, rest = top_of3(h0, h1, h2)
        # Where that is not finite, as PyTorch has it, which begins at the nearer end.
        plain = choose(abs(b) < 0.5, x + b * (a - x), a - (a - x) * (1.0 - b))
        return top, rest, plain, True

    return Formulas(sum_, product, quotient, root_, fused, divided, interpolation)


def double(dialect: Dialect) -> Formulas:  # noqa: C901, PLR0915  one scope for functions that call one another
    """The formulas for any float64 operands."""
    compiled, two_sum, two_product, odd, root, choose = dialect

    @compiled
    def endless(x: Any) -> Any:
        """Infinite or NaN."""
        return (abs(x) > _LARGEST) | (x != x)  # noqa: PLR0124  NaN

    @compiled
    def between(x: Any, low: Any, high: Any) -> Any:
        size = abs(x)
        return (size >= low) & (size <= high)

    @compiled
    def moderate(x: Any) -> Any:
        return between(x, _LOW_OF_THREE, _HIGH_OF_THREE) | (x == 0.0)

    @compiled
    def grown2(e0: Any, e1: Any, term: Any) -> Any:
        """The expansion with a term more (Grow-Expansion)."""
        total, h0 = two_sum(term, e0)
        total, h1 = two_sum(total, e1)
        return h0, h1, total

    @compiled
    def grown3(e0: Any, e1: Any, e2: Any, term: Any) -> Any:
        h0, h1, total = grown2(e0, e1, term)
        total, h2 = two_sum(total, e2)
        return h0, h1, h2, total

    @compiled
    def grown4(e0: Any, e1: Any, e2: Any, e3: Any, term: Any) -> Any:
        h0, h1, h2, total = grown3(e0, e1, e2, term)
        total, h3 = two_sum(total, e3)
        return h0, h1, h2, h3, total

    @compiled
    def grown5(e0: Any, e1: Any, e2: Any, e3: Any, e4: Any, term: Any) -> Any:
        h0, h1, h2, h3, total = grown4(e0, e1, e2, e3, term)
        total, h4 = two_sum(total, e4)
        return h0, h1, h2, h3, h4, total

    @compiled
    def top_of5(h0: Any, h1: Any, h2: Any, h3: Any, h4: Any) -> Any:
        """An expansion as its sum and the rest."""
        tail, lost = two_sum(h1, h0)
        tail, lost = two_sum(h2, odd(tail, lost))
        tail, lost = two_sum(h3, odd(tail, lost))
        return two_sum(h4, odd(tail, lost))

    @compiled
    def sum_(x: Any, a: Any, b: Any, v: Any, sign: Any) -> Any:
        y = v * a
        top, rest = two_sum(x, y)
        safe = (abs(top) <= _LARGEST / 4.0) | endless(x) | endless(y)
        return top, rest, sign * (sign * x + sign * y), safe

    @compiled
    def product(x: Any, a: Any, b: Any, v: Any, sign: Any) -> Any:
        top, rest = two_product(x, a)
        safe = between(top, _LOW, _HIGH) & (abs(x) <= _HIGH) & (abs(a) <= _HIGH)
        return top, rest, top, safe | (x == 0.0) | (a == 0.0) | endless(x) | endless(a)

    @compiled
    def quotient(x: Any, a: Any, b: Any, v: Any, sign: Any) -> Any:
        top = x / a
        product, lost = two_product(top, a)
        rest = ((x - product) - lost) / a  # The remainder is exact.
        safe = between(top, _LOW, _HIGH) & between(x, _LOW, _HIGH) & between(a, _LOW, _HIGH)
        return top, rest, top, safe | (x == 0.0) | (a == 0.0) | endless(x) | endless(a)

    @compiled
    def root_(x: Any, a: Any, b: Any, v: Any, sign: Any) -> Any:
        top = root(x)
        square, lost = two_product(top, top)
        rest = ((x - square) - lost) / (top + top)
        return top, rest, top, between(x, _LOW, _HIGH) | (x <= 0.0) | endless(x)

    @compiled
    def fused(x: Any, a: Any, b: Any, v: Any, sign: Any) -> Any:
        # v a b in four parts, and x.
        scaled, below = two_product(v, a)
        product, lost = two_product(scaled, b)
        small, less = two_product(below, b)
        h0, h1, h2 = grown2(lost, product, less)
        h0, h1, h2, h3 = grown3(h0, h1, h2, small)
        h0, h1, h2, h3, h4 = grown4(h0, h1, h2, h3, x)
        top, rest = top_of5(h0, h1, h2, h3, h4)
        safe = moderate(v) & moderate(a) & moderate(b) & (abs(x) <= _HIGH)
        safe = safe | endless(x) | endless(v) | endless(a) | endless(b)
        return top, rest, sign * (sign * x + sign * product), safe

    @compiled
    def divided(x: Any, a: Any, b: Any, v: Any, sign: Any) -> Any:
        # (x b + v a) / b: the numerator is an expansion of four, and a quotient of three parts is divided out of it.
        product, lost = two_product(x, b)
        numerator, below = two_product(v, a)
        h0, h1, h2 = grown2(lost, product, below)
        h0, h1, h2, h3 = grown3(h0, h1, h2, numerator)
        first = (h3 + (h2 + (h1 + h0))) / b
        product, lost = two_product(first, b)
        h0, h1, h2, h3, h4 = grown4(h0, h1, h2, h3, -lost)
        h0, h1, h2, h3, h4, h5 = grown5(h0, h1, h2, h3, h4, -product)
        second = (h5 + (h4 + (h3 + (h2 + (h1 + h0))))) / b
        product, lost = two_product(second, b)
        h0, h1, h2, h3, h4, h6 = grown5(h0, h1, h2, h3, h4, -lost)
        h6, h5 = two_sum(h6, h5)
        h0, h1, h2, h3, h4, h7 = grown5(h0, h1, h2, h3, h4, -product)
        h7, h5 = two_sum(h7, h5)
        h7, h6 = two_sum(h7, h6)
        third = (h7 + (h6 + (h5 + (h4 + (h3 + (h2 + (h1 + h0))))))) / b
        high, low = two_sum(first, second)
        tail, lost = two_sum(low, third)
        top, rest = two_sum(high, odd(tail, lost))
        safe = (moderate(x) & moderate(v) & moderate(a) & moderate(b)) | (b == 0.0)
        safe = safe | endless(x) | endless(v) | endless(a) | endless(b)
        return top, rest, sign * (sign * x + sign * (numerator / b)), safe

    @compiled
    def interpolation(x: Any, a: Any, b: Any, v: Any, sign: Any) -> Any:
        # b a - b x in four parts, and x.
        product, lost = two_product(b, a)
        other, less = two_product(-b, x)
        h0, h1, h2 = grown2(lost, product, less)
        h0, h1, h2, h3 = grown3(h0, h1, h2, other)
        h0, h1, h2, h3, h4 = grown4(h0, h1, h2, h3, x)
        top, rest = top_of5(h0, h1, h2, h3, h4)
        plain = choose(abs(b) < 0.5, x + b * (a - x), a - (a - x) * (1.0 - b))
        plain = choose((top == 0.0) & (abs(plain) <= _LARGEST), plain * 0.0, plain)
        safe = (moderate(x) & moderate(a) & moderate(b)) | endless(x) | endless(a) | endless(b)
        return top, rest, plain, safe

    return Formulas(sum_, product, quotient, root_, fused, divided, interpolation)
