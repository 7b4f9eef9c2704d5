"""The shared tail of every rounding: an integer significand loses its lowest bits, and goes up or stays.

Whatever the family, rounding ends so: the magnitude is ``significand / 2^shift``; the result is its integer part, plus
1 if the dropped fraction F, as a number of W bits, and an addend carry: ``F + addend >= 2^W``. The addend is the mode:

    nearest-even  2^(W-1) - 1 + odd     toward-zero  0          up, down    0 or 2^W - 1, by the sign
    nearest-away  2^(W-1)               to-odd       2^W - 1 + odd (mod 2^W: 0 where odd)
    stochastic    a random word

so that no mode needs a branch. ``odd`` is 1 where the integer part is odd (or its code, if the format says so).
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from numba import njit
from numpy import uint32, uint64

from roundoff.formats.modes import WORD_BITS, Rounding
from roundoff.formats.reinterpret import left32, left64, right32, right64

if TYPE_CHECKING:
    import torch


class Rule(NamedTuple):
    """A rounding mode as data: the addends, for fractions of W bits. Stochastic has zeros; its addend is the word."""

    positive: int
    """Addend of positive numbers."""
    negative: int
    """Addend of negative numbers."""
    parity: int
    """1 if ``odd`` is added to the addend."""
    sticky: int
    """1 if what is lost beyond W bits must be jammed into the last bit of the fraction; 0 for stochastic."""


@cache
def rule(rounding: Rounding, width: int = WORD_BITS) -> Rule:
    """The rule of a mode for fractions of ``width`` bits (32 or 64)."""
    ones = (1 << width) - 1
    half = 1 << (width - 1)
    return {
        Rounding.NEAREST_EVEN: Rule(half - 1, half - 1, 1, 1),
        Rounding.NEAREST_AWAY: Rule(half, half, 0, 1),
        Rounding.TOWARD_ZERO: Rule(0, 0, 0, 1),
        Rounding.UP: Rule(ones, 0, 0, 1),
        Rounding.DOWN: Rule(0, ones, 0, 1),
        Rounding.TO_ODD: Rule(ones, ones, 1, 1),
        Rounding.STOCHASTIC: Rule(0, 0, 0, 0),
    }[rounding]


@njit(inline="always")  # type: ignore[untyped-decorator]
def addend32(positive: Any, negative: Any, parity: Any, minus: Any, odd: Any) -> Any:
    """The addend of one number: ``minus`` is 1 if it is negative, ``odd`` as above; all uint32."""
    chosen = uint32(positive ^ uint32(uint32(positive ^ negative) & uint32(uint32(0) - minus)))
    return uint32(chosen + uint32(odd & parity))


@njit(inline="always")  # type: ignore[untyped-decorator]
def addend64(positive: Any, negative: Any, parity: Any, minus: Any, odd: Any) -> Any:
    """As :func:`addend32`, all uint64."""
    chosen = uint64(positive ^ uint64(uint64(positive ^ negative) & uint64(uint64(0) - minus)))
    return uint64(chosen + uint64(odd & parity))


@njit(inline="always")  # type: ignore[untyped-decorator]
def round_shifted32(significand: Any, shift: Any, addend: Any, sticky: Any) -> Any:
    """``significand / 2^shift`` rounded to an integer, all uint32, any shift; branch-free.

    The fraction is what lies below the point in the first 32 places; beyond them ``sticky`` 1 jams it into the last.
    """
    width = uint32(32)
    whole = right32(significand, shift)
    # Counts that wrap below zero are large, and shift everything out.
    fraction = uint32(left32(significand, uint32(width - shift)) | right32(significand, uint32(shift - width)))
    lost = sticky if significand != uint32(0) else uint32(0)
    fraction = uint32(fraction | lost) if shift > width else fraction
    return uint32(whole + uint32(1)) if uint32(fraction + addend) < fraction else whole


@njit(inline="always")  # type: ignore[untyped-decorator]
def round_shifted64(significand: Any, shift: Any, addend: Any, sticky: Any) -> Any:
    """As :func:`round_shifted32`, all uint64. A random word is the upper half of the addend."""
    width = uint64(64)
    whole = right64(significand, shift)
    # Counts that wrap below zero are large, and shift everything out.
    fraction = uint64(left64(significand, uint64(width - shift)) | right64(significand, uint64(shift - width)))
    lost = sticky if significand != uint64(0) else uint64(0)
    fraction = uint64(fraction | lost) if shift > width else fraction
    return uint64(whole + uint64(1)) if uint64(fraction + addend) < fraction else whole


def round_shifted(
    significand: torch.Tensor,
    shift: torch.Tensor | int,
    mode: Rule,
    negative: torch.Tensor,
    *,
    odd: torch.Tensor | None = None,
    words: torch.Tensor | None = None,
) -> torch.Tensor:
    """``significand / 2^shift`` rounded to an integer, as tensor operations on any device: the kernels' twin.

    Args:
        significand: int64, 0 to 2^62; the magnitude is ``significand / 2^shift``.
        shift: int64 or a Python int, 0 or more; broadcasts.
        mode: of :func:`rule`, for fractions of 32 bits.
        negative: bool, where the number is negative.
        odd: int64, 0 or 1: the parity that a tie looks at; of the integer part if None.
        words: random words for stochastic rounding, int64 in [0, 2^32); None for the other modes.

    Returns:
        int64, the rounded magnitudes.
    """
    import torch  # noqa: PLC0415  at run time the kernels above need none

    shift = torch.as_tensor(shift, device=significand.device)
    whole = significand >> shift.clamp(max=63)
    # Up to 32 dropped bits fill the fraction from above; of more, the highest 32 stay and the rest is jammed into one.
    few = shift.clamp(max=32)
    many = (shift - 32).clamp(min=0, max=63)
    upper = (significand >> many) & ((1 << few) - 1)
    fraction = upper << (32 - few)
    if mode.sticky:
        lost = significand & ((1 << many) - 1)
        fraction = fraction | ((lost != 0) | ((many == 63) & (significand != 0))).to(torch.int64)
    if words is None:
        addend = torch.where(negative, mode.negative, mode.positive)
        if mode.parity:
            addend = (addend + (whole & 1 if odd is None else odd)) & 0xFFFFFFFF
    else:
        addend = words
    return whole + ((fraction + addend) >> 32)
