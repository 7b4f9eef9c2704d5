"""The shared tail of every rounding, of :mod:`..arithmetic.tail`, as numba loops do it.

Functions of one value round with it to an integer, to a small float or integer, and to a code of a uniform grid.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numba import njit
from numpy import float64, int64

from .widths import (
    ABOVE_WORD,
    BIAS,
    FRACTION,
    MAGNITUDE,
    SIGN,
    STORED,
    WIDTH,
    bits_of,
    float_of,
    left,
    real,
    right,
    signed,
    specialised,
    unsigned,
)


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

    The fraction is the first places below the point that fit in a word; beyond them ``sticky`` 1 jams it into the last.
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


@njit(inline="always")  # type: ignore[untyped-decorator]
def to_element(bits: Any, smallest: Any, m: Any, largest: Any, zero_sign: Any, mode: Any, word: Any) -> Any:
    """A number rounded to ``m`` stored significand bits and saturated at ``largest``.

    Args:
        bits: the pattern of a finite number.
        smallest: the biased exponent of the smallest normal element, unsigned; at least ``m`` + 1.
        m: unsigned, at most what the carrier stores.
        largest: the largest number of the carrier, positive.
        zero_sign: unsigned; the sign bit if negative numbers that vanish keep their sign, else 0.
        mode: the mode of :func:`.mode_of`.
        word: the random word, uint32; 0 if rounding is not stochastic.
    """
    sign = unsigned(bits & SIGN)
    significand, exponent = significand_of(unsigned(bits & MAGNITUDE))
    unit = smallest if exponent < smallest else exponent  # noqa: FURB136  numba's own would widen
    shift = unsigned(unsigned(unit - exponent) + unsigned(STORED - m))
    whole = quotient(significand, shift, unsigned(sign >> unsigned(WIDTH - unsigned(1))), mode, word)
    value = real(signed(whole)) * float_of(unsigned(unsigned(unit - m) << STORED))
    value = largest if value > largest else value  # noqa: FURB136
    sign = unsigned(sign & zero_sign) if whole == unsigned(0) else sign
    return float_of(unsigned(bits_of(value) | sign))


# More steps than any code; one more is still exact.
_MOST_STEPS = 1 << 20
_MOST_CODES = 1 << 22


@njit(inline="always")  # type: ignore[untyped-decorator]
def to_integer(x: Any, mode: Any, word: Any) -> Any:
    """A number rounded to an integer, both of the carrier; infinity and NaN stay.

    Args:
        x: the number.
        mode: the mode of :func:`.mode_of`.
        word: the random word, uint32; 0 if rounding is not stochastic.
    """
    bits = bits_of(x)
    sign = unsigned(bits & SIGN)
    magnitude = unsigned(bits & MAGNITUDE)
    significand, exponent = significand_of(magnitude)
    integer = unsigned(BIAS + STORED)  # the biased exponent from which on floats are integers
    shift = unsigned(integer - exponent) if exponent < integer else unsigned(0)
    minus = unsigned(sign >> unsigned(WIDTH - unsigned(1)))
    whole = bits_of(real(signed(quotient(significand, shift, minus, mode, word))))
    whole = magnitude if exponent >= integer else whole
    return float_of(unsigned(whole | sign))


@njit(inline="always")  # type: ignore[untyped-decorator]
def between_steps(x: Any, inverse: Any, scale: Any, zero: Any, mode: Any, word: Any) -> Any:
    """Rounds a value divided by the scale to an integer, returned in the carrier; NaN stays.

    The result is k or k + 1, where the value is between the floats k * scale and (k + 1) * scale as computed, so that
    both of these keep their value. (To nearest-even it is the number times the reciprocal, rounded to an integer.)

    Args:
        x: the number.
        inverse: the reciprocal of the scale.
        scale: the distance of the numbers.
        zero: the zero point; with it added, the steps are a code: rounding to odd looks at its parity.
        mode: the mode of :func:`.mode_of`.
        word: the random word, uint32; 0 if rounding is not stochastic.
    """
    minus = unsigned(bits_of(x) >> unsigned(WIDTH - unsigned(1)))
    magnitude = abs(x)
    k = np.floor(magnitude * inverse)
    k = real(_MOST_STEPS) if k > real(_MOST_STEPS) else k  # noqa: FURB136  NaN passes through
    # The product was rounded, as the reciprocal was.
    k = k - real(1.0) if k * scale > magnitude else k
    k = k + real(1.0) if (k + real(1.0)) * scale <= magnitude else k
    lower = k * scale
    rest, step = magnitude - lower, (k + real(1.0)) * scale - lower
    # Comparisons that are false for NaN: it must not become an integer.
    part = float64(rest) / float64(step)
    fraction = left(unsigned(int64(part * 4294967296.0 if part < 1.0 else 0.0)), ABOVE_WORD)
    sticky = mode[3] if rest > real(0.0) else unsigned(0)
    sticky = unsigned(0) if rest + rest == step else sticky  # a tie is exact
    fraction = unsigned(fraction | sticky)
    code = k + zero
    odd = unsigned(unsigned(signed(code if code < real(_MOST_CODES) else real(0.0))) & unsigned(1))
    k = k + real(1.0) if unsigned(fraction + addend_of(mode, minus, odd, word)) < fraction else k
    return -k if minus != unsigned(0) else k


@njit(inline="always")  # type: ignore[untyped-decorator]
def on_grid(steps: Any, scale: Any, zero: Any, low: Any, high: Any) -> Any:
    """The number of the code ``steps + zero``, saturated; ``steps`` is the rounded value in units of the scale."""
    code = steps + zero
    # Written so that NaN, which compares as false, passes through.
    code = low if code < low else code  # noqa: FURB136
    code = high if code > high else code  # noqa: FURB136
    return (code - zero) * scale
