"""Rounding one number to an integer, in any mode, and to a code of a uniform grid, as numba loops do it."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy import float64, int64

from .tail import addend_of, quotient, significand_of
from .widths import ABOVE_WORD, BIAS, MAGNITUDE, SIGN, STORED, WIDTH, bits_of, float_of, left, real, signed, unsigned

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
