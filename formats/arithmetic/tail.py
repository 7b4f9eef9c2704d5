"""The shared tail of every rounding: an integer significand loses its lowest bits, and goes up or stays.

Whatever the family, rounding ends so: the magnitude is ``significand / 2^shift``; the result is its integer part, plus
1 if the dropped fraction F, as a number of W bits, and an addend carry: ``F + addend >= 2^W``. The addend is the mode:

    nearest-even  2^(W-1) - 1 + odd     toward-zero  0          up, down    0 or 2^W - 1, by the sign
    nearest-away  2^(W-1)               to-odd       2^W - 1 + odd (mod 2^W: 0 where odd)
    nearest-up    2^(W-1), less 1 of negative numbers             stochastic   a random word

so that no mode needs a branch. ``odd`` is 1 where the integer part is odd (or its code, if the format says so).
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import torch

from ..base.modes import WORD_BITS, Rounding
from ..base.on_device import number_on, where


class TailRule(NamedTuple):
    """A rounding mode as data: the addends, for fractions of W bits. Stochastic has zeros; its addend is the word."""

    positive: int
    """Addend of positive numbers."""
    negative: int
    """Addend of negative numbers."""
    parity: int
    """1 if ``odd`` is added to the addend."""
    sticky: int
    """1 if bits beyond W must be jammed into the last bit of the fraction; 0 for stochastic."""


@cache
def rule(rounding: Rounding, width: int = WORD_BITS) -> TailRule:
    """The rule of a mode for fractions of ``width`` bits (32 or 64)."""
    ones = (1 << width) - 1  # Carries for every fraction above 0.
    half = 1 << (width - 1)
    return {
        Rounding.NEAREST_EVEN: TailRule(half - 1, half - 1, 1, 1),
        Rounding.NEAREST_AWAY: TailRule(half, half, 0, 1),
        Rounding.NEAREST_UP: TailRule(half, half - 1, 0, 1),
        Rounding.TOWARD_ZERO: TailRule(0, 0, 0, 1),
        Rounding.UP: TailRule(ones, 0, 0, 1),
        Rounding.DOWN: TailRule(0, ones, 0, 1),
        Rounding.TO_ODD: TailRule(ones, ones, 1, 1),
        Rounding.STOCHASTIC: TailRule(0, 0, 0, 0),
    }[rounding]


def round_shifted(
    significand: torch.Tensor,
    shift: torch.Tensor | int,
    mode: TailRule,
    negative: torch.Tensor,
    *,
    odd: torch.Tensor | None = None,
    words: torch.Tensor | None = None,
) -> torch.Tensor:
    """``significand / 2^shift`` rounded to an integer, as tensor operations on any device: as :mod:`.tail`.

    Args:
        significand: int64, 0 to 2^62; the magnitude is ``significand / 2^shift``.
        shift: int64 or a Python int, 0 or more; broadcasts.
        mode: the mode of :func:`rule`, for fractions of 32 bits.
        negative: bool, where the number is negative.
        odd: int64, 0 or 1: the parity that a tie looks at; of the integer part if None.
        words: random words for stochastic rounding, int64 in [0, 2^32); None for the other modes.

    Returns:
        int64, the rounded magnitudes.
    """
    shift = number_on(shift, torch.int64, significand.device)
    integer_part = significand >> shift.clamp(max=63)
    # Up to 32 dropped bits fill the fraction from above; of more, the highest 32 stay and the rest is jammed into one.
    kept_bits = shift.clamp(max=32)
    jammed_bits = (shift - 32).clamp(min=0, max=63)
    upper = (significand >> jammed_bits) & ((1 << kept_bits) - 1)
    fraction = upper << (32 - kept_bits)
    if mode.sticky:
        lost = significand & ((1 << jammed_bits) - 1)
        fraction = fraction | ((lost != 0) | ((jammed_bits == 63) & (significand != 0))).to(torch.int64)
    if words is None:
        addend = where(negative, mode.negative, mode.positive)
        if mode.parity:
            addend = (addend + (integer_part & 1 if odd is None else odd)) & 0xFFFFFFFF
    else:
        addend = words
    return integer_part + ((fraction + addend) >> 32)
