"""The shared tail of every rounding, of :mod:`..arithmetic.tail`, as numba loops do it."""

from __future__ import annotations

from typing import Any

import torch
from numba import njit

from .widths import ABOVE_WORD, FRACTION, STORED, WIDTH, left, right, specialised, unsigned


@njit(inline="always")  # type: ignore[untyped-decorator]
def addend(positive: Any, negative: Any, parity: Any, minus: Any, odd: Any) -> Any:
    """The addend of one number: ``minus`` is 1 if it is negative, ``odd`` as above; all unsigned."""
    chosen = unsigned(positive ^ unsigned(unsigned(positive ^ negative) & unsigned(unsigned(0) - minus)))
    return unsigned(chosen + unsigned(odd & parity))


@njit(inline="always")  # type: ignore[untyped-decorator]
def addend_of(mode: Any, minus: Any, odd: Any, word: Any) -> Any:
    """Returns :func:`addend` for a ``mode`` of :func:`.mode_of` and a random word of 32 bits, 0 in other modes."""
    positive, negative, parity, _ = mode
    return unsigned(addend(positive, negative, parity, minus, odd) + left(unsigned(word), ABOVE_WORD))


@njit(inline="always")  # type: ignore[untyped-decorator]
def round_shifted(significand: Any, shift: Any, addend: Any, sticky: Any) -> Any:
    """``significand / 2^shift`` rounded to an integer, all unsigned, any shift; branch-free.

    The fraction is the first places below the point that fit in a word; beyond them ``sticky`` 1 jams
    it into the last.
    """
    whole = right(significand, shift)
    # Counts that wrap below zero are large, and shift everything out.
    fraction = unsigned(left(significand, unsigned(WIDTH - shift)) | right(significand, unsigned(shift - WIDTH)))
    lost = sticky if significand != unsigned(0) else unsigned(0)
    fraction = unsigned(fraction | lost) if shift > WIDTH else fraction
    return unsigned(whole + unsigned(1)) if unsigned(fraction + addend) < fraction else whole


@njit(inline="always")  # type: ignore[untyped-decorator]
def quotient(significand: Any, shift: Any, minus: Any, mode: Any, word: Any) -> Any:
    """``significand / 2^shift`` rounded to an integer in a mode, ties and odd numbers by the integer's own parity."""
    odd = unsigned(right(significand, shift) & unsigned(1))
    return round_shifted(significand, shift, addend_of(mode, minus, odd, word), mode[3])


@njit(inline="always")  # type: ignore[untyped-decorator]
def significand_of(magnitude: Any) -> Any:
    """(significand, biased exponent) of a finite number's bits without the sign; subnormal numbers have exponent 1."""
    exponent = unsigned(magnitude >> STORED)
    normal = unsigned(1) if exponent > unsigned(0) else unsigned(0)
    significand = unsigned(unsigned(magnitude & FRACTION) | unsigned(normal << STORED))
    return significand, unsigned(exponent | unsigned(normal ^ unsigned(1)))


# For loops that compute in float64 whatever the carrier is.
addend64 = specialised(addend, torch.float64)
addend_of64 = specialised(addend_of, torch.float64)
round_shifted64 = specialised(round_shifted, torch.float64)
