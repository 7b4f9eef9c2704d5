"""Codes in tensors: integers of any width, or torch's own types of small floats, which hold codes in bytes."""

from __future__ import annotations

from typing import Any, TypeVar

import torch

from ..base.errors import FormatError
from ..base.format import Format
from ..base.memory import is_virtual

_Stored = TypeVar("_Stored", bound=tuple[Any, ...])

PAIRS = torch.float4_e2m1fn_x2
"""Two 4-bit floats a byte, the first in its low half; torch has no arithmetic for it."""

BYTES = {
    "e4m3fn": torch.float8_e4m3fn,
    "e4m3fnuz": torch.float8_e4m3fnuz,
    "e5m2": torch.float8_e5m2,
    "e5m2fnuz": torch.float8_e5m2fnuz,
    "e8m0fnu": torch.float8_e8m0fnu,
}
"""The 8-bit floats that torch has, by the text of the format."""

TYPES = {**BYTES, "e2m1_finite": PAIRS}
"""All small floats that torch has a type for."""


def integer_codes(
    owner: Format | str, codes: torch.Tensor, bits: int, kind: str | None = None, *, signed: bool = False
) -> torch.Tensor:
    """Codes as int64 from 0 up.

    An integer type of exactly ``bits`` bits holds all codes, also where it is signed.

    Args:
        owner: The format of the codes, for the message.
        codes: Integers of any dtype, or of torch's type of the same format.
        bits: The width of a code.
        kind: The text of the float format, if torch may have a type for it.
        signed: Whether a code may also be the negative integer with the same bits (two's complement).

    Raises:
        FormatError: they are of another type, or have more bits.
    """
    torch_type = TYPES.get(kind or "")
    also = "" if torch_type is None else f" or {torch_type}"
    if not isinstance(codes, torch.Tensor):
        raise FormatError(f"codes of {owner} are a tensor of integers{also}, got a {type(codes).__name__}")
    if torch_type is not None and codes.dtype == torch_type:
        codes8 = codes.view(torch.uint8).to(torch.int64)
        # Of a pair, the low half comes first.
        return torch.stack((codes8 & 15, codes8 >> 4), -1).flatten(-2) if torch_type == PAIRS else codes8
    if codes.dtype.is_floating_point or codes.dtype.is_complex or codes.dtype == torch.bool:
        raise FormatError(f"codes of {owner} are integers{also}, got {codes.dtype}: encode numbers first")
    wide, code_bits = codes.to(torch.int64), torch.iinfo(codes.dtype).bits
    if bits == 64:  # Every int64 is a code.
        return wide
    # A type of just this width cannot hold other integers. The check reads the values, which fake tensors lack.
    if code_bits != bits and wide.numel() and not (torch.compiler.is_compiling() or is_virtual(wide) or wide.is_meta):
        least, low, high = -(1 << bits - 1) if signed else 0, *map(int, wide.aminmax())
        if low < least or high >= 1 << bits:
            refused = low if low < least else high
            raise FormatError(f"codes of {owner} are integers from {least} to {(1 << bits) - 1}, got {refused}")
    return wide & ((1 << bits) - 1)  # Two's complement becomes unsigned.


def stored_codes(owner: Format, codes: Any, kind: type[_Stored]) -> _Stored:
    """Codes with their scales, as :meth:`.Format.encode` returns them.

    Raises:
        FormatError: they are something else.
    """
    if isinstance(codes, kind):
        return codes
    fields: tuple[str, ...] = kind._fields  # type: ignore[attr-defined]  # it is a named tuple
    if isinstance(codes, tuple) and len(codes) == len(fields):
        return kind(*codes)
    raise FormatError(
        f"codes of {owner} are {kind.__name__}({', '.join(fields)}) as from encode, got a {type(codes).__name__}"
    )


def code_dtype(bits: int) -> torch.dtype:
    """The unsigned integer type that stores codes of this width; int64 above 32 bits."""
    sizes = ((8, torch.uint8), (16, torch.uint16), (32, torch.uint32))
    return next((dtype for most, dtype in sizes if bits <= most), torch.int64)


def as_torch_type(codes: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Codes in torch's own type of small floats: a view of the bytes; 4-bit codes in pairs along the last dimension.

    Raises:
        FormatError: torch does not have such a type of codes, or there is an odd number of 4-bit codes in a row.
    """
    if dtype not in TYPES.values():
        names = ", ".join(str(known) for known in TYPES.values())
        raise FormatError(f"dtype of packed codes must be one of {names}, got {dtype}")
    if dtype != PAIRS:
        return codes.to(torch.uint8).view(dtype)
    if not codes.dim() or codes.shape[-1] % 2:
        raise FormatError(f"{PAIRS} pairs neighbours of the last dimension: its length must be even, got {codes.shape}")
    halves = codes.to(torch.uint8) & 15
    return (halves[..., ::2] | (halves[..., 1::2] << 4)).view(dtype)
