"""Posits: tapered floats, with more significand bits near 1 and more range far from it."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from .. import gpu
from ..arithmetic.codes import code_dtype, integer_codes
from ..arithmetic.patterns import float64_bits
from ..base.family import Family, check_integer
from ..base.modes import Rounding, RoundingOptions
from ..base.names import Beginning, register
from ..base.on_device import where
from ..cpu.addressed import Addressed
from ..cpu.numbers.posits import addressed_posit, round_posit

WIDTHS = range(2, 33)
EXPONENT_BITS = range(5)
STANDARD_EXPONENT_BITS = 2
"""es of the standard for posit arithmetic (2022), for every width."""

_BIAS = 1023 << 52
_MAGNITUDE = (1 << 63) - 1
_INFINITY = 0x7FF << 52

# As for floats: double rounding is harmless up to 11 bits of precision in float32.
_LARGEST_PRECISION_IN_FLOAT32 = 11


@dataclass(frozen=True)
class PositFormat(Family):
    """Posits of ``width`` bits, n, with ``exponent_bits``, es: +-2^(k 2^es + e) (1 + f).

    A code is a sign, the regime (a run that encodes k), up to es bits of e, and the bits of f that are left. Negative
    numbers are the two's complement of positive ones. There are one zero and NaR ("not a real"): NaN in a tensor.

    Rounding follows the standard for posit arithmetic (2022), section 4.1: to the nearest, ties to the even code,
    where nearest is meant of the bit string; where exponent bits no longer fit, between powers of two far apart, the
    border is their geometric rather than their arithmetic mean. No number but 0 rounds to 0, in any mode: below minpos
    there is minpos, and above maxpos there is maxpos. Infinity and NaN become NaN (NaR), -0 becomes +0. Ties-away is
    nearest on the bit string too; toward-zero, up, down and to-odd choose between the two neighbours as everywhere;
    stochastic rounding is unbiased in value: the probability is (x - lower) / (upper - lower), in float64.

    Args:
        width: n, 2 to 32.
        exponent_bits: es, 0 to 4; 2 in the standard.

    Raises:
        FormatError: a number is out of range.
    """

    width: int
    exponent_bits: int = STANDARD_EXPONENT_BITS

    elementwise = True
    has_nan = True  # NaR

    def __post_init__(self) -> None:
        check_integer("a posit", "width", self.width, WIDTHS)
        check_integer("a posit", "exponent_bits", self.exponent_bits, EXPONENT_BITS)

    def __str__(self) -> str:
        es = "" if self.exponent_bits == STANDARD_EXPONENT_BITS else f"_{self.exponent_bits}"
        return f"posit{self.width}{es}"

    @property
    def bits(self) -> int:
        """Storage size of one number, in bits."""
        return self.width

    @property
    def emax(self) -> int:
        """Exponent of the largest number: (n - 2) 2^es."""
        return (self.width - 2) << self.exponent_bits

    @property
    def max(self) -> float:
        """maxpos, 2^emax."""
        return 2.0**self.emax

    @property
    def smallest(self) -> float:
        """minpos, 2^-emax, the smallest number above zero."""
        return 2.0**-self.emax

    @property
    def significand_bits(self) -> int:
        """The most fraction bits that a number has: those from 1/useed to useed, where the regime takes two bits."""
        return max(self.width - 3 - self.exponent_bits, 0)

    @property
    def eps(self) -> float:
        """The distance from 1 to the next larger number; infinity if 1 is the largest (posit2)."""
        if self.width == WIDTHS[0]:
            return float("inf")
        return float(self.decode(torch.tensor((1 << (self.width - 2)) + 1), torch.float64)) - 1.0

    @property
    def carrier(self) -> torch.dtype:
        """float32 if all numbers fit in it and none has more than 11 bits of precision, else float64.

        Sums, products, quotients and square roots of posits, rounded to the nearest number of the carrier, are then
        right after one more rounding to the nearest, as long as they do not leave the carrier's range. In other cases a
        simulation computes exact results and rounds them once.
        """
        small = self.significand_bits + 1 <= _LARGEST_PRECISION_IN_FLOAT32  # The precision includes the implicit bit.
        return torch.float32 if small and self.fits_in(torch.float32) else torch.float64

    def fits_in(self, dtype: torch.dtype) -> bool:
        """Whether every number is a number of ``dtype``; float32 ends at an exponent of 127 and 23 fraction bits."""
        return dtype == torch.float64 or (self.emax <= 127 and self.significand_bits <= 23)

    def _values(self) -> torch.Tensor:  # NaR is none
        half = 1 << (self.width - 1)
        return self.decode(torch.arange(1 - half, half) & ((1 << self.width) - 1), torch.float64)

    @property
    def _ends(self) -> tuple[int, int]:
        """The float64 patterns of maxpos and minpos."""
        return (1023 + self.emax) << 52, (1023 - self.emax) << 52

    def _round_memory(self, source: torch.Tensor, target: torch.Tensor, options: RoundingOptions) -> None:
        round_posit(source, target, self.width, self.exponent_bits, self._ends, options)

    def addressed(self, dtype: torch.dtype, rounding: Rounding, *, strided: bool = False) -> Addressed | None:  # noqa: ARG002
        """See :meth:`.Family.addressed`."""
        if not self.fits_in(dtype):
            return None
        return addressed_posit(dtype, self.width, self.exponent_bits, self._ends, rounding)

    def _round_on_device(self, source: torch.Tensor, target: torch.Tensor, options: RoundingOptions) -> None:
        gpu.to_posit(source, target, self.width, self.exponent_bits, self._ends, options)

    @property
    def _below_regime(self) -> int:
        """The number of low bits of a float64's pattern, bias subtracted, that are not part of a posit's regime k."""
        return 52 + self.exponent_bits

    def _tail_bits(self, k: torch.Tensor) -> torch.Tensor:
        """Returns the number of code bits below the regime; -1 for maxpos, as its regime lacks the closing zero."""
        return self.width - 1 - where(k >= 0, k + 2, 1 - k)

    def _encoded(self, x: torch.Tensor, options: RoundingOptions) -> torch.Tensor:
        """Uint8, uint16 or uint32, the smallest that do; NaN and infinity have the code of NaR, 2^(n-1)."""
        bits = float64_bits(self._rounded_to_encode(x, options))
        pattern = (bits & _MAGNITUDE) - _BIAS  # In two's complement: k, es exponent bits, fraction.
        k = pattern >> self._below_regime
        tail_bits = self._tail_bits(k)
        regime = where(k >= 0, (1 << (k.clamp(min=0) + 2)) - 2, 1)  # k + 1 ones and a zero, or -k zeros and a one.
        rest = (pattern & ((1 << self._below_regime) - 1)) >> (self._below_regime - tail_bits.clamp(min=0))
        # The regime of maxpos lacks the closing zero.
        code = where(tail_bits < 0, regime >> 1, (regime << tail_bits.clamp(min=0)) | rest)
        code = where(bits < 0, -code, code) & ((1 << self.width) - 1)  # Two's complement.
        code = where((bits & _MAGNITUDE) == 0, 0, where((bits & _MAGNITUDE) < _INFINITY, code, 1 << (self.width - 1)))
        return code.to(code_dtype(self.width))

    def _decoded(self, codes: torch.Tensor, dtype: torch.dtype | None) -> torch.Tensor:
        codes = integer_codes(self, codes, self.width)
        body = (1 << (self.width - 1)) - 1
        negative = codes > body
        magnitude = where(negative, -codes, codes) & body
        ones = magnitude > body >> 1  # Where the run is of ones: |x| >= 1.
        # The regime's run ends at the highest bit that differs from its first.
        different = where(ones, ~magnitude & body, magnitude)
        run = self.width - 1 - torch.frexp(different.to(torch.float64)).exponent.to(torch.int64)
        k = where(ones, run - 1, -run)
        tail_bits = self._tail_bits(k).clamp(min=0)
        rest = (magnitude & ((1 << tail_bits) - 1)) << (self._below_regime - tail_bits)
        numbers = ((k << self._below_regime) + rest + _BIAS).view(torch.float64)
        numbers = where(negative, -numbers, numbers)
        numbers = where(magnitude == 0, where(negative, torch.nan, 0.0), numbers)
        return numbers.to(dtype or self.carrier)


register(
    PositFormat,
    beginnings=[
        Beginning(
            "positN",
            r"posit(\d{1,3})(?:_(\d{1,3}))?",
            lambda match: {
                "width": int(match[1]),
                "exponent_bits": STANDARD_EXPONENT_BITS if match[2] is None else int(match[2]),
            },
        )
    ],
    aliases={f"posit{width}": PositFormat(width) for width in (8, 16, 32)},
    called="posit",
    shown=["posit16", "posit8"],
    verified=["posit8", "posit16"],
    drawn={"width": range(3, 17), "exponent_bits": range(4)},
)
