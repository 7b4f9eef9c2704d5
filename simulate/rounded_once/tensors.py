"""Elementwise arithmetic rounded once to the carrier, in any mode, as tensor operations: the same bits as the loops."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ...formats import Overflow, RandomBits, Rounding, where
from ...formats.arithmetic.float_tensors import round_by_mode
from ...formats.arithmetic.tail import rule
from ...formats.base.on_device import number_on, table_on
from ...formats.base.random_words import random_words
from ...formats.families.floats import FP32
from .carrier_rounding import CarrierRounding
from .formulas import Dialect, double, single
from .loops import UNSAFE

_MAGNITUDE = (1 << 63) - 1
_LARGEST = 0x7FEF_FFFF_FFFF_FFFF  # the bits of the largest number

_SPLITTER = 2.0**27 + 1  # Veltkamp: halves of 26 bits, whose products are exact


def two_sum(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The sum and its error to the exact sum (Knuth); NaN where the sum is infinite."""
    total = x + y
    part = total - x
    return total, (x - (total - part)) + (y - part)


def _halves(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    scaled = _SPLITTER * x
    high = scaled - (scaled - x)
    return high, x - high


def two_product(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The product and its error to the exact product (Dekker), for factors up to 2^996.

    0 or NaN where float64 cannot tell.
    """
    product = x * y
    (x1, x2), (y1, y2) = _halves(x), _halves(y)
    return product, ((x1 * y1 - product) + x1 * y2 + x2 * y1) + x2 * y2


def _split(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """``x`` as a number from 1 to below 2 and the exponent of a power of two; 0, infinity, NaN with some exponent."""
    small = x.abs() < 2.0**-960
    bits = where(small, x * 2.0**60, x).view(torch.int64)
    field = (bits >> 52) & 0x7FF
    significand = ((bits & ~(0x7FF << 52)) | (1023 << 52)).view(torch.float64)
    plain = (field == 0) | (field == 0x7FF)
    return where(plain, x, significand), field - where(small, 1083, 1023)


def _power(exponent: torch.Tensor) -> torch.Tensor:
    """2^exponent, for exponents from -1022 to 1023."""
    return ((exponent + 1023) << 52).view(torch.float64)


def _scaled_odd(x: torch.Tensor, exponent: torch.Tensor) -> torch.Tensor:
    """A normal number that was rounded to odd, or zero, times 2^exponent, rounded to odd."""
    bits = x.view(torch.int64)
    magnitude = bits & _MAGNITUDE
    fraction = magnitude & ((1 << 52) - 1)
    field = (magnitude >> 52) + exponent
    normal = fraction | (field.clamp(0, 2046) << 52)
    drop = (1 - field).clamp(0, 63)
    significand = fraction | (1 << 52)
    subnormal = significand >> drop
    subnormal = subnormal | ((subnormal << drop) != significand).to(torch.int64)
    result = where(field > 0, normal, subnormal)
    result = where(field > 2046, _LARGEST, result)
    return (where(magnitude == 0, 0, result) | (bits & ~_MAGNITUDE)).view(torch.float64)


def product_odd(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """``x * y`` rounded to odd, whatever the exponents; broadcasts."""
    (x1, x_exponent), (y1, y_exponent) = _split(x), _split(y)
    product, lost = two_product(x1, y1)
    return where(product.isfinite(), _scaled_odd(odd(product, lost), x_exponent + y_exponent), product)


def multiply_add(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor, *, to_odd: bool) -> torch.Tensor:
    """``x * y + z`` rounded to odd, or to nearest-even, whatever the exponents; broadcasts.

    It works as ``error_free.multiply_add_anywhere64``. Subnormal results are rounded twice to nearest-even.
    """
    (x1, x_exponent), (y1, y_exponent), (z1, z_exponent) = _split(x), _split(y), _split(z)
    plain = x1 * y1
    exponent = where(plain != 0, x_exponent + y_exponent, -3000)
    top = torch.maximum(exponent, where(z1 != 0, z_exponent, -3000))
    high, low = two_product(x1 * _power((exponent - top).clamp(min=-300)), y1)
    middle, first = two_sum(z1 * _power((z_exponent - top).clamp(min=-300)), low)
    total, second = two_sum(high, middle)
    total, error = two_sum(total, odd(*two_sum(first, second)))
    zero = where(plain == 0, plain + z1, 0.0)
    if to_odd:
        scaled = _scaled_odd(odd(total, error), top)
    else:
        third = top // 3  # 2^top may be out of range; three powers are not.
        scaled = total * _power(third) * _power(third) * _power(top - 2 * third)
    result = where(total != 0, scaled, zero)
    return where((plain + z1).isfinite(), result, plain + z1)


def odd(total: torch.Tensor, error: torch.Tensor) -> torch.Tensor:
    """``total + error`` rounded to odd; ``total`` where the error is NaN."""
    bits = total.view(torch.int64)
    inexact = error.abs() > 0
    opposite = inexact & ((bits ^ error.view(torch.int64)) < 0)
    return ((bits - opposite.to(torch.int64)) | inexact.to(torch.int64)).view(torch.float64)


def _root(x: torch.Tensor) -> torch.Tensor:
    """PyTorch's root may be off by a last place; the error of its square shows where."""
    near = x.sqrt()
    square, lost = two_product(near, near)
    better = near + ((x - square) - lost) / (near + near)  # A step of Newton's method.
    return where(better.isfinite(), better, near)


_SMALLEST = torch.tensor(2.0**-149, dtype=torch.float64, device="cpu")  # float32's

_DIALECT = Dialect(lambda function: function, two_sum, two_product, odd, _root, where)
_FORMULAS = {torch.float32: single(_DIALECT), torch.float64: double(_DIALECT)}


def compute(
    formula: str,
    operands: Sequence[torch.Tensor],
    factor: float,
    dtype: torch.dtype,
    rounding: CarrierRounding,
    random: RandomBits | None,
) -> torch.Tensor:
    """The results of a formula, rounded once to ``dtype``; ``UNSAFE`` where they are not known (float64).

    Args:
        formula: a field of :class:`~roundoff.simulate.rounded_once.formulas.Formulas`.
        operands: all that it reads, of that dtype; they broadcast; any device.
        factor: its ``v``, a number of that dtype.
        dtype: float32 or float64.
        rounding: the rounding of the exact results to the carrier.
        random: for stochastic rounding.
    """
    wide = torch.broadcast_tensors(*(x.double() for x in operands))  # type: ignore[no-untyped-call]
    sign = -1.0 if rounding.mode is Rounding.DOWN else 1.0
    top, rest, plain, safe = getattr(_FORMULAS[dtype], formula)(*wide, *wide[:1] * (3 - len(wide)), factor, sign)
    rest = number_on(rest, torch.float64, top.device).expand(top.shape)
    overflow = Overflow.SATURATE if rounding.saturating else None
    special = ~(top.isfinite() & plain.isfinite() & (top != 0))
    words = None if random is None else random_words(random, top)
    if dtype == torch.float32:
        exact = where(special, plain, odd(top, where(rest.isfinite(), rest, 0.0)))
        rounded = round_by_mode(exact, FP32.parameters(torch.float64, rounding.mode, overflow), words).to(dtype)
        if rounding.saturating:
            rounded = where(
                (rounded == 0) & (exact != 0), torch.copysign(table_on(_SMALLEST, exact.device), exact), rounded
            )
        return rounded.to(dtype)
    # `top + rest` rounded to float64, both finite, `top` not zero
    mode = rule(rounding.mode)
    bits = top.view(torch.int64)
    inexact = rest.abs() > 0
    opposite = inexact & ((bits ^ rest.view(torch.int64)) < 0)
    lower = bits - opposite.to(torch.int64)
    low, high = lower.view(torch.float64), (lower + 1).view(torch.float64)
    above = (1.0 + ((top - low) + rest) / (high - low)).clamp(max=2.0 - 2.0**-52)
    # The first 32 bits of the fraction between the neighbours; a carry goes up.
    fraction = where(inexact, (above.view(torch.int64) >> 20) & 0xFFFFFFFF, 0)
    fraction = fraction | (inexact & bool(mode.sticky)).to(torch.int64)
    addend = where(bits < 0, mode.negative, mode.positive) if words is None else words
    if mode.parity:
        addend = (addend + (lower & 1)) & 0xFFFFFFFF
    result = where(special, plain, (lower + ((fraction + addend) >> 32)).view(torch.float64))
    return where(safe, result.view(torch.int64), UNSAFE).view(dtype)
