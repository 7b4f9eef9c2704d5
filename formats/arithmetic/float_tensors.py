"""Rounding to floats as tensor operations: for graphs, for formats as data, and for exact sums on other devices.

The bits equal the CPU's loops. The parameters may be Python numbers or tensors that broadcast against the source; see
:func:`.row_parameters`.
"""

from __future__ import annotations

import torch

from ..base.on_device import where
from .float_parameters import FloatParameters
from .patterns import INFINITY, INTEGER, STORED_BITS
from .tail import TailRule, round_shifted

_SIGN = {torch.int32: -(1 << 31), torch.int64: -(1 << 63)}


def round_nearest(source: torch.Tensor, parameters: FloatParameters) -> torch.Tensor:
    """A new tensor with the elements of ``source`` rounded to nearest-even.

    Args:
        source: float32 or float64, any device, any strides.
        parameters: the format, for this dtype.
    """
    p = parameters
    integer = INTEGER[source.dtype]
    infinity = INFINITY[source.dtype]
    bits = source.view(integer)
    sign = bits & _SIGN[integer]
    magnitude = bits ^ sign
    # Normal numbers: add just less than half a unit, plus the parity bit, and cut. A carry moves into the exponent.
    # With nothing to cut (shift 0) half a unit is 0 and the two terms must cancel: 0 - 1 + 1.
    unit = 1 << p.shift
    odd = (((magnitude >> p.shift) & 1) ^ p.flip) | (unit & 1)
    result = (magnitude + ((unit >> 1) - 1) + odd) & -unit
    # Subnormal numbers are multiples of one quantum: the carrier's own addition rounds to it.
    subnormal = ((magnitude.view(source.dtype) + p.magic) - p.magic).view(integer)
    result = where(magnitude < p.smallest_normal, subnormal, result)
    result = where(result > p.largest, p.over_positive, result)
    result = where(magnitude == infinity, p.infinite, result)
    result = where(magnitude > infinity, magnitude, result)  # NaN keeps its payload
    sign = where(result == 0, sign & signed(p.zero_sign, integer), sign)
    return (result | sign).view(source.dtype)


def signed(mask: int | torch.Tensor, integer: torch.dtype) -> int | torch.Tensor:
    """An all-ones mask as torch's signed integers write it."""
    if isinstance(mask, torch.Tensor):
        return mask
    bits = torch.iinfo(integer).bits
    return mask - (1 << bits) if mask >> (bits - 1) else mask


def round_by_mode(source: torch.Tensor, parameters: FloatParameters, words: torch.Tensor | None) -> torch.Tensor:
    """A new tensor with the elements of ``source`` rounded as the parameters' mode says.

    Args:
        source: float32 or float64, any device, any strides.
        parameters: the format and mode, for this dtype.
        words: random words for stochastic rounding, int64 in [0, 2^32), of the source's shape; None otherwise.
    """
    p = parameters
    dtype = source.dtype
    stored = STORED_BITS[dtype]
    infinity = INFINITY[dtype]
    bits = source.view(INTEGER[dtype]).to(torch.int64)
    negative = bits < 0
    magnitude = bits & (_SIGN[INTEGER[dtype]] ^ -1)
    # The value is significand * 2^(field - bias - stored); subnormal numbers of the carrier have the field of 1.
    field = (magnitude >> stored).clamp(min=1)
    significand = magnitude - ((field - 1) << stored)
    normal = magnitude >= p.smallest_normal
    shift = where(normal, p.shift, p.subnormal_shift - field)
    shift = shift.clamp(min=0, max=126)
    integer_part = significand >> shift.clamp(max=63)
    odd = where(normal, ((magnitude >> p.shift) & 1) ^ p.flip, integer_part & 1)
    # The parameters hold addends of the carrier's width; the tensor tail wants their upper 32 bits.
    upper = 0 if dtype == torch.float32 else 32
    mode = TailRule(p.positive >> upper, p.negative >> upper, p.parity, p.sticky)
    rounded = round_shifted(significand, shift, mode, negative, odd=odd, words=words)
    subnormal = (rounded.to(dtype) * p.quantum).view(INTEGER[dtype]).to(torch.int64)
    result = where(normal, ((field - 1) << stored) + (rounded << p.shift), subnormal)
    result = where(result < p.least, 0, result)
    result = where(result > p.largest, where(negative, p.over_negative, p.over_positive), result)
    result = where(magnitude == infinity, p.infinite, result)
    result = where(magnitude > infinity, magnitude, result)
    negative = negative & ((result != 0) | (p.zero_sign != 0))
    result = where(negative, result | _SIGN[INTEGER[dtype]], result)
    return result.to(INTEGER[dtype]).view(dtype)
