"""The loops for the other rounding modes, in the Python that numba compiles: one shared tail, branch-free.

A mode is data: addends, see :mod:`.tail`. The words at ``p`` are those that
:meth:`.FloatParameters.packed` makes for rounding by mode.
"""

from __future__ import annotations

from typing import Any

from numba import njit
from numpy import float32, float64, int32, int64, uint32, uint64

from ..bits import bits_of32, bits_of64, float_of32, float_of64, left32, left64, right32, right64
from ..tail import addend32, addend64, round_shifted32, round_shifted64


@njit(inline="always")  # type: ignore[untyped-decorator]
def round32(bits: Any, p: Any, word: Any) -> Any:
    """The float32 ``bits`` rounded; ``p`` is the tuple of parameters, ``word`` the random word or 0."""
    shift, smallest, largest, least, over_positive, over_negative, infinite, zero, flip, low, quantum = p[:11]
    positive, negative, parity, sticky = p[11:15]
    one = uint32(1)
    magnitude = uint32(bits & uint32(0x7FFFFFFF))
    sign = uint32(bits ^ magnitude)
    minus = uint32(sign >> uint32(31))
    # Normal numbers: the addend, cut to the bits that are dropped; a carry moves into the exponent.
    odd = uint32(uint32(right32(magnitude, shift) & one) ^ flip)
    addend = uint32(addend32(positive, negative, parity, minus, odd) + word)
    addend = right32(addend, uint32(uint32(32) - shift))
    result = uint32(uint32(magnitude + addend) & uint32(uint32(0) - left32(one, shift)))
    # Subnormal numbers: how many quanta. Subnormal numbers of the carrier have the exponent field of 1.
    field = max(uint32(magnitude >> uint32(23)), one)
    significand = uint32(magnitude - uint32(uint32(field - one) << uint32(23)))
    drop = uint32(low - field)
    odd = uint32(right32(significand, drop) & one)
    addend = uint32(addend32(positive, negative, parity, minus, odd) + word)
    quanta = round_shifted32(significand, drop, addend, sticky)
    subnormal = bits_of32(float32(int32(quanta)) * float_of32(quantum))
    result = subnormal if magnitude < smallest else result
    result = uint32(0) if result < least else result
    over = over_negative if minus != uint32(0) else over_positive
    result = over if result > largest else result
    result = infinite if magnitude == uint32(0x7F800000) else result
    result = magnitude if magnitude > uint32(0x7F800000) else result
    sign = uint32(sign & zero) if result == uint32(0) else sign
    return uint32(result | sign)


@njit(inline="always")  # type: ignore[untyped-decorator]
def round64(bits: Any, p: Any, word: Any) -> Any:
    """As :func:`round32`, for float64; the random word is the upper half of ``word``."""
    shift, smallest, largest, least, over_positive, over_negative, infinite, zero, flip, low, quantum = p[:11]
    positive, negative, parity, sticky = p[11:15]
    one = uint64(1)
    magnitude = uint64(bits & uint64(0x7FFFFFFFFFFFFFFF))
    sign = uint64(bits ^ magnitude)
    minus = uint64(sign >> uint64(63))
    odd = uint64(uint64(right64(magnitude, shift) & one) ^ flip)
    addend = uint64(addend64(positive, negative, parity, minus, odd) + word)
    addend = right64(addend, uint64(uint64(64) - shift))
    result = uint64(uint64(magnitude + addend) & uint64(uint64(0) - left64(one, shift)))
    field = max(uint64(magnitude >> uint64(52)), one)
    significand = uint64(magnitude - uint64(uint64(field - one) << uint64(52)))
    drop = uint64(low - field)
    odd = uint64(right64(significand, drop) & one)
    addend = uint64(addend64(positive, negative, parity, minus, odd) + word)
    quanta = round_shifted64(significand, drop, addend, sticky)
    subnormal = bits_of64(float64(int64(quanta)) * float_of64(quantum))
    result = subnormal if magnitude < smallest else result
    result = uint64(0) if result < least else result
    over = over_negative if minus != uint64(0) else over_positive
    result = over if result > largest else result
    result = infinite if magnitude == uint64(0x7FF0000000000000) else result
    result = magnitude if magnitude > uint64(0x7FF0000000000000) else result
    sign = uint64(sign & zero) if result == uint64(0) else sign
    return uint64(result | sign)


@njit(inline="always")  # type: ignore[untyped-decorator]
def read(p: Any) -> Any:
    """The parameters at address ``p``, read once, before the loop."""
    return (p[0], p[1], p[2], p[3], p[4], p[5], p[6], p[7], p[8], p[9], p[10], p[11], p[12], p[13], p[14])


def fixed32(source: Any, target: Any, n: Any, p: Any) -> None:
    """Any mode but stochastic, float32 words from ``source`` to ``target``."""
    q = read(p)
    for i in range(n):
        target[i] = round32(source[i], q, uint32(0))


def fixed32_in_place(data: Any, n: Any, p: Any) -> None:
    """Any mode but stochastic, float32 words rounded in place."""
    q = read(p)
    for i in range(n):
        data[i] = round32(data[i], q, uint32(0))


def fixed64(source: Any, target: Any, n: Any, p: Any) -> None:
    """Any mode but stochastic, float64 words from ``source`` to ``target``."""
    q = read(p)
    for i in range(n):
        target[i] = round64(source[i], q, uint64(0))


def fixed64_in_place(data: Any, n: Any, p: Any) -> None:
    """Any mode but stochastic, float64 words rounded in place."""
    q = read(p)
    for i in range(n):
        data[i] = round64(data[i], q, uint64(0))
