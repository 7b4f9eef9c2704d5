"""Numbers of a float format and their codes, made of each other: exact operations on integer tensors, on any device."""

from __future__ import annotations

import torch

from ..base.errors import FormatError
from ..base.family import check_encodable
from ..base.on_device import where
from .codes import code_dtype
from .float_layout import FloatLayout
from .patterns import INFINITY, INTEGER, LARGEST_EXPONENT, STORED_BITS, pattern


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
        FormatError: ``x`` holds a NaN or an infinity, and the format does not.
    """
    if not fmt.has_nan:
        check_encodable(fmt, x)
    if not fmt.has_infinity and bool(x.isinf().any()):
        raise FormatError(f"{fmt} has no infinity, and the tensor to encode holds one")
    codes = _top_bits(fmt, x) if _shares_top_bits(fmt, x.dtype) else _computed_codes(fmt, x)
    return codes.to(code_dtype(fmt.bits))


def _shares_top_bits(fmt: FloatLayout, dtype: torch.dtype) -> bool:
    """Whether the codes are the first bits of the patterns of ``dtype``, as bf16's codes are of float32's."""
    carrier_layout = (torch.finfo(dtype).bits - 1 - STORED_BITS[dtype], LARGEST_EXPONENT[dtype])
    return fmt.specials == "ieee" and fmt.subnormals and (fmt.exponent_bits, fmt.exponent_bias) == carrier_layout


def _top_bits(fmt: FloatLayout, x: torch.Tensor) -> torch.Tensor:
    """The first bits of patterns, as integers of their width."""
    codes = x.view(INTEGER[x.dtype]) >> (STORED_BITS[x.dtype] - fmt.significand_bits)
    if fmt.bits < torch.finfo(x.dtype).bits:
        codes &= (1 << fmt.bits) - 1  # the sign is at the front of all of them
    return where(x.isnan(), nan_code(fmt), codes) if fmt.has_nan else codes


def _computed_codes(fmt: FloatLayout, x: torch.Tensor) -> torch.Tensor:
    """The codes, by integer arithmetic on patterns."""
    stored, bias, infinity = STORED_BITS[x.dtype], LARGEST_EXPONENT[x.dtype], INFINITY[x.dtype]
    m, magnitude_bits = fmt.significand_bits, fmt.bits - fmt.signed
    bits = x.view(INTEGER[x.dtype])
    magnitude = bits & torch.iinfo(bits.dtype).max
    code = (magnitude >> (stored - m)) - ((bias - fmt.exponent_bias) << m)
    if fmt.subnormals:
        # Subnormal numbers of the carrier have the exponent field of 1; the format's are integer numbers of quanta.
        field = (magnitude >> stored).clamp(min=1)
        significand = magnitude - ((field - 1) << stored)
        quanta = significand >> (bias + stored + fmt.emin - m - field).clamp(0, torch.iinfo(bits.dtype).bits - 1)
    else:
        quanta = torch.zeros_like(bits)
    code = where(magnitude < pattern(fmt.smallest_normal, x.dtype), quanta, code)
    code = where(magnitude == infinity, infinity_code(fmt), code) if fmt.has_infinity else code
    if fmt.signed:
        code = where(bits < 0, code | _sign_bit(magnitude_bits), code)
    return where(magnitude > infinity, nan_code(fmt), code) if fmt.has_nan else code


def decode(fmt: FloatLayout, codes: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The numbers that codes from 0 up represent, in ``dtype``, which can hold the format."""
    codes = codes.to(INTEGER[dtype])
    to_patterns = _zero_filled if _shares_top_bits(fmt, dtype) else _computed_patterns
    return to_patterns(fmt, codes, dtype).view(dtype)


def _zero_filled(fmt: FloatLayout, codes: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Patterns that begin with the bits of the codes; for NaN, one without payload."""
    patterns = codes << (STORED_BITS[dtype] - fmt.significand_bits)
    is_number = (patterns & torch.iinfo(codes.dtype).max) <= INFINITY[dtype]
    return where(is_number, patterns, _quiet(dtype))


def _computed_patterns(fmt: FloatLayout, codes: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Patterns, by integer arithmetic on codes."""
    stored, bias = STORED_BITS[dtype], LARGEST_EXPONENT[dtype]
    m, magnitude_bits = fmt.significand_bits, fmt.bits - fmt.signed
    negative = (codes & _sign_bit(magnitude_bits)) != 0 if fmt.signed else torch.zeros_like(codes, dtype=torch.bool)
    magnitude = codes & ((1 << magnitude_bits) - 1)
    fraction = magnitude & ((1 << m) - 1)
    # Fields above the largest number represent no number, and may exceed the carrier's fields.
    is_number = magnitude <= fmt.largest_code
    normal = where(is_number, magnitude, 0) + ((bias - fmt.exponent_bias) << m) << (stored - m)
    value = where(magnitude >> m == 0, _subnormal(fmt, fraction, dtype), normal)
    if fmt.has_infinity:
        value = where(magnitude == infinity_code(fmt), INFINITY[dtype], value)
        is_number |= magnitude == infinity_code(fmt)
    if fmt.signed and not fmt.has_negative_zero:
        is_number &= ~(negative & (magnitude == 0))
    # Without subnormals zero has further codes, which have a sign only if zero has.
    negative = negative & ((value != 0) | fmt.has_negative_zero)
    value = where(negative, value | torch.iinfo(codes.dtype).min, value)
    return where(is_number, value, _quiet(dtype))


def _subnormal(fmt: FloatLayout, fraction: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The patterns of ``fraction`` times the smallest subnormal number, without floating-point arithmetic."""
    if not fmt.subnormals:
        return torch.zeros_like(fraction)
    stored, lowest = STORED_BITS[dtype], fmt.emin - fmt.significand_bits
    # An integer is normal in the carrier. If the scaled number is subnormal, the number of quanta is its pattern.
    scaled = fraction.to(dtype).view(fraction.dtype) + (lowest << stored)
    up = lowest + LARGEST_EXPONENT[dtype] + stored - 1
    tiny = fraction << min(max(up, 0), torch.iinfo(fraction.dtype).bits - 1)
    return where(fraction == 0, 0, where(scaled < 1 << stored, tiny, scaled))


def _quiet(dtype: torch.dtype) -> int:
    """The pattern of the NaN that codes of NaN represent: quiet, positive, without payload."""
    return INFINITY[dtype] | 1 << (STORED_BITS[dtype] - 1)


def _sign_bit(magnitude_bits: int) -> int:
    """The sign's place as torch's signed 64-bit integers write it."""
    return 1 << magnitude_bits if magnitude_bits < 63 else -(1 << 63)
