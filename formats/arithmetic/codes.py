"""Codes as they come in: integers of any width, or torch's own types of small floats, which are codes in bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ..base.errors import FormatError

if TYPE_CHECKING:
    from ..base.format import Format

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


def integer_codes(owner: Format | str, codes: torch.Tensor, bits: int, kind: str | None = None) -> torch.Tensor:
    """The lowest ``bits`` bits of codes, as int64 from 0 up.

    Args:
        owner: what they are codes of, for the message.
        codes: integers of any dtype, signed or not; or of torch's type of the same format.
        bits: width of a code.
        kind: the text of the float format, if torch may have a type for it.

    Raises:
        FormatError: they are of another type.
    """
    own = TYPES.get(kind or "")
    if own is not None and codes.dtype == own:
        return _in_halves(codes) if own == PAIRS else codes.view(torch.uint8).to(torch.int64)
    if codes.dtype.is_floating_point or codes.dtype.is_complex or codes.dtype == torch.bool:
        also = "" if own is None else f" or {own}"
        raise FormatError(f"codes of {owner} are integers{also}, got {codes.dtype}: encode numbers first")
    return codes.to(torch.int64) & ((1 << bits) - 1 if bits < 63 else -1)


def code_dtype(bits: int) -> torch.dtype:
    """The unsigned integer type that codes of so many bits are kept in; int64 above 32 bits."""
    sizes = ((8, torch.uint8), (16, torch.uint16), (32, torch.uint32))
    return next((dtype for most, dtype in sizes if bits <= most), torch.int64)


def _in_halves(pairs: torch.Tensor) -> torch.Tensor:
    both = pairs.view(torch.uint8).to(torch.int64)
    return torch.stack((both & 15, both >> 4), -1).flatten(-2)


def as_torch_type(codes: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Codes in torch's own type of small floats: a view of the bytes; 4-bit codes in pairs along the last dimension.

    Raises:
        FormatError: torch has no such type of codes, or there is an odd number of 4-bit codes in a row.
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
