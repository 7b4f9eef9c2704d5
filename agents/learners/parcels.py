"""Tensors as bytes for sending: unchanged, or rounded to a format and packed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self, final

import torch
from torch import Tensor

from ...formats import Format, pack, packed_size, round, unpack


@final
@dataclass(frozen=True)
class Parcel:
    """A tensor as bytes, with the shapes and types for reading parcels of like tensors.

    Attributes:
        content: uint8, 1-D; the length depends only on the shape, dtype and format of the tensor.
        like: the original tensor, for its shape and dtype.
        format: the format for sending; None: the tensor is not rounded.
        codes: the codes of the tensor in the format, for their shapes and types.
    """

    content: Tensor
    like: Tensor
    format: Format | None
    codes: Any

    @classmethod
    def of(cls, x: Tensor, format: Format | None = None) -> Self:
        """Packs a tensor.

        Elements are rounded to the format, to nearest even. A tensor with a NaN or infinite element is received as all
        NaN, in any format: the first byte is then 0.

        Args:
            x: contiguous, any floating-point type without a format, else float32 or float64.
            format: any that has codes.

        Raises:
            FormatError: the format does not have codes.
        """
        if format is None:
            return cls(x.view(-1).view(torch.uint8), x, None, None)
        finite = torch.isfinite(x).all()
        codes = format.encode(round(torch.nan_to_num(x.float() if x.itemsize < 4 else x), format))
        packed = [
            pack(part, bits) if bits < 8 * part.itemsize else part.contiguous().reshape(-1).view(torch.uint8)
            for part, bits in zip(_codes_and_scales(codes), _packed_bits(codes, format), strict=True)
        ]
        return cls(torch.cat([finite.to(torch.uint8).view(1), *packed]), x, format, codes)

    def opened(self, content: Tensor) -> Tensor:
        """Returns the tensor in the content of a like parcel: new, of the shape and dtype of ``like``."""
        x = self.like
        if self.format is None:
            return content.view(x.dtype).view(x.shape).clone()
        parts, begin = [], 1
        for part, bits in zip(_codes_and_scales(self.codes), _packed_bits(self.codes, self.format), strict=True):
            size = packed_size(part.numel(), bits)
            data = content[begin : begin + size]
            numbers = unpack(data, bits, part.numel()) if bits < 8 * part.itemsize else data.clone().view(part.dtype)
            parts.append(numbers.to(part.dtype).view(part.shape))
            begin += size
        codes = parts[0] if isinstance(self.codes, torch.Tensor) else type(self.codes)(*parts)
        return torch.where(content[0] != 0, self.format.decode(codes).to(x.dtype), torch.nan)


def _codes_and_scales(codes: Any) -> list[Tensor]:
    """Returns the codes and then their scales, if there are any."""
    return [codes] if isinstance(codes, torch.Tensor) else list(codes)


def _packed_bits(codes: Any, format: Format) -> list[int]:
    """Returns the bits of an element of each part in a parcel: codes have the format's bits, scales are not packed."""
    first, *others = _codes_and_scales(codes)
    return [min(format.bits, 8 * first.itemsize), *(8 * part.itemsize for part in others)]
