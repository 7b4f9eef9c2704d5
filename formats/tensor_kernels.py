"""The rounding kernels as tensor operations, for every device that torch has: the same bits as the CPU kernels."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from roundoff.formats.parameters import FloatParameters

_SIGN = {torch.int32: -(1 << 31), torch.int64: -(1 << 63)}
_INFINITY = {torch.int32: 0x7F800000, torch.int64: 0x7FF0000000000000}
_INTEGER = {torch.float32: torch.int32, torch.float64: torch.int64}


def round_float(source: torch.Tensor, parameters: FloatParameters) -> torch.Tensor:
    """A new tensor with the elements of ``source`` rounded to nearest-even.

    Args:
        source: float32 or float64, any device, any strides.
        parameters: the format, for this dtype.
    """
    shift, smallest_normal, largest, magic = parameters
    integer = _INTEGER[source.dtype]
    infinity = _INFINITY[integer]
    bits = source.view(integer)
    sign = bits & _SIGN[integer]
    magnitude = bits ^ sign
    result = magnitude
    if shift:
        # Normal numbers: add just less than half a unit, plus the parity bit, and cut. A carry moves into the exponent.
        result = (magnitude + ((1 << (shift - 1)) - 1) + ((magnitude >> shift) & 1)) & -(1 << shift)
    result = torch.where(result > largest, infinity, result)
    # Subnormal numbers are multiples of one quantum: the carrier's own addition rounds to it.
    subnormal = ((magnitude.view(source.dtype) + magic) - magic).view(integer)
    result = torch.where(magnitude < smallest_normal, subnormal, result)
    result = torch.where(magnitude > infinity, magnitude, result)  # NaN keeps its payload
    return (result | sign).view(source.dtype)
