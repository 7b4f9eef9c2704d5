"""Tensors as bytes that travel: as they are, or rounded to a format and packed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self, final

import torch
from torch import Tensor

from ...formats import Format, pack, packed_size, round, unpack


@final
@dataclass(frozen=True)
class Parcel:
    """A tensor on its way, and how others of its kind are opened.

    Attributes:
        content: uint8, 1-D: as long for every tensor of one shape, dtype and format.
        like: the tensor it was made of, for its shape and dtype.
        format: the format for sending; None: as it is.
        codes: the codes of that tensor in the format, for their shapes and types.
    """

    content: Tensor
    like: Tensor
    format: Format | None
    codes: Any

    @classmethod
    def of(cls, x: Tensor, format: Format | None = None) -> Self:
        """Packs a tensor.

        Numbers are rounded to the format, to nearest even. A tensor with a NaN or infinite element arrives as
        NaN everywhere, whatever the format has: the first byte says so.

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
        """The tensor in another parcel of this one's kind: new, of the shape and dtype of ``like``."""
        x = self.like
        if self.format is None:
            return content.view(x.dtype).view(x.shape).clone()
        parts, begin = [], 1
        for part, bits in zip(_codes_and_scales(self.codes), _packed_bits(self.codes, self.format), strict=True):
            size = packed_size(part.numel(), bits)
            own = content[begin : begin + size]
            numbers = unpack(own, bits, part.numel()) if bits < 8 * part.itemsize else own.clone().view(part.dtype)
            parts.append(numbers.to(part.dtype).view(part.shape))
            begin += size
        codes = parts[0] if isinstance(self.codes, torch.Tensor) else type(self.codes)(*parts)
        return torch.where(content[0] != 0, self.format.decode(codes).to(x.dtype), torch.nan)


def _codes_and_scales(codes: Any) -> list[Tensor]:
    """The codes themselves first, then their scales."""
    return [codes] if isinstance(codes, torch.Tensor) else list(codes)


def _packed_bits(codes: Any, format: Format) -> list[int]:
    """Returns the bits of a number of each part on its way: codes in the format's bits."""
    first, *others = _codes_and_scales(codes)
    return [min(format.bits, 8 * first.itemsize), *(8 * part.itemsize for part in others)]
