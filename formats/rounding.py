"""Rounding a tensor into a format."""

from __future__ import annotations

from typing import Literal

import torch

from roundoff.formats.errors import FormatError
from roundoff.formats.format import Format

Backend = Literal["native", "qtorch"]


def round(x: torch.Tensor, format: Format | str, *, backend: Backend = "native") -> torch.Tensor:
    """Rounds every element of ``x`` to the nearest number of ``format``, ties to even.

    Overflow follows IEEE 754: what would round to 2^(emax + 1) or beyond becomes infinity of the same sign.
    Infinities stay, NaN stays NaN with its payload, -0 stays -0, a negative number that underflows becomes -0, and
    results below the smallest normal number are rounded to the subnormal numbers of the format (gradual underflow).

    Args:
        x: float32 or float64, any shape, strides and device. It is not changed.
        format: a format or its name; every number of it must fit in ``x.dtype``.
        backend: ``"qtorch"`` calls the library qtorch instead, whose answers differ: ties go away from zero, overflow
            saturates, infinity and NaN become the largest number, the top exponent holds numbers, and zero has
            no sign. CPU or CUDA, float32 only; it is compiled when first used.

    Returns:
        A new tensor of the same shape, dtype and device, with ``x``'s strides where ``x`` is dense, detached from
        autograd: the derivative of rounding is zero almost everywhere.

    Raises:
        FormatError: ``x`` is no float32 or float64 strided tensor, or cannot hold the format.
    """
    fmt = Format.parse(format)
    check_roundable(x, fmt)
    if backend == "qtorch":
        from roundoff.formats.qtorch_backend import round_qtorch  # noqa: PLC0415  compiles C++ when imported

        return round_qtorch(x, fmt)
    if backend != "native":
        raise FormatError(f"backend must be 'native' or 'qtorch', got {backend!r}")
    x = x.detach()
    if x._is_zerotensor():  # noqa: SLF001  a gradient known to vanish: all zeros, without memory
        return torch.zeros_like(x)
    if not is_dense(x):
        x = x.clone(memory_format=torch.preserve_format)  # gapless, and ours to overwrite
        fmt.round_into(x, x)
        return x
    result = torch.empty_like(x)
    fmt.round_into(x, result)
    return result


def check_roundable(x: torch.Tensor, fmt: Format) -> None:
    """Raises FormatError if the elements of ``x`` cannot be rounded to ``fmt``."""
    if not isinstance(x, torch.Tensor):
        raise FormatError(f"only a torch.Tensor can be rounded, got {type(x).__name__}")
    if x.dtype not in (torch.float32, torch.float64):
        raise FormatError(
            f"a tensor to round must be float32 or float64, got {x.dtype}; convert it first, for example x.float()"
        )
    if x.layout != torch.strided:
        raise FormatError(f"a tensor to round must be strided, got {x.layout}; round its values instead")
    if not fmt.fits_in(x.dtype):
        raise FormatError(f"{fmt} does not fit in {x.dtype}: round a float64 tensor, for example x.double()")


def is_dense(x: torch.Tensor) -> bool:
    """Whether the elements of ``x`` fill one piece of memory without gaps or overlaps, in any order."""
    if x.is_contiguous():
        return True
    expected = 1
    for stride, size in sorted((s, n) for s, n in zip(x.stride(), x.shape, strict=True) if n != 1):
        if stride != expected:
            return False
        expected *= size
    return True
