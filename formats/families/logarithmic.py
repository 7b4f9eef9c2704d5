"""Logarithmic numbers: a sign and a fixed-point logarithm, so that neighbours have the same ratio everywhere."""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import Decimal, localcontext
from functools import cache

import numpy as np
import torch

from .. import gpu
from ..arithmetic.codes import code_dtype, integer_codes
from ..arithmetic.patterns import float64_bits, power_of_two
from ..base.errors import FormatError
from ..base.family import Family, check_integer
from ..base.memory import unsimulated
from ..base.modes import NEAREST, Rounding, RoundingOptions
from ..base.names import Beginning, register
from ..base.on_device import table_on, where
from ..cpu.addressed import Addressed
from ..cpu.numbers.logarithms import (
    PowerCells,
    addressed_in_mode,
    addressed_to_nearest,
    cells,
    round_in_mode,
    round_to_nearest,
)  # fmt: skip

WIDTHS = range(3, 23)
FRACTION_BITS = range(13)
_MOST_EXPONENT_BITS = 9  # magnitudes from 2^-512 to 2^512: well within float64
_MOST_EXPONENT_BITS_IN_FLOAT32 = 6  # Magnitudes from 2^-64 to 2^64 are normal in float32.
_DIGITS = 50  # Enough to decide every rounding to 53 bits: the powers are irrational.


@dataclass(frozen=True)
class LogarithmicFormat(Family):
    """Numbers +-2^(k / 2^f), with an integer k of ``width`` - 1 bits in two's complement, f of them after the point.

    ``lns8_3`` has 1 sign, 4 integer and 3 fraction bits of log2 |x|: from 2^-7.875 to 2^7.875, neighbours 2^(1/8)
    apart. The lowest k, -2^(width-2), represents zero, and NaN with the sign set. There is no infinity (it
    saturates) and no negative zero.

    The powers are irrational; in a tensor the carrier's nearest float represents each. Nearest rounding is nearest in
    the logarithm, as a logarithmic adder's table does it: the border between k and k + 1 is 2^((k + 1/2) / 2^f),
    decided exactly. As that is irrational ties do not occur, and the modes to nearest are the same. Zero takes
    the place of the lowest k: numbers below 2^((1/2 - 2^(width-2)) / 2^f) round to it. The other modes choose between
    the two neighbours (floats of the carrier, or zero); stochastic rounding is unbiased in value: the probability is
    (x - lower) / (upper - lower), in float64.

    Args:
        width: bits of a code, 3 to 22.
        fraction_bits: f, 0 to 12; at least width - 11 and at most width - 2.

    Raises:
        FormatError: a number is out of range.
    """

    width: int
    fraction_bits: int

    elementwise = True
    has_nan = True

    def __post_init__(self) -> None:
        check_integer("a logarithmic format", "width", self.width, WIDTHS)
        check_integer("a logarithmic format", "fraction_bits", self.fraction_bits, FRACTION_BITS)
        if not 0 <= self._exponent_bits <= _MOST_EXPONENT_BITS:
            least, most = max(0, self.width - 2 - _MOST_EXPONENT_BITS), min(self.width - 2, FRACTION_BITS[-1])
            raise FormatError(
                f"a logarithmic format of {self.width} bits must have from {least} to {most} fraction bits,"
                f" got {self.fraction_bits}"
            )

    def __str__(self) -> str:
        return f"lns{self.width}_{self.fraction_bits}"

    @property
    def _exponent_bits(self) -> int:
        return self.width - 2 - self.fraction_bits

    @property
    def _zero(self) -> int:
        return -(1 << (self.width - 2))

    @property
    def bits(self) -> int:
        """Storage size of one number, in bits."""
        return self.width

    @property
    def max(self) -> float:
        """The largest number, 2^((2^(width-2) - 1) / 2^f), as a float64."""
        return float(self._powers_of(torch.tensor(-self._zero - 1), torch.float64))

    @property
    def smallest(self) -> float:
        """The smallest number above zero, 2^((1 - 2^(width-2)) / 2^f), as a float64."""
        return float(self._powers_of(torch.tensor(self._zero + 1), torch.float64))

    def bounds(self, dtype: torch.dtype) -> tuple[float, float]:
        """Minus and plus the float of ``dtype`` that represents the largest number."""
        high = float(self._powers_of(torch.tensor(-self._zero - 1, device="cpu"), dtype))
        return -high, high

    @property
    def eps(self) -> float:
        """2^(1 / 2^f) - 1, the distance from 1 to the next larger number; relative to a number, everywhere."""
        return math.expm1(math.log(2.0) / (1 << self.fraction_bits))

    @property
    def carrier(self) -> torch.dtype:
        """float32 up to exponents of 64, else float64.

        Products and quotients are off by the carrier's rounding, a 2^-24th; closer than that to a border between two
        numbers they can go the wrong way (in a simulation to nearest and to odd only).
        """
        return torch.float32 if self.fits_in(torch.float32) else torch.float64

    def fits_in(self, dtype: torch.dtype) -> bool:
        """Whether every number is represented by a normal float of ``dtype``."""
        return dtype == torch.float64 or self._exponent_bits <= _MOST_EXPONENT_BITS_IN_FLOAT32

    def _values(self) -> torch.Tensor:
        positive = self._powers_of(torch.arange(self._zero + 1, -self._zero), torch.float64)
        return torch.cat([-positive.flip(0), torch.zeros(1, dtype=torch.float64), positive])

    def _round_memory(self, source: torch.Tensor, target: torch.Tensor, options: RoundingOptions) -> None:
        cells, powers, smallest = self._cells(source.dtype, options.rounding)
        if smallest is None:
            round_to_nearest(source, target, self.fraction_bits, self._zero, cells, powers)
        else:
            round_in_mode(source, target, self.fraction_bits, self._zero, cells, powers, smallest, options)

    def _cells(self, dtype: torch.dtype, rounding: Rounding) -> tuple[PowerCells, torch.Tensor, float | None]:
        """The borders of cells, the powers, and the smallest number in modes that need it."""
        steps, borders, powers = _tables(self.fraction_bits, dtype)
        if rounding in NEAREST:
            return borders, powers, None
        return steps, powers, float(self._powers_of(torch.tensor(self._zero + 1, device="cpu"), dtype))

    @unsimulated
    def addressed(self, dtype: torch.dtype, rounding: Rounding, *, strided: bool = False) -> Addressed | None:  # noqa: ARG002
        """See :meth:`.Family.addressed`."""
        if not self.fits_in(dtype):
            return None
        cells, powers, smallest = self._cells(dtype, rounding)
        if smallest is None:
            return addressed_to_nearest(dtype, self.fraction_bits, self._zero, cells, powers)
        return addressed_in_mode(dtype, self.fraction_bits, self._zero, cells, powers, smallest, rounding)

    def _round_on_device(self, source: torch.Tensor, target: torch.Tensor, options: RoundingOptions) -> None:
        cells = self._cells(source.dtype, options.rounding)
        gpu.to_logarithmic(source, target, self.fraction_bits, self._zero, *cells, options)

    def _logarithms(self, numbers: torch.Tensor) -> torch.Tensor:
        """K of the magnitudes of numbers of the format; the lowest one for zero, anything for NaN."""
        bits = float64_bits(numbers) & ((1 << 63) - 1)  # Without the sign.
        within = ((bits & ((1 << 52) - 1)) | (1023 << 52)).view(torch.float64).contiguous()  # 1 up to 2
        table = table_on(_powers(self.fraction_bits, numbers.dtype), numbers.device).to(torch.float64)
        # The exponent counts octaves; the table has the powers within one.
        k = (((bits >> 52) - 1023) << self.fraction_bits) + torch.bucketize(within, table, right=True) - 1
        return where(bits == 0, self._zero, k)

    @unsimulated
    def _powers_of(self, k: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """The floats of ``dtype`` that represent 2^(k / 2^f)."""
        table = table_on(_powers(self.fraction_bits, dtype), k.device)
        power = power_of_two(k >> self.fraction_bits)
        return (table[k & ((1 << self.fraction_bits) - 1)].to(torch.float64) * power).to(dtype)

    def _encoded(self, x: torch.Tensor, options: RoundingOptions) -> torch.Tensor:
        """The sign bit, then k in two's complement: uint8, uint16 or uint32, the smallest that do.

        Zero has the code of the lowest k; with the sign bit it is NaN's code.
        """
        numbers = self._rounded_to_encode(x, options)
        k = where(numbers.isnan(), self._zero, self._logarithms(numbers))
        sign = numbers.isnan() | (numbers < 0)  # Not of -0, which rounding does not give.
        code = (k & ((1 << (self.width - 1)) - 1)) | (sign.to(torch.int64) << (self.width - 1))
        return code.to(code_dtype(self.width))

    def _decoded(self, codes: torch.Tensor, dtype: torch.dtype | None) -> torch.Tensor:
        codes = integer_codes(self, codes, self.width)
        negative = ((codes >> (self.width - 1)) & 1) == 1
        k = codes & ((1 << (self.width - 1)) - 1)
        k = where(k >= -self._zero, k + 2 * self._zero, k)  # Two's complement.
        numbers = self._powers_of(k, dtype or self.carrier)
        numbers = where(negative, -numbers, numbers)
        return where(k == self._zero, where(negative, torch.nan, 0.0), numbers)  # The lowest k.


def _exact_powers(numerators: range, denominator: int) -> list[Decimal]:
    """2^(n / denominator) to 50 digits."""
    with localcontext() as context:
        context.prec = _DIGITS
        return [Decimal(2) ** (Decimal(n) / denominator) for n in numerators]


@cache
@unsimulated  # a format may be used for the first time inside a simulation
def _powers(fraction_bits: int, dtype: torch.dtype) -> torch.Tensor:
    """The floats nearest to 2^(j / 2^f) for j = 0 .. 2^f - 1, of ``dtype``, on the CPU."""
    exact = _exact_powers(range(1 << fraction_bits), 1 << fraction_bits)
    if dtype == torch.float64:
        return torch.tensor([float(power) for power in exact], dtype=dtype, device="cpu")
    nearest = []
    for power in exact:
        # By way of float64 it could be rounded twice: look at the neighbours too.
        near = np.float32(float(power))
        candidates = (np.nextafter(near, np.float32(0)), near, np.nextafter(near, np.float32(3)))
        nearest.append(min((float(c) for c in candidates), key=lambda c: abs(Decimal(c) - power)))
    return torch.tensor(nearest, dtype=dtype, device="cpu")


@cache
@unsimulated
def _borders(fraction_bits: int) -> torch.Tensor:
    """The largest float64 numbers below 2^((j + 1/2) / 2^f) for j = 0 .. 2^f - 1, on the CPU."""
    borders = []
    for power in _exact_powers(range(1, 2 << fraction_bits, 2), 2 << fraction_bits):
        near = float(power)
        borders.append(near if Decimal(near) < power else math.nextafter(near, 0.0))
    return torch.tensor(borders, dtype=torch.float64, device="cpu")


@cache
@unsimulated
def _tables(fraction_bits: int, dtype: torch.dtype) -> tuple[PowerCells, PowerCells, torch.Tensor]:
    """Returns the tables of the compiled loops: powers by cell, borders by cell, and the powers followed by 2."""
    powers = torch.cat([_powers(fraction_bits, dtype).to(torch.float64), torch.tensor([2.0], dtype=torch.float64)])
    return cells(powers[:-1], fraction_bits), cells(_borders(fraction_bits), fraction_bits), powers


register(
    LogarithmicFormat,
    beginnings=[
        Beginning(
            "lnsN_F", r"lns(\d{1,3})_(\d{1,3})", lambda match: {"width": int(match[1]), "fraction_bits": int(match[2])}
        )
    ],
    aliases={"lns8_3": LogarithmicFormat(8, 3)},
    called="lns",
    shown=["lns8_3"],
    verified=["lns8_3"],
    drawn={"width": range(4, 17), "fraction_bits": range(1, 9)},
)
