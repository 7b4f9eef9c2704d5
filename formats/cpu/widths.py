"""One source for the loops of both carriers: names that mean one thing for float32, and another for float64.

A loop, with the functions it calls, is written with the names below, ``unsigned`` for ``uint32`` or ``uint64``, and
:func:`specialised` makes a copy of it that has the meanings for one carrier. A module may add its own names::

    LARGEST: Any = ByWidth(float32(1 << 20), float64(1 << 20))

Every intermediate must be cast, as in ``unsigned(a + b)``: numba would widen ``uint32 + uint32`` to 64 bits.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from types import FunctionType
from typing import Any

import torch
from numba import njit
from numpy import float32, float64, int32, int64, uint32, uint64

from .bits import (
    bits_of32,
    bits_of64,
    float_of32,
    float_of64,
    left32,
    left64,
    right32,
    right64,
    scratch32,
    scratch64,
    unfilled32,
    unfilled64,
)
from .content_names import names_in


@dataclass(frozen=True, eq=False)
class ByWidth:
    """A global name of a loop that means one thing for float32, and another for float64."""

    narrow: Any
    wide: Any


@dataclass(frozen=True, eq=False)
class KernelPart:
    """A global name of a loop that whoever specialises it fills in."""


unsigned: Any = ByWidth(uint32, uint64)
"""The integers that hold a number's bits."""
signed: Any = ByWidth(int32, int64)
real: Any = ByWidth(float32, float64)
"""The numbers."""
bits_of: Any = ByWidth(bits_of32, bits_of64)
float_of: Any = ByWidth(float_of32, float_of64)
left: Any = ByWidth(left32, left64)
right: Any = ByWidth(right32, right64)
scratch: Any = ByWidth(scratch32, scratch64)
unfilled: Any = ByWidth(unfilled32, unfilled64)
"""A scratch that is no zeros at first."""

WIDTH: Any = ByWidth(uint32(32), uint64(64))
STORED: Any = ByWidth(uint32(23), uint64(52))
"""Number of stored significand bits."""
BIAS: Any = ByWidth(uint32(127), uint64(1023))
SIGN: Any = ByWidth(uint32(1 << 31), uint64(1 << 63))
"""The sign bit."""
MAGNITUDE: Any = ByWidth(uint32((1 << 31) - 1), uint64((1 << 63) - 1))
"""All other bits."""
FRACTION: Any = ByWidth(uint32((1 << 23) - 1), uint64((1 << 52) - 1))
"""The bits of the significand that are stored."""
INFINITE: Any = ByWidth(uint32(0xFF << 23), uint64(0x7FF << 52))
"""The bits of infinity: all bits of the exponent."""
ABOVE_WORD: Any = ByWidth(uint32(0), uint64(32))
"""Left shift that brings a random word of 32 bits to the top."""


@cache
def specialised(function: Any, dtype: torch.dtype, **parts: Any) -> Any:
    """A loop or a numba function with the meanings for one carrier; the same object each time.

    Args:
        function: a Python function that numba can compile, without closure, or the result of ``njit``. Functions that
            it calls are also specialised. A function without names of this kind is returned unchanged.
        dtype: float32 or float64, the carrier.
        parts: the values of :class:`KernelPart` names, here and in called functions; functions are specialised.

    Raises:
        KeyError: a part is missing.
    """
    plain = getattr(function, "py_func", function)
    scope = plain.__globals__
    used = {name: scope[name] for name in names_in(plain.__code__) if name in scope}
    meanings = {name: _meaning(name, value, dtype, parts) for name, value in used.items()}
    if all(meanings[name] is value for name, value in used.items()):
        return function
    name = f"{plain.__name__}{8 * dtype.itemsize}"
    copy = FunctionType(plain.__code__, {**scope, **meanings}, name, plain.__defaults__)
    copy.__qualname__, copy.__module__, copy.__annotations__ = name, plain.__module__, plain.__annotations__
    return copy if plain is function else njit(inline="always")(copy)


def _meaning(name: str, value: Any, dtype: torch.dtype, parts: dict[str, Any]) -> Any:
    if isinstance(value, ByWidth):
        return value.narrow if dtype == torch.float32 else value.wide
    if isinstance(value, KernelPart):
        value = parts[name]
    return specialised(value, dtype, **parts) if hasattr(value, "py_func") else value
