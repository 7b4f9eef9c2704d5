"""Rounding to a float format in any mode, in the Python that numba compiles: one shared tail, branch-free.

A mode is data: the addends of :mod:`.tail`. :meth:`.FloatParameters.packed` makes the words at ``p``.

Several ways round stochastically, as in :mod:`.floats_nearest`. The random word of an element is a hash of its index,
``first + i``, with the keys and the thinning at ``k``; or the caller gives the words.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from numba import njit
from numpy import float32, int32, uint32

from ...arithmetic.float_parameters import FloatParameters
from ...base.random_words import hash32
from ..arguments import Int, Patterns, Words
from ..bits import bits_of32, float_of32, right32
from ..tail import addend_of, quotient
from ..widths import (
    INFINITE,
    MAGNITUDE,
    STORED,
    WIDTH,
    KernelPart,
    bits_of,
    float_of,
    left,
    real,
    right,
    signed,
    unsigned,
)


class Way(NamedTuple):
    """One of several ways of rounding."""

    constants: Any
    """Derives the constants of ``rounded`` from :class:`.FloatParameters`."""
    rounded: Any
    """Rounds an element's bits."""


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
    result = unsigned(0) if result < q.least else result  # Flushed.
    over = q.over_negative if minus != unsigned(0) else q.over_positive
    result = over if result > q.largest else result
    result = q.infinite if magnitude == INFINITE else result
    result = magnitude if magnitude > INFINITE else result  # NaN keeps its payload.
    sign = unsigned(sign & q.zero_sign) if result == unsigned(0) else sign
    return unsigned(result | sign)


def fixed(source: Patterns, target: Patterns, n: Int, p: Patterns) -> None:
    """Rounds in any mode except stochastic."""
    q = read(p)
    for i in range(n):
        target[i] = by_mode(source[i], q, uint32(0))


@njit(inline="always")  # type: ignore[untyped-decorator]
def itself(q: Any) -> Any:
    """No constants but the parameters."""
    return q


constants: Any = KernelPart()
rounded: Any = KernelPart()


def hashed(source: Patterns, target: Patterns, n: Int, p: Patterns, first: Int, k: Words) -> None:
    """Rounds in one of the ways, with the words of :class:`.FloatParameters` at ``p``."""
    chosen = constants(read(p))
    key0, key1, mask, half, start = k[0], k[1], k[2], k[3], uint32(first)
    for i in range(n):
        word = uint32(uint32(hash32(uint32(start + uint32(i)), key0, key1) & mask) | half)
        target[i] = rounded(source[i], chosen, word)


def given(source: Patterns, target: Patterns, n: Int, p: Patterns, words: Words) -> None:
    """Rounds to any format, with the random words at ``words``."""
    q = read(p)
    for i in range(n):
        target[i] = by_mode(source[i], q, words[i])


@njit(inline="always")  # type: ignore[untyped-decorator]
def chain_constants(q: Any) -> Any:
    """Computes the constants of :func:`chain` from the parameters of a format."""
    # 2^(emax + 1); the pattern that, less a binade, is 2^m over it; and the pattern of 2^m, to be taken off a binade.
    top = uint32(uint32(q.largest & uint32(0x7F800000)) + uint32(0x800000))
    up = uint32(uint32(uint32(23) - q.shift) * uint32(0x800000))
    return q.smallest_normal, top, uint32(uint32(0x7F000000) + up), up, q.largest, q.infinite


@njit(inline="always")  # type: ignore[untyped-decorator]
def chain(bits: Any, constants: Any, word: Any) -> Any:
    """Rounds to a format with a signed zero and subnormals, which float32 holds as normal numbers.

    Scaled so that the last place is 1, the number's integer part and its fraction are exact in float32.
    """
    smallest, top, down, up, largest, beyond = constants
    magnitude = uint32(bits & uint32(0x7FFFFFFF))
    binade = min(max(uint32(bits & uint32(0x7F800000)), smallest), top)
    scaled = float_of32(magnitude) * float_of32(uint32(down - binade))
    whole = float32(int32(scaled))
    fraction = uint32((scaled - whole) * float32(4294967296.0))  # 32 bits, like the word.
    whole = whole + float32(1.0) if uint32(fraction + word) < fraction else whole
    result = bits_of32(whole * float_of32(uint32(binade - up)))
    result = beyond if result > largest or magnitude >= top else result
    result = magnitude if magnitude > uint32(0x7F800000) else result
    return uint32(result | uint32(bits & uint32(0x80000000)))


@njit(inline="always")  # type: ignore[untyped-decorator]
def uniform_constants(q: Any) -> Any:
    """Computes the constants of :func:`uniform` from the parameters of a format."""
    # A shift that leaves as many bits of the word as are cut, and the mask that cuts.
    return uint32(uint32(32) - q.shift), uint32(uint32(0) - uint32(uint32(1) << q.shift))


@njit(inline="always")  # type: ignore[untyped-decorator]
def uniform(bits: Any, constants: Any, word: Any) -> Any:
    """Rounds to an IEEE format with float32's own 8 exponent bits, cutting at least one bit."""
    rest, mask = constants
    result = uint32(uint32(bits + right32(word, rest)) & mask)
    return bits if uint32(bits & uint32(0x7FFFFFFF)) >= uint32(0x7F800000) else result


ANY = Way(itself, by_mode)
CHAIN = Way(chain_constants, chain)
UNIFORM = Way(uniform_constants, uniform)
