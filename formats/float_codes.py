"""From numbers of a float format to their codes, and back: tensor operations, exact, on any device."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from roundoff.formats.errors import FormatError
from roundoff.formats.family import check_encodable, code_dtype
from roundoff.formats.parameters import INFINITY, LARGEST_EXPONENT, STORED_BITS
from roundoff.formats.tensor_kernels import INTEGER

if TYPE_CHECKING:
    from roundoff.formats.floats import FloatFormat


def nan_code(fmt: FloatFormat) -> int:
    """The code that NaN gets: quiet, positive where it has a sign, without payload."""
    e, m = fmt.exponent_bits, fmt.significand_bits
    if not fmt.has_negative_zero:
        return 1 << (e + m)
    return (1 << (e + m)) - 1 if fmt.specials == "fn" else (((1 << e) - 1) << m) | (1 << (m - 1))


def infinity_code(fmt: FloatFormat) -> int:
    """The code of plus infinity, of formats that have one: the next after the largest number."""
    return fmt.largest_code + 1


def encode(fmt: FloatFormat, x: torch.Tensor) -> torch.Tensor:
    """The codes of a float32 or float64 tensor that holds numbers of the format only.

    Raises:
        FormatError: ``x`` holds a NaN or an infinity, and the format has none.
    """
    dtype = x.dtype
    stored = STORED_BITS[dtype]
    m, magnitude_bits = fmt.significand_bits, fmt.exponent_bits + fmt.significand_bits
    if not fmt.has_nan:
        check_encodable(fmt, x)
    if not fmt.has_infinity and bool(x.isinf().any()):
        raise FormatError(f"{fmt} has no infinity, and the tensor to encode holds one")
    bits = x.view(INTEGER[dtype]).to(torch.int64)
    magnitude = bits & ((1 << (8 * dtype.itemsize - 1)) - 1)
    normal = (magnitude >> (stored - m)) - ((LARGEST_EXPONENT[dtype] - fmt.exponent_bias) << m)
    quanta = (x.abs() / fmt.smallest_subnormal if fmt.subnormals else torch.zeros_like(x)).nan_to_num(0.0, 0.0, 0.0)
    # Where the number is normal the quotient may be beyond int64; it is not used there.
    quanta = torch.where(x.abs() < fmt.smallest_normal, quanta, 0.0)
    code = torch.where(x.abs() < fmt.smallest_normal, quanta.to(torch.int64), normal)
    code = torch.where(x.isinf(), infinity_code(fmt), code) if fmt.has_infinity else code
    code = torch.where(bits < 0, code | _sign_bit(magnitude_bits), code)
    if fmt.has_nan:
        code = torch.where(magnitude > INFINITY[dtype], nan_code(fmt), code)
    return code.to(code_dtype(fmt.bits))


def decode(fmt: FloatFormat, codes: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The numbers that integer codes stand for, in ``dtype``, which can hold the format; upper bits are ignored."""
    m, magnitude_bits = fmt.significand_bits, fmt.exponent_bits + fmt.significand_bits
    stored = STORED_BITS[dtype]
    code = codes.to(torch.int64)
    negative = (code & _sign_bit(magnitude_bits)) != 0
    magnitude = code & ((1 << magnitude_bits) - 1)
    exponent = (magnitude >> m) + (LARGEST_EXPONENT[dtype] - fmt.exponent_bias)
    fraction = magnitude & ((1 << m) - 1)
    # Fields beyond the largest number may be beyond the carrier's; they stand for no number.
    is_number = magnitude <= fmt.largest_code
    pattern = torch.where(is_number, (exponent << stored) | (fraction << (stored - m)), 0)
    normal = pattern.to(INTEGER[dtype]).view(dtype)
    quantum = fmt.smallest_subnormal if fmt.subnormals else 0.0
    value = torch.where(magnitude >> m == 0, fraction.to(dtype) * quantum, normal)
    if fmt.has_infinity:
        value = torch.where(magnitude == infinity_code(fmt), torch.inf, value)
        is_number |= magnitude == infinity_code(fmt)
    value = torch.where(negative, -value, value)
    if not fmt.has_negative_zero:
        is_number &= ~(negative & (magnitude == 0))
    return torch.where(is_number, value, torch.nan)


def _sign_bit(magnitude_bits: int) -> int:
    """The sign's place as torch's signed 64-bit integers write it."""
    return 1 << magnitude_bits if magnitude_bits < 63 else -(1 << 63)
