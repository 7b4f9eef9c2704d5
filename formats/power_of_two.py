"""E8M0: unsigned powers of two, the scale type of the OCP microscaling formats."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from roundoff.formats.errors import FormatError
from roundoff.formats.family import power_of_two, significand_and_exponent, words_for
from roundoff.formats.format import Format
from roundoff.formats.modes import Overflow, RandomBits, Rounding
from roundoff.formats.rounding import round
from roundoff.formats.tail import round_shifted, rule

_BIAS = 127
_NAN = 255


@dataclass(frozen=True)
class PowerOfTwoFormat(Format):
    """The numbers 2^(code - 127) for codes 0 to 254; code 255 is NaN (OCP MX v1.0, section 5.4.1).

    There is no zero, no sign and no infinity: what is zero or negative becomes NaN, and positive numbers below 2^-127
    become 2^-127. Between two powers of two the modes choose as everywhere; the middle is 1.5 times the lower one
    (ml_dtypes rounds ties up: nearest-away). Overflow gives NaN, or saturates; so does plus infinity.

    Args:
        overflow: ``Overflow.NAN`` or ``Overflow.SATURATE``.

    Raises:
        FormatError: another overflow.
    """

    overflow: Overflow = Overflow.NAN

    def __post_init__(self) -> None:
        object.__setattr__(self, "overflow", self._checked(Overflow.parse(self.overflow)))

    def _checked(self, policy: Overflow) -> Overflow:
        if policy not in (Overflow.NAN, Overflow.SATURATE):
            raise FormatError(f"e8m0fnu cannot overflow to {str(policy)!r}: allowed are nan, saturate")
        return policy

    def __str__(self) -> str:
        return "e8m0fnu" if self.overflow is Overflow.NAN else "e8m0fnu_saturate"

    @property
    def bits(self) -> int:
        """8."""
        return 8

    @property
    def max(self) -> float:
        """2^127."""
        return 2.0**127

    @property
    def min(self) -> float:
        """2^-127, the smallest number of all."""
        return 2.0**-_BIAS

    @property
    def smallest_normal(self) -> float:
        """2^-127."""
        return 2.0**-_BIAS

    @property
    def smallest_subnormal(self) -> float:
        """2^-127: there are no subnormal numbers."""
        return 2.0**-_BIAS

    @property
    def eps(self) -> float:
        """1, the distance from 1 to the next larger number."""
        return 1.0

    @property
    def carrier(self) -> torch.dtype:
        """float32."""
        return torch.float32

    @property
    def native(self) -> bool:
        """False."""
        return False

    def fits_in(self, dtype: torch.dtype) -> bool:
        """float32 and float64 both hold all numbers; in float32 the smallest is subnormal."""
        return dtype in (torch.float32, torch.float64)

    def values(self) -> torch.Tensor:
        """All 255 numbers in ascending order, float64."""
        return self.decode(torch.arange(_NAN), torch.float64)

    def _codes(
        self,
        x: torch.Tensor,
        rounding: Rounding,
        overflow: Overflow | None,
        random: RandomBits | torch.Tensor | None,
    ) -> torch.Tensor:
        policy = self.overflow if overflow is None else self._checked(overflow)
        words = words_for(rounding, random, x)
        significand, exponent = significand_and_exponent(x)
        # Numbers that are subnormal in float64 lie far below the smallest power of two anyway.
        code = (exponent + 52 + _BIAS).clamp(min=0)
        up = round_shifted(significand, 52, rule(rounding), x < 0, odd=code & 1, words=words) - 1
        code = torch.where(x < self.min, 0, code + up)
        code = torch.where(code >= _NAN, _NAN if policy is Overflow.NAN else _NAN - 1, code)
        return torch.where(x > 0, code, _NAN)

    def round_into(
        self,
        source: torch.Tensor,
        target: torch.Tensor,
        rounding: Rounding = Rounding.NEAREST_EVEN,
        overflow: Overflow | None = None,
        random: RandomBits | torch.Tensor | None = None,
    ) -> None:
        """See :func:`roundoff.formats.round` and the class."""
        target.copy_(self.decode(self._codes(source, rounding, overflow, random), source.dtype))

    def encode(
        self,
        x: torch.Tensor,
        rounding: Rounding | str = Rounding.NEAREST_EVEN,
        overflow: Overflow | str | None = None,
        random: RandomBits | torch.Tensor | None = None,
    ) -> torch.Tensor:
        """The codes of ``x`` rounded to the format, uint8; see :func:`roundoff.formats.round` for the arguments."""
        rounded = round(x, self, rounding=rounding, overflow=overflow, random=random)
        return self._codes(rounded, Rounding.NEAREST_EVEN, None, None).to(torch.uint8)

    def decode(self, codes: torch.Tensor, dtype: torch.dtype | None = None) -> torch.Tensor:
        """The numbers that ``codes`` (0 to 255) stand for, in ``dtype``, float32 if None."""
        if codes.dtype.is_floating_point or codes.dtype.is_complex:
            raise FormatError(f"codes of {self} are integers, got {codes.dtype}")
        code = codes.to(torch.int64) & _NAN
        number = power_of_two(code - _BIAS)
        return torch.where(code == _NAN, torch.nan, number).to(dtype or torch.float32)
