"""Arguments of a compiled loop: annotations that give the types of its C function.

A loop's parameters are annotated with the names below. They are plain names for a reader, and for :func:`c_types`.
"""

from __future__ import annotations

from inspect import signature
from typing import Any

import torch
from numba import types

_TYPES = {torch.float32: (types.float32, types.uint32), torch.float64: (types.float64, types.uint64)}

Numbers = Any
"""The address of numbers of the carrier."""
Patterns = Any
"""The address of their bit patterns: unsigned integers of the carrier's width."""
Pattern = Any
"""A bit pattern of the carrier's width, an unsigned integer."""
Doubles = Any
"""The address of float64 numbers."""
Integers = Any
"""The address of int64 integers."""
Mode = Any
"""The address of a mode's settings, int64; see :func:`.addends`."""
Words = Any
"""The address of uint32 words."""
Real = Any
"""A number of the carrier."""
Double = Any
"""A float64."""
Int = Any
"""An int64."""


def c_types(body: Any, dtype: torch.dtype) -> tuple[Any, ...]:
    """Numba's types of the arguments of a loop for a carrier.

    Args:
        body: the loop, with parameters annotated with the names above.
        dtype: float32 or float64, the carrier.
    """
    real, unsigned = _TYPES[dtype]
    kinds = {
        "Numbers": types.CPointer(real),
        "Patterns": types.CPointer(unsigned),
        "Pattern": unsigned,
        "Doubles": types.CPointer(types.float64),
        "Integers": types.CPointer(types.int64),
        "Mode": types.CPointer(types.int64),
        "Words": types.CPointer(types.uint32),
        "Real": real,
        "Double": types.float64,
        "Int": types.int64,
    }
    return tuple(kinds[parameter.annotation] for parameter in signature(body).parameters.values())
