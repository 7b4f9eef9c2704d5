"""The loops of stochastic rounding, in the Python that numba compiles; see :mod:`.floats_nearest`.

The random word of an element is a hash of its index: ``first + i``, with the keys and the thinning at ``k``. Or the
caller gives the words.
"""

from __future__ import annotations

from typing import Any

from numba import njit
from numpy import float32, int32, uint32, uint64

from ...base.random_words import hash32
from ..bits import bits_of32, float_of32, right32
from .floats_by_mode import read, round32, round64


@njit(inline="always")  # type: ignore[untyped-decorator]
def _word(index: Any, key0: Any, key1: Any, mask: Any, half: Any) -> Any:
    return uint32(uint32(hash32(index, key0, key1) & mask) | half)


@njit(inline="always")  # type: ignore[untyped-decorator]
def _chain32(bits: Any, word: Any, smallest: Any, top: Any, down: Any, up: Any, largest: Any, beyond: Any) -> Any:
    """Rounds to a format with a signed zero and subnormals whose last places are normal numbers of float32.

    Scaled so that the last place is 1, the number's integer part and its fraction are exact in float32.
    """
    magnitude = uint32(bits & uint32(0x7FFFFFFF))
    binade = min(max(uint32(bits & uint32(0x7F800000)), smallest), top)
    scaled = float_of32(magnitude) * float_of32(uint32(down - binade))
    whole = float32(int32(scaled))
    fraction = uint32((scaled - whole) * float32(4294967296.0))
    whole = whole + float32(1.0) if uint32(fraction + word) < fraction else whole
    result = bits_of32(whole * float_of32(uint32(binade - up)))
    result = beyond if result > largest or magnitude >= top else result
    result = magnitude if magnitude > uint32(0x7F800000) else result
    return uint32(result | uint32(bits & uint32(0x80000000)))


@njit(inline="always")  # type: ignore[untyped-decorator]
def _uniform32(bits: Any, word: Any, rest: Any, mask: Any) -> Any:
    """Rounds to an IEEE format with float32's own 8 exponent bits, cutting ``32 - rest`` > 0 bits."""
    result = uint32(uint32(bits + right32(word, rest)) & mask)
    return bits if uint32(bits & uint32(0x7FFFFFFF)) >= uint32(0x7F800000) else result


@njit(inline="always")  # type: ignore[untyped-decorator]
def _chain_constants(p: Any) -> Any:
    # 2^(emax + 1); the pattern that, less a binade, is 2^m over it; and the pattern of 2^m, to be taken off a binade.
    top = uint32(uint32(p[2] & uint32(0x7F800000)) + uint32(0x800000))
    up = uint32(uint32(uint32(23) - p[0]) * uint32(0x800000))
    return p[1], top, uint32(uint32(0x7F000000) + up), up, p[2], p[6]


def any32(source: Any, target: Any, n: Any, p: Any, first: Any, k: Any) -> None:
    """Any format, float32 words from ``source`` to ``target``."""
    q = read(p)
    key0, key1, mask, half, start = k[0], k[1], k[2], k[3], uint32(first)
    for i in range(n):
        word = _word(uint32(start + uint32(i)), key0, key1, mask, half)
        target[i] = round32(source[i], q, word)


def any32_in_place(data: Any, n: Any, p: Any, first: Any, k: Any) -> None:
    """Any format, float32 words rounded in place."""
    q = read(p)
    key0, key1, mask, half, start = k[0], k[1], k[2], k[3], uint32(first)
    for i in range(n):
        word = _word(uint32(start + uint32(i)), key0, key1, mask, half)
        data[i] = round32(data[i], q, word)


def any64(source: Any, target: Any, n: Any, p: Any, first: Any, k: Any) -> None:
    """Any format, float64 words from ``source`` to ``target``."""
    q = read(p)
    key0, key1, mask, half, start = k[0], k[1], k[2], k[3], uint32(first)
    for i in range(n):
        word = _word(uint32(start + uint32(i)), key0, key1, mask, half)
        target[i] = round64(source[i], q, uint64(uint64(word) << uint64(32)))


def any64_in_place(data: Any, n: Any, p: Any, first: Any, k: Any) -> None:
    """Any format, float64 words rounded in place."""
    q = read(p)
    key0, key1, mask, half, start = k[0], k[1], k[2], k[3], uint32(first)
    for i in range(n):
        word = _word(uint32(start + uint32(i)), key0, key1, mask, half)
        data[i] = round64(data[i], q, uint64(uint64(word) << uint64(32)))


def chain32(source: Any, target: Any, n: Any, p: Any, first: Any, k: Any) -> None:
    """Formats for which ``_chain32`` works, float32 words from ``source`` to ``target``."""
    smallest, top, down, up, largest, beyond = _chain_constants(p)
    key0, key1, mask, half, start = k[0], k[1], k[2], k[3], uint32(first)
    for i in range(n):
        word = _word(uint32(start + uint32(i)), key0, key1, mask, half)
        target[i] = _chain32(source[i], word, smallest, top, down, up, largest, beyond)


def chain32_in_place(data: Any, n: Any, p: Any, first: Any, k: Any) -> None:
    """Formats for which ``_chain32`` works, float32 words rounded in place."""
    smallest, top, down, up, largest, beyond = _chain_constants(p)
    key0, key1, mask, half, start = k[0], k[1], k[2], k[3], uint32(first)
    for i in range(n):
        word = _word(uint32(start + uint32(i)), key0, key1, mask, half)
        data[i] = _chain32(data[i], word, smallest, top, down, up, largest, beyond)


def uniform32(source: Any, target: Any, n: Any, p: Any, first: Any, k: Any) -> None:
    """Formats for which ``_uniform32`` works, float32 words from ``source`` to ``target``."""
    rest, cut = uint32(uint32(32) - p[0]), uint32(uint32(0) - uint32(uint32(1) << p[0]))
    key0, key1, mask, half, start = k[0], k[1], k[2], k[3], uint32(first)
    for i in range(n):
        word = _word(uint32(start + uint32(i)), key0, key1, mask, half)
        target[i] = _uniform32(source[i], word, rest, cut)


def uniform32_in_place(data: Any, n: Any, p: Any, first: Any, k: Any) -> None:
    """Formats for which ``_uniform32`` works, float32 words rounded in place."""
    rest, cut = uint32(uint32(32) - p[0]), uint32(uint32(0) - uint32(uint32(1) << p[0]))
    key0, key1, mask, half, start = k[0], k[1], k[2], k[3], uint32(first)
    for i in range(n):
        word = _word(uint32(start + uint32(i)), key0, key1, mask, half)
        data[i] = _uniform32(data[i], word, rest, cut)


def given32(source: Any, target: Any, n: Any, p: Any, words: Any) -> None:
    """Any format, float32 words from ``source`` to ``target``, with the random words at ``words``."""
    q = read(p)
    for i in range(n):
        target[i] = round32(source[i], q, words[i])


def given64(source: Any, target: Any, n: Any, p: Any, words: Any) -> None:
    """Any format, float64 words from ``source`` to ``target``, with the random words at ``words``."""
    q = read(p)
    for i in range(n):
        target[i] = round64(source[i], q, uint64(uint64(words[i]) << uint64(32)))
