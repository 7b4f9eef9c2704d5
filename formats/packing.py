"""Storing codes at their real size: 2-, 4- and 6-bit codes packed into bytes, wider ones as bytes, low bits first."""

from __future__ import annotations

import torch

from .arithmetic.codes import PAIRS, TYPES, as_torch_type, integer_codes
from .base.errors import FormatError
from .base.memory import unsimulated


def _group(bits: int) -> tuple[int, int]:
    """(codes, bytes) of the smallest group of codes that fills whole bytes."""
    codes = next(n for n in (1, 2, 4, 8) if n * bits % 8 == 0)
    return codes, codes * bits // 8


def packed_size(count: int, bits: int) -> int:
    """Bytes that ``count`` codes of ``bits`` bits take: ceil(count bits / 8)."""
    return -(-count * bits // 8)


@unsimulated
def pack(codes: torch.Tensor, bits: int, dtype: torch.dtype | None = None) -> torch.Tensor:
    """Packs codes densely: code i occupies the bits from ``i * bits`` on of a little-endian bit string.

    Two 4-bit codes share a byte, the first in its low half; four 6-bit codes share three bytes; a 16-bit code is two
    bytes, the low one first.

    Args:
        codes: integers of any dtype and shape; their lowest ``bits`` bits are kept.
        bits: 1 to 64.
        dtype: torch's own type for such codes, such as ``torch.float4_e2m1fn_x2`` or ``torch.float8_e8m0fnu``.

    Returns:
        uint8, one dimension, ``packed_size(codes.numel(), bits)`` bytes; unused bits at the end are 0. With ``dtype``,
        a tensor of that type and the shape of ``codes``; of 4-bit codes the last dimension is half as long.

    Raises:
        FormatError: ``codes`` are not integers, ``bits`` is out of range, or ``dtype`` holds codes of another width.
    """
    _check_codes(codes, bits)
    if dtype is not None:
        if bits != (4 if dtype == PAIRS else 8):
            raise FormatError(f"codes of {bits} bits do not fit {dtype}")
        return as_torch_type(codes, dtype)
    per_group, group_bytes = _group(bits)
    flat = codes.reshape(-1).to(torch.int64)
    n = flat.numel()
    grouped = torch.nn.functional.pad(flat, (0, -n % per_group)).view(-1, per_group)
    result = torch.zeros(grouped.shape[0], group_bytes, dtype=torch.uint8, device=codes.device)
    for i in range(per_group):
        for byte in range(i * bits // 8, (i * bits + bits - 1) // 8 + 1):
            offset = i * bits - byte * 8  # where the code begins in this byte
            low_bits = min(bits, 8 - offset)  # The number of its low bits in or before this byte.
            code = grouped[:, i] & ((1 << low_bits) - 1) if low_bits < 64 else grouped[:, i]
            part = code << offset if offset >= 0 else code >> -offset
            result[:, byte] |= (part & 0xFF).to(torch.uint8)
    return result.view(-1)[: packed_size(n, bits)].contiguous()


@unsimulated
def unpack(packed: torch.Tensor, bits: int | None = None, count: int | None = None) -> torch.Tensor:
    """The codes that :func:`pack` packed: int64, one dimension, ``count`` of them.

    Args:
        packed: uint8; or of one of torch's types of small floats, which say their width themselves: codes of its shape,
            of 4-bit ones twice as many along the last dimension.
        bits: the number of bits of a code.
        count: the number of codes.

    Raises:
        FormatError: ``packed`` is neither, has another size than ``count`` codes take, or ``bits`` is out of range.
    """
    _check_tensor(packed)
    for kind, dtype in TYPES.items():
        if packed.dtype == dtype:
            width = 4 if dtype == PAIRS else 8
            codes = integer_codes(kind, packed, width, kind)
            if bits not in (None, width) or count not in (None, codes.numel()):
                raise FormatError(
                    f"{packed.dtype} of shape {tuple(packed.shape)} holds {codes.numel()} {width}-bit codes"
                )
            return codes
    if bits is None or count is None:
        raise FormatError(f"unpack needs bits and count for {packed.dtype}: unpack(packed, bits, count)")
    _check_codes(packed, bits)
    if packed.dtype != torch.uint8 or packed.ndim != 1 or count < 0 or packed.numel() != packed_size(count, bits):
        raise FormatError(
            f"{count} codes of {bits} bits are {packed_size(count, bits)} bytes in a one-dimensional uint8 tensor,"
            f" got {packed.dtype} of shape {tuple(packed.shape)}"
        )
    per_group, group_bytes = _group(bits)
    grouped = torch.nn.functional.pad(packed, (0, -packed.numel() % group_bytes)).view(-1, group_bytes).to(torch.int64)
    result = torch.zeros(grouped.shape[0], per_group, dtype=torch.int64, device=packed.device)
    mask = (1 << bits) - 1 if bits < 64 else -1
    for i in range(per_group):
        for byte in range(i * bits // 8, (i * bits + bits - 1) // 8 + 1):
            offset = i * bits - byte * 8
            part = grouped[:, byte]
            result[:, i] |= (part >> offset if offset >= 0 else part << -offset) & mask
    return result.view(-1)[:count]


def _check_codes(codes: torch.Tensor, bits: int) -> None:
    _check_tensor(codes)
    if codes.dtype.is_floating_point or codes.dtype.is_complex or codes.dtype == torch.bool:
        raise FormatError(f"codes are integers, got {codes.dtype}: encode numbers first, see Format.encode")
    if not isinstance(bits, int) or isinstance(bits, bool) or not 1 <= bits <= 64:
        raise FormatError(f"codes have from 1 to 64 bits, got {bits!r}")


def _check_tensor(codes: object) -> None:
    if not isinstance(codes, torch.Tensor):
        raise FormatError(f"codes are a tensor of integers, got a {type(codes).__name__}")
