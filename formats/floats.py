"""Binary floating-point formats with any exponent and significand width, rounded as IEEE 754 says."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch

from roundoff.formats import cpu_kernels, tensor_kernels
from roundoff.formats.errors import FormatError
from roundoff.formats.format import Format
from roundoff.formats.parameters import FloatParameters

EXPONENT_BITS = range(2, 12)
SIGNIFICAND_BITS = range(53)

# Stored significand bits up to which float32 arithmetic followed by one rounding equals the exactly rounded result of
# +, -, *, / and sqrt: double rounding is harmless if the wider significand has at least 2p + 2 bits, p = m + 1
# (Figueroa, "When is double rounding innocuous?", 1995): 2 * 11 + 2 <= 24.
_LARGEST_M_IN_FLOAT32 = 10

# Tensors of other types (fake, functional) have no memory that a CPU kernel could be given the address of.
_PLAIN = (torch.Tensor, torch.nn.Parameter)


@dataclass(frozen=True)
class FloatFormat(Format):
    """An IEEE-754-like binary float: sign, ``exponent_bits``, ``significand_bits`` stored bits and an implicit one.

    The exponent bias is 2^(exponent_bits - 1) - 1, the top exponent is reserved for infinity and NaN, underflow is
    gradual (subnormal numbers), and zero is signed.

    Args:
        exponent_bits: 2 to 11.
        significand_bits: stored significand bits m, 0 to 52; the precision is m + 1. fp16 is ``FloatFormat(5, 10)``.

    Raises:
        FormatError: a width is out of range.
    """

    exponent_bits: int
    significand_bits: int

    def __post_init__(self) -> None:
        for name, allowed in (("exponent_bits", EXPONENT_BITS), ("significand_bits", SIGNIFICAND_BITS)):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value not in allowed:
                raise FormatError(
                    f"{name} of a float format must be an integer from {allowed[0]} to {allowed[-1]}, got {value!r}"
                )

    def __str__(self) -> str:
        # fp32 and fp64 keep their everyday names: they are the carriers, and running in them is no simulation.
        native = {(8, 23): "fp32", (11, 52): "fp64"}
        widths = (self.exponent_bits, self.significand_bits)
        return native.get(widths, f"e{self.exponent_bits}m{self.significand_bits}")

    @property
    def bits(self) -> int:
        """Storage size of one number, in bits: sign, exponent and significand."""
        return 1 + self.exponent_bits + self.significand_bits

    @property
    def emax(self) -> int:
        """Exponent of the largest finite number; also the bias."""
        return (1 << (self.exponent_bits - 1)) - 1

    @property
    def emin(self) -> int:
        """Exponent of the smallest normal number."""
        return 1 - self.emax

    @property
    def max(self) -> float:
        """The largest finite number, (2 - 2^-m) 2^emax."""
        return (2.0 - 2.0**-self.significand_bits) * 2.0**self.emax

    @property
    def smallest_normal(self) -> float:
        """2^emin."""
        return 2.0**self.emin

    @property
    def smallest_subnormal(self) -> float:
        """2^(emin - m), the smallest number above zero; equal to ``smallest_normal`` if m = 0."""
        return 2.0 ** (self.emin - self.significand_bits)

    @property
    def eps(self) -> float:
        """2^-m, the distance from 1 to the next larger number."""
        return 2.0**-self.significand_bits

    @cached_property
    def carrier(self) -> torch.dtype:
        """float32 for fp32 and for m <= 10 with at most 8 exponent bits, else float64.

        In float32, +, -, *, / and sqrt of numbers of the format, rounded again, equal the exactly rounded results for
        m <= 10; wider formats would be rounded twice, sometimes wrongly (at m = 12 0.016 % of products), hence
        float64, which serves the same purpose for m <= 24. With 8 exponent bits and m = 8, 9, 10 a float32 result
        below 2^-126 (subnormal in both) can still be rounded twice: compute in float64 if that matters.
        """
        if self == FP32 or (self.significand_bits <= _LARGEST_M_IN_FLOAT32 and self.fits_in(torch.float32)):
            return torch.float32
        return torch.float64

    @property
    def native(self) -> bool:
        """Whether this is fp32 or fp64."""
        return self in (FP32, FP64)

    def fits_in(self, dtype: torch.dtype) -> bool:
        """Whether every number of the format is a number of ``dtype`` (torch.float32 or torch.float64)."""
        wide = FP32 if dtype == torch.float32 else FP64
        return self.exponent_bits <= wide.exponent_bits and self.significand_bits <= wide.significand_bits

    @cached_property
    def _parameters(self) -> dict[torch.dtype, FloatParameters]:
        return {
            dtype: FloatParameters.of(dtype, self.emin, self.emax, self.significand_bits)
            for dtype in (torch.float32, torch.float64)
            if self.fits_in(dtype)
        }

    def round_into(self, source: torch.Tensor, target: torch.Tensor) -> None:
        """Rounds to nearest-even; see :func:`roundoff.formats.round`."""
        parameters = self._parameters[source.dtype]
        if source.device.type == "cpu" and type(source) in _PLAIN:
            cpu_kernels.round_float(source, target, parameters)
        else:
            target.copy_(tensor_kernels.round_float(source, parameters))


FP32 = FloatFormat(8, 23)
FP64 = FloatFormat(11, 52)
