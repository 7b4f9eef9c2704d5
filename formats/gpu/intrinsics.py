"""Triton versions of the machine operations that the numba functions of :mod:`..cpu` use."""

from __future__ import annotations

from typing import Any

import numpy as np
import triton.language as tl

from ..cpu import bits

# ruff: noqa: D103  each function has the name of numba's


def uint32(x: Any) -> Any:
    return tl.cast(x, tl.uint32)


def uint64(x: Any) -> Any:
    return tl.cast(x, tl.uint64)


def int32(x: Any) -> Any:
    return tl.cast(x, tl.int32)


def int64(x: Any) -> Any:
    return tl.cast(x, tl.int64)


def float32(x: Any) -> Any:
    return tl.cast(x, tl.float32)


def float64(x: Any) -> Any:
    return tl.cast(x, tl.float64)


def bits_of32(x: Any) -> Any:
    return tl.cast(x, tl.uint32, bitcast=True)


def float_of32(x: Any) -> Any:
    return tl.cast(x, tl.float32, bitcast=True)


def bits_of64(x: Any) -> Any:
    return tl.cast(x, tl.uint64, bitcast=True)


def float_of64(x: Any) -> Any:
    return tl.cast(x, tl.float64, bitcast=True)


def left32(x: Any, count: Any) -> Any:
    """Shifts left, as the three below do: to 0 where the count is the width or more."""
    return tl.where(count < 32, x << (count & 31), tl.full((), 0, tl.uint32))


def right32(x: Any, count: Any) -> Any:
    return tl.where(count < 32, x >> (count & 31), tl.full((), 0, tl.uint32))


def left64(x: Any, count: Any) -> Any:
    return tl.where(count < 64, x << (count & 63), tl.full((), 0, tl.uint64))


def right64(x: Any, count: Any) -> Any:
    return tl.where(count < 64, x >> (count & 63), tl.full((), 0, tl.uint64))


def quotient(x: Any, y: Any, typed: Any) -> Any:
    """``x / y``, rounded correctly, as Triton's own is not in float32; ``typed`` is one of the two, and no literal."""
    if typed.dtype == tl.float64:
        return x / y
    else:  # noqa: RET505  decided while the kernel is compiled, which wants one return in each branch
        return tl.div_rn(x, y)


def rint(x: Any) -> Any:
    """The nearest integer, ties to even: from 2^52 on every float64 is one. Zero has the sign of ``x``."""
    bits = tl.cast(tl.cast(x, tl.float64), tl.uint64, bitcast=True)
    sign = bits & tl.full((), 0x8000000000000000, tl.uint64)
    magnitude = tl.cast(bits ^ sign, tl.float64, bitcast=True)
    turning = tl.full((), 4503599627370496.0, tl.float64)
    whole = tl.where(magnitude < turning, (magnitude + turning) - turning, magnitude)
    return tl.cast(tl.cast(tl.cast(whole, tl.uint64, bitcast=True) | sign, tl.float64, bitcast=True), x.dtype)


def floor(x: Any) -> Any:
    """The largest integer below; Triton's own takes subnormal numbers for zero."""
    whole = rint(x)
    return tl.where(whole > x, whole - 1.0, whole)


def item(x: Any, i: Any) -> Any:
    """``x[i]``, of an address or of a tuple."""
    if isinstance(x, tl.tensor):
        return tl.load(x + i)
    else:  # noqa: RET505  decided while the kernel is compiled, which wants one return in each branch
        return x[i]


STANDS_FOR: dict[Any, Any] = {
    np.uint32: uint32,
    np.uint64: uint64,
    np.int32: int32,
    np.int64: int64,
    np.float32: float32,
    np.float64: float64,
    **{getattr(bits, name): globals()[name] for name in (
        "bits_of32", "float_of32", "bits_of64", "float_of64", "left32", "right32", "left64", "right64",
    )},
}  # fmt: skip
"""Numba's, and Triton's."""
