"""The layout of a binary floating-point format: widths, special values, and the limits that follow."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from math import ldexp

import torch

from roundoff.locks import cached_property

from ..base.errors import FormatError
from ..base.modes import Overflow
from .patterns import LARGEST_EXPONENT, STORED_BITS

EXPONENT_BITS = range(2, 12)


class Flush(StrEnum):
    """The stage that turns magnitudes below the smallest normal number into signed zeros, in every rounding mode."""

    FTZ = "ftz"
    """Flush to zero: when they are results. A number is rounded to the format's precision as if exponents had no lower
    end; what then lies below the smallest normal number becomes zero. (x86's MXCSR.FTZ: Intel SDM, volume 1, 10.2.3.3
    and 4.9.1.5, where tininess is judged after rounding)"""
    DAZ = "daz"
    """Denormals are zero: when they come in. What lies below the smallest normal number before it is rounded becomes
    zero. (x86's MXCSR.DAZ, 10.2.3.4; Arm's FPCR.FZ, which also treats results in this way)"""


class Specials(StrEnum):
    """The codes of a float format that are not numbers; the rest are numbers, in order of magnitude."""

    IEEE = "ieee"
    """The top exponent: infinity where the significand is 0, else NaN. Zero has a sign. (IEEE 754; OCP E5M2)"""
    FN = "fn"
    """All ones is NaN, of either sign; no infinity. Zero has a sign. (OCP E4M3)"""
    FNUZ = "fnuz"
    """The code of -0 is NaN; no infinity, one zero. (ml_dtypes, ONNX; default bias one larger than IEEE's; without a
    sign, where P3109 calls it finite, all ones is NaN)"""
    FINITE = "finite"
    """None; zero has a sign. (OCP FP6, FP4)"""
    P3109 = "p3109"
    """The code of -0 is NaN, all ones below the sign is infinity; one zero. (IEEE P3109; default bias as fnuz; without
    a sign, all ones is NaN and the code below it infinity)"""


@dataclass(frozen=True)
class FloatLayout:
    """The fields of a :class:`.FloatFormat`, which describes them, and all that follows only from them."""

    exponent_bits: int
    significand_bits: int
    specials: Specials = Specials.IEEE
    bias: int | None = None
    subnormals: bool = True
    overflow: Overflow | None = None
    flush: Flush | None = None
    signed: bool = True

    def __post_init__(self) -> None:
        smallest = EXPONENT_BITS[0] if self.specials is Specials.IEEE else 1  # With 1 bit IEEE has no normal numbers.
        for name, low, high in (("exponent_bits", smallest, EXPONENT_BITS[-1]), ("significand_bits", 0, 52)):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
                raise FormatError(f"{name} of a float format must be an integer from {low} to {high}, got {value!r}")
        if self.exponent_bits + self.significand_bits < 2:
            raise FormatError("a float format needs at least two bits besides the sign")
        if self.flush is not None:
            if self.significand_bits == 0:
                raise FormatError("a format without significand bits has no subnormal numbers to flush")
            object.__setattr__(self, "flush", Flush(self.flush))
            object.__setattr__(self, "subnormals", False)
        if not self.signed and self.specials not in (Specials.FNUZ, Specials.P3109):
            raise FormatError(f"only fnuz and p3109 floats can be unsigned, not {str(self.specials)!r} ones")
        # A bias or policy that equals the default is stored as None, so that equal formats have equal fields.
        if self.bias == self._default_bias:
            object.__setattr__(self, "bias", None)
        self._check_range()
        if self.overflow is not None:
            object.__setattr__(self, "overflow", self._checked(Overflow.parse(self.overflow)))
            if self.overflow is self._default_overflow:
                object.__setattr__(self, "overflow", None)

    def _check_range(self) -> None:
        if not isinstance(self.exponent_bias, int) or self.emin < -1022 or self.emax > LARGEST_EXPONENT[torch.float64]:
            raise FormatError(
                f"the numbers of a float format must be normal numbers of float64, exponents -1022 to 1023; with bias"
                f" {self.exponent_bias!r} they are {self.emin} to {self.emax}"
            )

    def _checked(self, policy: Overflow) -> Overflow:
        possible = {
            Overflow.INFINITY: self.has_infinity,
            Overflow.NAN: self.has_nan,
            Overflow.SATURATE: True,
            Overflow.PROPAGATE: self.has_infinity,
            Overflow.WRAP: False,
        }
        if not possible[policy]:
            allowed = ", ".join(str(policy) for policy, there in possible.items() if there)
            raise FormatError(f"{self} cannot overflow to {str(policy)!r}: allowed are {allowed}")
        return policy

    def __str__(self) -> str:
        text = f"e{self.exponent_bits}m{self.significand_bits}"
        bias = "" if self.bias is None else f"b{self.bias}"
        p3109 = f"binary{self.bits}p{self.significand_bits + 1}"  # K bits, precision P.
        match self.specials:
            case Specials.IEEE:
                text += bias
            case Specials.P3109 | Specials.FNUZ if not self.signed and not bias:
                text = p3109 + ("ue" if self.specials is Specials.P3109 else "uf")
            case Specials.P3109:
                text = text + bias + "_p3109" if bias else p3109
            case Specials.FINITE:
                text += bias + "_finite"
            case _:
                text += bias + self.specials
        text += "_unsigned" if bias and not self.signed else ""
        text += f"_{self.flush}" if self.flush else "" if self.subnormals else "_nosub"
        text += "" if self.overflow is None else f"_{self.overflow}"
        # fp32 and fp64 keep their everyday names: they are the carriers, and running in them is no simulation.
        return {"e8m23": "fp32", "e11m52": "fp64"}.get(text, text)

    @property
    def _default_bias(self) -> int:
        return (1 << (self.exponent_bits - 1)) - (self.specials not in (Specials.FNUZ, Specials.P3109))

    @property
    def _default_overflow(self) -> Overflow:
        if self.has_infinity:
            return Overflow.INFINITY
        return Overflow.NAN if self.has_nan else Overflow.SATURATE

    @property
    def overflow_policy(self) -> Overflow:
        """The policy for values that round beyond the largest number."""
        return self._default_overflow if self.overflow is None else self.overflow

    @property
    def exponent_bias(self) -> int:
        """The exponent field of the number 1, in bounds or not."""
        return self._default_bias if self.bias is None else self.bias

    @property
    def has_infinity(self) -> bool:
        """Whether there are infinities."""
        return self.specials in (Specials.IEEE, Specials.P3109)

    @property
    def has_nan(self) -> bool:
        """Whether there is a code for NaN: an IEEE format without significand bits lacks one."""
        return self.specials is not Specials.FINITE and (
            self.specials is not Specials.IEEE or self.significand_bits > 0
        )

    @property
    def has_negative_zero(self) -> bool:
        """Whether zero has a sign."""
        return self.specials not in (Specials.FNUZ, Specials.P3109)

    @property
    def bits(self) -> int:
        """Storage size of one number, in bits: sign, exponent and significand."""
        return self.signed + self.exponent_bits + self.significand_bits

    @property
    def largest_code(self) -> int:
        """The code of the largest finite number."""
        if self.specials is Specials.IEEE:
            return (((1 << self.exponent_bits) - 1) << self.significand_bits) - 1  # Below the top exponent.
        codes = 1 << (self.exponent_bits + self.significand_bits)
        # NaN or infinity has all ones. Without a sign there is no code of -0, so that NaN takes one more.
        above = self.specials in (Specials.FN, Specials.P3109), not self.signed
        return codes - 1 - sum(above)

    @property
    def emax(self) -> int:
        """Exponent of the largest finite number."""
        return (self.largest_code >> self.significand_bits) - self.exponent_bias

    @property
    def emin(self) -> int:
        """Exponent of the smallest normal number, 1 - bias."""
        return 1 - self.exponent_bias

    @cached_property
    def max(self) -> float:
        """The largest finite number: (2 - 2^-m) 2^emax, unless special values take its place."""
        m = self.significand_bits
        return ldexp((1 << m) + (self.largest_code & ((1 << m) - 1)), self.emax - m)

    @property
    def min(self) -> float:
        """The smallest finite number: -max, or 0 without a sign."""
        return -self.max if self.signed else 0.0

    @property
    def smallest_normal(self) -> float:
        """2^emin."""
        return 2.0**self.emin

    @property
    def smallest(self) -> float:
        """The smallest number above zero: 2^(emin - m), or ``smallest_normal`` without subnormals."""
        return ldexp(1.0, self.emin - self.significand_bits) if self.subnormals else self.smallest_normal

    smallest_subnormal = smallest

    @property
    def eps(self) -> float:
        """2^-m, the distance of neighbours relative to the power of two below them, for normal numbers.

        It is the distance from 1 to the next larger number, where 1 is a normal number.
        """
        return 2.0**-self.significand_bits

    def fits_in(self, dtype: torch.dtype) -> bool:
        """Whether every number of the format is a number of ``dtype`` (torch.float32 or torch.float64).

        Its normal numbers must also be normal there, and 2^s quanta of the subnormal ones must be in range, s the
        stored significand bits of ``dtype``; only an odd bias violates the second rule.
        """
        return dtype in self._holders

    @cached_property
    def _holders(self) -> list[torch.dtype]:
        return [
            dtype
            for dtype, largest in LARGEST_EXPONENT.items()
            if self.significand_bits <= STORED_BITS[dtype]
            and 1 - largest <= self.emin  # Also normal in the carrier.
            and self.emax <= largest
            and self.lowest_exponent + STORED_BITS[dtype] <= largest  # The magic number of rounding is finite.
        ]

    @property
    def lowest_exponent(self) -> int:
        """The exponent of the rounding quantum of numbers below the smallest normal one; see ``magic``."""
        if self.flush:
            return self.emin + 2  # four times the smallest normal number: less than half a quantum, which becomes 0
        return self.emin - self.significand_bits if self.subnormals else self.emin
