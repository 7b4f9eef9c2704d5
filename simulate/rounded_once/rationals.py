"""Elementwise arithmetic in rational numbers, rounded once to float64: for the few elements that formulas leave out."""

from __future__ import annotations

from fractions import Fraction
from math import copysign, isqrt, ulp
from typing import TYPE_CHECKING

import torch

from ...formats import Overflow, Rounding
from ...formats.base.random_words import random_words
from ...formats.families.floats import FP64
from ...formats.tools.reference import round_exactly
from .loops import UNSAFE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...formats import RandomBits
    from .carrier_rounding import CarrierRounding

_ROOT_BITS = 128  # of a square root, before it is rounded to 53 bits by a word of 32


def fill_in(
    formula: str,
    operands: Sequence[torch.Tensor],
    factor: float,
    results: torch.Tensor,
    how: CarrierRounding,
    random: RandomBits | None,
) -> None:
    """Writes the results that are marked ``UNSAFE``, whose operands are finite; some 20 us for each.

    Args:
        formula: a field of :class:`~roundoff.simulate.rounded_once.formulas.Formulas`.
        operands: float64, of the shape of the results, or of none.
        factor: the formula's ``v``.
        results: float64, contiguous.
        how: how they are rounded.
        random: for stochastic rounding, as it was for the others.
    """
    flat = results.view(-1)
    places = (flat.view(torch.int64) == UNSAFE).nonzero()[:, 0]
    if not places.numel():
        return
    words = [None] * len(places) if random is None else random_words(random, flat)[places].tolist()
    chosen = [x.expand(results.shape).reshape(-1)[places].tolist() for x in operands]
    numbers = [_rounded(formula, row, float(factor), how, word) for *row, word in zip(*chosen, words, strict=True)]
    flat[places] = torch.tensor(numbers, dtype=torch.float64, device=flat.device)


def _rounded(formula: str, row: Sequence[float], factor: float, how: CarrierRounding, word: int | None) -> float:
    exact = _exact(formula, [Fraction(x) for x in row], Fraction(factor))
    if exact:
        rounded = round_exactly(exact, FP64, how.mode, Overflow.SATURATE if how.saturating else None, word)
        return rounded or (copysign(ulp(0.0), exact) if how.saturating else rounded)
    return _zero(formula, row, factor, -1.0 if how.mode is Rounding.DOWN else 1.0)


def _exact(formula: str, operands: Sequence[Fraction], factor: Fraction) -> Fraction:
    x, a, b = [*operands, Fraction(0), Fraction(0)][:3]
    if formula == "root":
        return _root(x)
    if formula in ("quotient", "divided"):
        return x / a if formula == "quotient" else x + factor * a / b
    sums = {"sum": x + factor * a, "product": x * a, "fused": x + factor * a * b, "interpolation": x + b * (a - x)}
    return sums[formula]


def _root(x: Fraction) -> Fraction:
    """The square root, cut; half a unit stands for what is cut off."""
    scale = 1 << 2 * (_ROOT_BITS + max(0, x.denominator.bit_length() - x.numerator.bit_length()))
    scaled = x * scale  # an integer: denominators are powers of two, and the scale is larger
    whole = isqrt(int(scaled))
    rest = Fraction(int(whole * whole != scaled), 2)
    return (whole + rest) / isqrt(scale)


def _zero(formula: str, row: Sequence[float], factor: float, sign: float) -> float:
    """The zero that a formula gives: that of its operations where all they add are zeros, else that of a difference."""
    if formula in ("fused", "divided") and row[0] == 0:
        other = copysign(0.0, copysign(1.0, factor) * copysign(1.0, row[1]) * copysign(1.0, row[2]))
        return sign * (sign * row[0] + sign * other)
    return sign * 0.0
