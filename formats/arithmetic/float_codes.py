"""From numbers of a float format to their codes, and back: operations on integer tensors, exact, on any device."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ..base.errors import FormatError
from ..base.family import check_encodable
from ..base.on_device import where
from .carriers import pattern
from .codes import code_dtype
from .patterns import float64_bits, narrowed

if TYPE_CHECKING:
    from .float_layout import FloatLayout

_STORED, _BIAS = 52, 1023  # of float64, in whose patterns all is done
_MAGNITUDE, _SIGN = (1 << 63) - 1, -(1 << 63)
_INFINITY, _QUIET = 0x7FF << 52, 0xFFF << 51


def nan_code(fmt: FloatLayout) -> int:
    """The code that NaN gets: quiet, positive where it has a sign, without payload."""
    e, m = fmt.exponent_bits, fmt.significand_bits
    if not fmt.signed:
        return (1 << fmt.bits) - 1
    if not fmt.has_negative_zero:
        return 1 << (e + m)
    return (1 << (e + m)) - 1 if fmt.specials == "fn" else (((1 << e) - 1) << m) | (1 << (m - 1))


def infinity_code(fmt: FloatLayout) -> int:
    """The code of plus infinity, of formats that have one: the next after the largest number."""
    return fmt.largest_code + 1


def encode(fmt: FloatLayout, x: torch.Tensor) -> torch.Tensor:
    """The codes of a float32 or float64 tensor that holds numbers of the format only.

    Raises:
        FormatError: ``x`` holds a NaN or an infinity, and the format has none.
    """
    m, magnitude_bits = fmt.significand_bits, fmt.bits - fmt.signed
    if not fmt.has_nan:
        check_encodable(fmt, x)
    if not fmt.has_infinity and bool(x.isinf().any()):
        raise FormatError(f"{fmt} has no infinity, and the tensor to encode holds one")
    bits = float64_bits(x)
    magnitude = bits & _MAGNITUDE
    normal = (magnitude >> (_STORED - m)) - ((_BIAS - fmt.exponent_bias) << m)
    # Subnormal numbers of float64 have the exponent field of 1; those of the format are whole quanta.
    field = (magnitude >> _STORED).clamp(min=1)
    significand = magnitude - ((field - 1) << _STORED)
    drop = _BIAS + _STORED + fmt.emin - m - field
    subnormal = significand >> drop.clamp(0, 63) if fmt.subnormals else torch.zeros_like(bits)
    code = where(magnitude < pattern(fmt.smallest_normal, torch.float64), subnormal, normal)
    code = where(magnitude == _INFINITY, infinity_code(fmt), code) if fmt.has_infinity else code
    if fmt.signed:
        code = where(bits < 0, code | _sign_bit(magnitude_bits), code)
    if fmt.has_nan:
        code = where(magnitude > _INFINITY, nan_code(fmt), code)
    return code.to(code_dtype(fmt.bits))


def decode(fmt: FloatLayout, codes: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The numbers that codes from 0 up stand for, in ``dtype``, which can hold the format."""
    m, magnitude_bits = fmt.significand_bits, fmt.bits - fmt.signed
    negative = (codes & _sign_bit(magnitude_bits)) != 0 if fmt.signed else torch.zeros_like(codes, dtype=torch.bool)
    magnitude = codes & ((1 << magnitude_bits) - 1)
    fraction = magnitude & ((1 << m) - 1)
    # Fields beyond the largest number may be beyond float64's; they stand for no number.
    is_number = magnitude <= fmt.largest_code
    normal = where(is_number, magnitude, 0) + ((_BIAS - fmt.exponent_bias) << m) << (_STORED - m)
    value = where(magnitude >> m == 0, _subnormal(fmt, fraction), normal)
    if fmt.has_infinity:
        value = where(magnitude == infinity_code(fmt), _INFINITY, value)
        is_number |= magnitude == infinity_code(fmt)
    if fmt.signed and not fmt.has_negative_zero:
        is_number &= ~(negative & (magnitude == 0))
    # Without subnormals there are codes of zero beside 0, which have a sign only if zero has.
    negative = negative & ((value != 0) | fmt.has_negative_zero)
    value = where(negative, value | _SIGN, value)
    return narrowed(where(is_number, value, _QUIET).view(torch.float64), dtype)


def _subnormal(fmt: FloatLayout, fraction: torch.Tensor) -> torch.Tensor:
    """The float64 patterns of ``fraction`` times the smallest subnormal number, without floating-point arithmetic."""
    if not fmt.subnormals:
        return torch.zeros_like(fraction)
    lowest = fmt.emin - fmt.significand_bits
    # A whole number is normal in float64; of one that is subnormal there the quanta are the pattern.
    scaled = fraction.to(torch.float64).view(torch.int64) + (lowest << _STORED)
    tiny = fraction << min(max(lowest + _BIAS + _STORED - 1, 0), 63)
    return where(fraction == 0, 0, where(scaled < 1 << _STORED, tiny, scaled))


def _sign_bit(magnitude_bits: int) -> int:
    """The sign's place as torch's signed 64-bit integers write it."""
    return 1 << magnitude_bits if magnitude_bits < 63 else -(1 << 63)
