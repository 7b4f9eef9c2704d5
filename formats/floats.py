"""Binary floating-point formats with any exponent and significand width, bias, special values and overflow policy."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property
from math import ldexp

import torch

from roundoff.formats import cpu_kernels, float_codes, tensor_kernels
from roundoff.formats.codes import integer_codes
from roundoff.formats.errors import FormatError
from roundoff.formats.family import Family, check_random
from roundoff.formats.format import check_roundable
from roundoff.formats.memory import apart
from roundoff.formats.modes import Overflow, RandomBits, Rounding, check_choices
from roundoff.formats.parameters import LARGEST_EXPONENT, STORED_BITS, FloatParameters, lowest_exponent

EXPONENT_BITS = range(2, 12)
SIGNIFICAND_BITS = range(53)

# Stored significand bits up to which float32 arithmetic followed by one rounding equals the exactly rounded result of
# +, -, *, / and sqrt, to the nearest: double rounding is harmless if the wider significand has at least 2p + 2 bits,
# p = m + 1 (Figueroa, "When is double rounding innocuous?", 1995): 2 * 11 + 2 <= 24.
_LARGEST_M_IN_FLOAT32 = 10


class Flush(StrEnum):
    """When numbers below the smallest normal one become zero, of their sign, in every rounding mode."""

    FTZ = "ftz"
    """Flush to zero: when they are results. A number is rounded to the format's precision as if exponents had no lower
    end; what then lies below the smallest normal number becomes zero. (x86's MXCSR.FTZ: Intel SDM, volume 1, 10.2.3.3
    and 4.9.1.5, where tininess is judged after rounding)"""
    DAZ = "daz"
    """Denormals are zero: when they come in. What lies below the smallest normal number before it is rounded becomes
    zero. (x86's MXCSR.DAZ, 10.2.3.4; Arm's FPCR.FZ, which treats results so, too)"""


class Specials(StrEnum):
    """Which codes of a float format are no numbers; the rest are numbers, in order of magnitude."""

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
class FloatFormat(Family):
    """A binary float: sign, ``exponent_bits``, and ``significand_bits`` stored bits beside an implicit one.

    A code with exponent field E > 0 and significand field F is (1 + F 2^-m) 2^(E - bias); with E = 0 it is the
    subnormal F 2^(1 - bias - m). The defaults are those of IEEE 754.

    Args:
        exponent_bits: 2 to 11; 1 also, unless the specials are ``IEEE``.
        significand_bits: stored significand bits m, 0 to 52; the precision is m + 1. fp16 is ``FloatFormat(5, 10)``.
        specials: which codes are infinity and NaN.
        bias: of the exponent; None for the default, 2^(exponent_bits - 1) - 1, one more for ``FNUZ`` and ``P3109``.
        subnormals: False: the codes with E = 0 are all zero, and what lies between 0 and the smallest normal
            number is rounded to the one or the other, whichever the mode says.
        overflow: None for infinity where there is one, else NaN where there is one, else saturation.
        flush: how a format without subnormals makes zeros of small numbers, if it does not round them; at least one
            significand bit. A simulation rounds results: with ``DAZ`` those that the next operation would read as zero
            are zero already.
        signed: False, for ``FNUZ`` and ``P3109`` only: no sign bit. Negative numbers and -infinity become 0.

    Raises:
        FormatError: a width is out of range, the numbers do not fit in float64, the format has no infinity or no
            NaN to overflow to, or two arguments exclude each other.
    """

    exponent_bits: int
    significand_bits: int
    specials: Specials = Specials.IEEE
    bias: int | None = None
    subnormals: bool = True
    overflow: Overflow | None = None
    flush: Flush | None = None
    signed: bool = True

    def __post_init__(self) -> None:
        smallest = EXPONENT_BITS[0] if self.specials is Specials.IEEE else 1
        for name, low, high in (("exponent_bits", smallest, EXPONENT_BITS[-1]), ("significand_bits", 0, 52)):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
                raise FormatError(f"{name} of a float format must be an integer from {low} to {high}, got {value!r}")
        if self.exponent_bits + self.significand_bits < 2:
            raise FormatError("a float format needs at least two bits beside the sign")
        self._check_variants()
        # What equals the default is stored as None, so that one format has one form.
        if self.bias == self._default_bias:
            object.__setattr__(self, "bias", None)
        self._check_range()
        if self.overflow is not None:
            object.__setattr__(self, "overflow", self._checked(Overflow.parse(self.overflow)))
            if self.overflow is self._default_overflow:
                object.__setattr__(self, "overflow", None)

    def _check_variants(self) -> None:
        if self.flush is not None:
            if self.significand_bits == 0:
                raise FormatError("a format without significand bits has no subnormal numbers to flush")
            object.__setattr__(self, "flush", Flush(self.flush))
            object.__setattr__(self, "subnormals", False)
        if not self.signed and self.specials not in (Specials.FNUZ, Specials.P3109):
            raise FormatError(f"only fnuz and p3109 floats can do without a sign, not {str(self.specials)!r} ones")

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
        p3109 = f"binary{self.bits}p{self.significand_bits + 1}"
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
        """What stands for a number that rounds beyond the largest one."""
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
        """Whether there is a code for NaN: an IEEE format without significand bits has none."""
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
            return (((1 << self.exponent_bits) - 1) << self.significand_bits) - 1
        codes = 1 << (self.exponent_bits + self.significand_bits)
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

    @property
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
    def smallest_subnormal(self) -> float:
        """The smallest number above zero: 2^(emin - m), or ``smallest_normal`` without subnormals."""
        return ldexp(1.0, self.emin - self.significand_bits) if self.subnormals else self.smallest_normal

    @property
    def eps(self) -> float:
        """2^-m, the distance of neighbours relative to the power of two below them, for normal numbers.

        It is the distance from 1 to the next larger number, where 1 is a normal number.
        """
        return 2.0**-self.significand_bits

    @cached_property
    def carrier(self) -> torch.dtype:
        """float32 for fp32, and for m <= 10 if float32 can hold the format; else float64.

        In float32, +, -, *, / and sqrt of numbers of the format, each correctly rounded and then rounded to the format,
        in a nearest mode both times, equal the exactly rounded results for m <= 10; wider formats would be rounded
        twice, sometimes wrongly (at m = 12 0.016 % of products), hence float64, which serves the same purpose for
        m <= 24. With 8 exponent bits and m = 8, 9, 10 a product below 2^-126 (subnormal in both) can still be rounded
        twice. So can any result in the other modes, directed, to-odd and stochastic. In these cases a simulation
        computes exact results and rounds them once; PyTorch's own kernels do not.
        """
        if self == FP32 or (self.significand_bits <= _LARGEST_M_IN_FLOAT32 and self.fits_in(torch.float32)):
            return torch.float32
        return torch.float64

    @property
    def elementwise(self) -> bool:
        """Yes."""
        return True

    @property
    def native(self) -> bool:
        """Whether this is fp32 or fp64."""
        return self in (FP32, FP64)

    def fits_in(self, dtype: torch.dtype) -> bool:
        """Whether every number of the format is a number of ``dtype`` (torch.float32 or torch.float64).

        Its normal numbers must be normal there, too, and 2^s quanta of the subnormal ones must be in range, s the
        stored significand bits of ``dtype``; only an odd bias violates the second rule.
        """
        return dtype in self._holders

    @cached_property
    def _holders(self) -> list[torch.dtype]:
        return [
            dtype
            for dtype, largest in LARGEST_EXPONENT.items()
            if self.significand_bits <= STORED_BITS[dtype]
            and 1 - largest <= self.emin
            and self.emax <= largest
            and lowest_exponent(self) + STORED_BITS[dtype] <= largest
        ]

    @cached_property
    def _kernels(self) -> dict[torch.dtype, cpu_kernels.Loop]:
        return {
            dtype: cpu_kernels.nearest(self.parameters(dtype), dtype)
            for dtype in (torch.float32, torch.float64)
            if self.fits_in(dtype)
        }

    def parameters(
        self, dtype: torch.dtype, rounding: Rounding = Rounding.NEAREST_EVEN, overflow: Overflow | None = None
    ) -> FloatParameters:
        """The format, a mode and an overflow policy as the data that kernels read, for tensors of ``dtype``.

        Raises:
            FormatError: the format has no such overflow.
        """
        return _parameters(self, dtype, rounding, None if overflow is None else self._checked(overflow))

    def _policy(self, overflow: Overflow | None) -> Overflow:
        return self.overflow_policy if overflow is None else self._checked(overflow)

    def _round_plain(
        self,
        source: torch.Tensor,
        target: torch.Tensor,
        rounding: Rounding,
        overflow: Overflow | None,
        random: RandomBits | torch.Tensor | None,
    ) -> None:
        # No element depends on its place, so the loops take memory in any order, if there are no random bits.
        if not self.signed:
            source = torch.clamp(source, min=0.0, out=target).abs_()  # of -0; NaN stays
        if rounding is Rounding.NEAREST_EVEN and overflow is None:
            self._kernels[source.dtype](source, target)
            return
        parameters = self.parameters(source.dtype, rounding, overflow)
        check_random(rounding, random, source)
        cpu_kernels.round_by_mode(source, target, parameters, random)

    def _round_memory(
        self,
        source: torch.Tensor,
        target: torch.Tensor,
        policy: Overflow,
        rounding: Rounding,
        random: RandomBits | torch.Tensor | None,
    ) -> None:
        cpu_kernels.round_by_mode(source, target, self.parameters(source.dtype, rounding, policy), random)

    def _round_tensor(
        self, source: torch.Tensor, policy: Overflow, rounding: Rounding, words: torch.Tensor | None
    ) -> torch.Tensor:
        parameters = self.parameters(source.dtype, rounding, policy)
        if not self.signed:
            source = torch.where(source.signbit() & ~source.isnan(), 0.0, source)
        if rounding is Rounding.NEAREST_EVEN:
            return tensor_kernels.round_nearest(source, parameters)
        return tensor_kernels.round_by_mode(source, parameters, words)

    @apart
    def encode(
        self,
        x: torch.Tensor,
        rounding: Rounding | str = Rounding.NEAREST_EVEN,
        overflow: Overflow | str | None = None,
        random: RandomBits | torch.Tensor | None = None,
    ) -> torch.Tensor:
        """The codes of ``x`` rounded to the format, sign bit first; every NaN gets one code.

        Args:
            x: float32 or float64, any shape and device.
            rounding: as for :func:`roundoff.formats.round`.
            overflow: likewise.
            random: likewise.

        Returns:
            uint8, uint16 or uint32, the smallest that holds ``bits``; int64 above.

        Raises:
            FormatError: as for ``round``; or there is a NaN, and the format has none.
        """
        mode, policy = check_choices(rounding, overflow, random)
        check_roundable(x, self)
        return float_codes.encode(self, self.rounded(self._numbers(x), mode, policy, random))

    @apart
    def decode(self, codes: torch.Tensor, dtype: torch.dtype | None = None) -> torch.Tensor:
        """The numbers that ``codes`` stand for, exactly, in ``dtype``: float32 if that holds them, if None.

        Args:
            codes: integers, of which the lowest bits count; or a tensor of torch's own type of the same float, such as
                ``torch.float8_e4m3fn``.
            dtype: float32 or float64.

        Raises:
            FormatError: ``codes`` are no integers, or ``dtype`` cannot hold the format.
        """
        codes = integer_codes(self, codes, self.bits, str(replace(self, overflow=None, flush=None)))
        if dtype is None:
            dtype = torch.float32 if self.fits_in(torch.float32) else torch.float64
        if dtype not in STORED_BITS or not self.fits_in(dtype):
            raise FormatError(f"{self} does not fit in {dtype}; leave out dtype, or choose torch.float64")
        return float_codes.decode(self, codes, dtype)

    @apart
    def values(self) -> torch.Tensor:
        """All finite numbers of the format in ascending order, zero once, float64; for formats of at most 16 bits.

        Raises:
            FormatError: there are more than 2^16.
        """
        if self.bits > 16:
            raise FormatError(f"{self} has 2^{self.bits} codes, too many to list: the limit is 2^16")
        numbers = self.decode(torch.arange(1 << self.bits), torch.float64)
        ordered = (numbers[numbers.isfinite()] + 0.0).sort().values
        return ordered[torch.cat([torch.tensor([True]), ordered.diff() != 0])]


_known: dict[tuple[object, ...], FloatParameters] = {}


def _parameters(fmt: FloatFormat, dtype: torch.dtype, rounding: Rounding, overflow: Overflow | None) -> FloatParameters:
    """Made once for each format."""
    key = (fmt, dtype, rounding, overflow)
    if key not in _known:
        _known[key] = FloatParameters.of(fmt, dtype, rounding, overflow)
    return _known[key]


FP32 = FloatFormat(8, 23)
FP64 = FloatFormat(11, 52)
