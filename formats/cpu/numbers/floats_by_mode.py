"""Rounding to a float format in any mode, in the Python that numba compiles: one shared tail, branch-free.

A mode is data: the addends of :mod:`.tail`. :meth:`.FloatParameters.packed` makes the words at ``p``.
"""

from __future__ import annotations

from typing import Any

from numba import njit
from numpy import uint32

from ...arithmetic.float_parameters import FloatParameters
from ..arguments import Int, Patterns
from ..tail import addend_of, quotient
from ..widths import INFINITE, MAGNITUDE, STORED, WIDTH, bits_of, float_of, left, real, right, signed, unsigned


@njit(inline="always")  # type: ignore[untyped-decorator]
def read(p: Any) -> Any:
    """The parameters at address ``p``, read once, before a loop; ``magic`` and ``least`` share a word."""
    return FloatParameters(
        p[0], p[1], p[2], p[3], p[4], p[5], p[6], p[7], p[8], p[9], p[10], p[11], p[12], p[13], p[14], p[3]
    )


@njit(inline="always")  # type: ignore[untyped-decorator]
def by_mode(bits: Any, q: Any, word: Any) -> Any:
    """A number's ``bits`` rounded; ``q`` are the parameters, ``word`` the random word of 32 bits, or 0."""
    mode = q.positive, q.negative, q.parity, q.sticky
    one = unsigned(1)
    magnitude = unsigned(bits & MAGNITUDE)
    sign = unsigned(bits ^ magnitude)
    minus = unsigned(sign >> unsigned(WIDTH - one))
    # Normal numbers: the addend, cut to the bits that are dropped; a carry moves into the exponent.
    odd = unsigned(unsigned(right(magnitude, q.shift) & one) ^ q.flip)
    addend = right(addend_of(mode, minus, odd, word), unsigned(WIDTH - q.shift))
    result = unsigned(unsigned(magnitude + addend) & unsigned(unsigned(0) - left(one, q.shift)))
    # Subnormal numbers: how many quanta. Subnormal numbers of the carrier have the exponent field of 1.
    field = max(unsigned(magnitude >> STORED), one)
    significand = unsigned(magnitude - unsigned(unsigned(field - one) << STORED))
    quanta = quotient(significand, unsigned(q.subnormal_shift - field), minus, mode, word)
    subnormal = bits_of(real(signed(quanta)) * float_of(q.quantum))
    result = subnormal if magnitude < q.smallest_normal else result
    result = unsigned(0) if result < q.least else result
    over = q.over_negative if minus != unsigned(0) else q.over_positive
    result = over if result > q.largest else result
    result = q.infinite if magnitude == INFINITE else result
    result = magnitude if magnitude > INFINITE else result
    sign = unsigned(sign & q.zero_sign) if result == unsigned(0) else sign
    return unsigned(result | sign)


def fixed(source: Patterns, target: Patterns, n: Int, p: Patterns) -> None:
    """Any mode but stochastic."""
    q = read(p)
    for i in range(n):
        target[i] = by_mode(source[i], q, uint32(0))
