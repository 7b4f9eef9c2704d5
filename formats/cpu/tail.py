"""The shared tail of every rounding, of :mod:`.tail`, as numba loops do it."""

from __future__ import annotations

from typing import Any

from numba import njit
from numpy import uint32, uint64

from .bits import left32, left64, right32, right64


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
