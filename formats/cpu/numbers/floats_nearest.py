"""The loops that round to nearest-even, in the Python that numba compiles: fused, branch-free, vectorised.

Each reads the words of :class:`.FloatParameters` at ``p`` and exists twice, since LLVM
vectorises a loop over two pointers only where they do not overlap. Every intermediate stays 32 (64) bits wide, hence
the many casts: numba would widen ``uint32 + uint32``. Of several loops that can round a format the cheapest is taken;
measured in cache, ns per element with 512-bit vectors: chain 0.07, uniform 0.06, any 0.12.
"""

from __future__ import annotations

from typing import Any

from numba import njit
from numpy import uint32, uint64

from ..bits import bits_of32, bits_of64, float_of32, float_of64, left32, left64, right32, right64


@njit(inline="always")  # type: ignore[untyped-decorator]
def _any32(bits: Any, shift: Any, smallest: Any, largest: Any, magic: Any, beyond: Any, zero: Any, flip: Any) -> Any:
    """The float32 ``bits`` rounded to any float format."""
    one = uint32(1)
    unit = left32(one, shift)
    magnitude = uint32(bits & uint32(0x7FFFFFFF))
    sign = uint32(bits ^ magnitude)
    # Normal numbers: add just less than half a unit, plus the parity bit, and cut. A carry moves into the exponent.
    less_than_half = uint32(uint32(unit >> one) - one)
    odd = uint32(uint32(right32(magnitude, shift) & one) ^ flip)
    # With nothing to cut (shift 0) half a unit is 0 and the two terms must cancel: 0 - 1 + 1.
    odd = uint32(odd | uint32(unit & one))
    result = uint32(uint32(magnitude + less_than_half) + odd)
    result = uint32(result & uint32(~uint32(unit - one)))
    # Subnormal numbers are multiples of one quantum: the carrier's own addition rounds to it.
    subnormal = bits_of32(float_of32(magnitude) + magic - magic)
    result = subnormal if magnitude < smallest else result
    result = beyond if result > largest else result
    result = magnitude if magnitude > uint32(0x7F800000) else result  # NaN keeps its payload
    sign = uint32(sign & zero) if result == uint32(0) else sign
    return uint32(result | sign)


@njit(inline="always")  # type: ignore[untyped-decorator]
def _any64(bits: Any, shift: Any, smallest: Any, largest: Any, magic: Any, beyond: Any, zero: Any, flip: Any) -> Any:
    """As :func:`_any32`, for float64."""
    one = uint64(1)
    unit = left64(one, shift)
    magnitude = uint64(bits & uint64(0x7FFFFFFFFFFFFFFF))
    sign = uint64(bits ^ magnitude)
    less_than_half = uint64(uint64(unit >> one) - one)
    odd = uint64(uint64(right64(magnitude, shift) & one) ^ flip)
    odd = uint64(odd | uint64(unit & one))
    result = uint64(uint64(magnitude + less_than_half) + odd)
    result = uint64(result & uint64(~uint64(unit - one)))
    subnormal = bits_of64(float_of64(magnitude) + magic - magic)
    result = subnormal if magnitude < smallest else result
    result = beyond if result > largest else result
    result = magnitude if magnitude > uint64(0x7FF0000000000000) else result
    sign = uint64(sign & zero) if result == uint64(0) else sign
    return uint64(result | sign)


@njit(inline="always")  # type: ignore[untyped-decorator]
def _chain32(bits: Any, smallest: Any, top: Any, spread: Any, grow: Any, shrink: Any) -> Any:
    """Rounds to an IEEE format of m >= 1 whose exponents leave float32 room.

    Adding 1.5 * 2^(23 - m) times x's power of two, held between 2^emin and 2^(emax + 1), makes the carrier's own
    addition round x at the format's last place; scaling the largest exponent to the carrier's makes its own overflow
    the format's. The chain loses nothing but the sign of zero.
    """
    binade = uint32(bits & uint32(0x7F800000))
    offset = float_of32(uint32(min(max(binade, smallest), top) + spread))
    value = ((float_of32(bits) + offset) - offset) * grow * shrink
    return uint32(bits_of32(value) | uint32(bits & uint32(0x80000000)))


@njit(inline="always")  # type: ignore[untyped-decorator]
def _uniform32(bits: Any, shift: Any, less_than_half: Any, mask: Any) -> Any:
    """Rounds to an IEEE format with float32's own 8 exponent bits, bfloat16 for one, cutting ``shift`` > 0 bits.

    Subnormal numbers drop the same bits as normal ones, and a carry out of the largest number is infinity.
    """
    odd = uint32(right32(bits, shift) & uint32(1))
    result = uint32(uint32(uint32(bits + less_than_half) + odd) & mask)
    return bits if uint32(bits & uint32(0x7FFFFFFF)) > uint32(0x7F800000) else result


def any32(source: Any, target: Any, n: Any, p: Any) -> None:
    """Any format, float32 words from ``source`` to ``target``."""
    shift, smallest, largest, magic, beyond, zero, flip = p[0], p[1], p[2], float_of32(p[3]), p[6], p[7], p[8]
    for i in range(n):
        target[i] = _any32(source[i], shift, smallest, largest, magic, beyond, zero, flip)


def any32_in_place(data: Any, n: Any, p: Any) -> None:
    """Any format, float32 words rounded in place."""
    shift, smallest, largest, magic, beyond, zero, flip = p[0], p[1], p[2], float_of32(p[3]), p[6], p[7], p[8]
    for i in range(n):
        data[i] = _any32(data[i], shift, smallest, largest, magic, beyond, zero, flip)


def any64(source: Any, target: Any, n: Any, p: Any) -> None:
    """Any format, float64 words from ``source`` to ``target``."""
    shift, smallest, largest, magic, beyond, zero, flip = p[0], p[1], p[2], float_of64(p[3]), p[6], p[7], p[8]
    for i in range(n):
        target[i] = _any64(source[i], shift, smallest, largest, magic, beyond, zero, flip)


def any64_in_place(data: Any, n: Any, p: Any) -> None:
    """Any format, float64 words rounded in place."""
    shift, smallest, largest, magic, beyond, zero, flip = p[0], p[1], p[2], float_of64(p[3]), p[6], p[7], p[8]
    for i in range(n):
        data[i] = _any64(data[i], shift, smallest, largest, magic, beyond, zero, flip)


@njit(inline="always")  # type: ignore[untyped-decorator]
def _chain_constants(p: Any) -> Any:
    # 2^(emax + 1), the spread as a pattern added to a power of two, and the two powers that overflow and undo it.
    top = uint32(uint32(p[2] & uint32(0x7F800000)) + uint32(0x800000))
    spread = uint32(uint32(p[0] << uint32(23)) + uint32(0x400000))
    grow = uint32(uint32(0x7F800000) - uint32(top - uint32(0x3F800000)))
    shrink = uint32(top - uint32(0x40000000))
    return p[1], top, spread, float_of32(grow), float_of32(shrink)


def chain32(source: Any, target: Any, n: Any, p: Any) -> None:
    """Formats for which ``_chain32`` works, float32 words from ``source`` to ``target``."""
    smallest, top, spread, grow, shrink = _chain_constants(p)
    for i in range(n):
        target[i] = _chain32(source[i], smallest, top, spread, grow, shrink)


def chain32_in_place(data: Any, n: Any, p: Any) -> None:
    """Formats for which ``_chain32`` works, float32 words rounded in place."""
    smallest, top, spread, grow, shrink = _chain_constants(p)
    for i in range(n):
        data[i] = _chain32(data[i], smallest, top, spread, grow, shrink)


def uniform32(source: Any, target: Any, n: Any, p: Any) -> None:
    """Formats for which ``_uniform32`` works, float32 words from ``source`` to ``target``."""
    shift, one = p[0], uint32(1)
    unit = left32(one, shift)
    less_than_half, mask = uint32(uint32(unit >> one) - one), uint32(uint32(0) - unit)
    for i in range(n):
        target[i] = _uniform32(source[i], shift, less_than_half, mask)


def uniform32_in_place(data: Any, n: Any, p: Any) -> None:
    """Formats for which ``_uniform32`` works, float32 words rounded in place."""
    shift, one = p[0], uint32(1)
    unit = left32(one, shift)
    less_than_half, mask = uint32(uint32(unit >> one) - one), uint32(uint32(0) - unit)
    for i in range(n):
        data[i] = _uniform32(data[i], shift, less_than_half, mask)
