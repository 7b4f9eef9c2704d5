"""The loop that rounds as qtorch 0.3.0 does, in the Python that numba compiles.

The words at ``p``, which :class:`.QtorchFormat` makes: half a unit, the mask that keeps the significand,
the field of 2^emin, the pattern of 2^emin, the last exponent field, and the pattern of the largest number.
"""

from __future__ import annotations

from typing import Any

from numba import njit
from numpy import uint32

from ..arguments import Int, Patterns
from ..bits import bits_of32, float_of32


@njit(inline="always")  # type: ignore[untyped-decorator]
def rounded(bits: Any, half: Any, keep: Any, first: Any, smallest: Any, last: Any, largest: Any) -> Any:
    """A number's ``bits`` rounded, with the words at ``p``."""
    sign = uint32(bits & uint32(0x80000000))
    anchor = float_of32(uint32(smallest | sign))
    shifted = bits_of32(float_of32(bits) + anchor)
    below = bits_of32(float_of32(uint32(uint32(shifted + half) & keep)) - anchor)
    normal = uint32(uint32(bits + half) & keep)
    field = uint32(uint32(normal >> uint32(23)) & uint32(0xFF))
    normal = uint32(largest | sign) if field > last else normal
    return below if uint32(uint32(bits >> uint32(23)) & uint32(0xFF)) < first else normal


def legacy(source: Patterns, target: Patterns, n: Int, p: Patterns) -> None:
    """Float32 only."""
    half, keep, first, smallest, last, largest = p[0], p[1], p[2], p[3], p[4], p[5]
    for i in range(n):
        target[i] = rounded(source[i], half, keep, first, smallest, last, largest)
