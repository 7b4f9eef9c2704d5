"""Fixed point: equally spaced numbers, an integer times 2^-fraction_bits."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from roundoff.locks import cached_property

from .. import gpu
from ..arithmetic.codes import code_dtype, integer_codes
from ..base.errors import FormatError
from ..base.family import Family, check_encodable, check_integer, overflow_policy
from ..base.modes import Overflow, Rounding, RoundingOptions
from ..base.names import Beginning, overflow_suffix, register
from ..base.on_device import where
from ..cpu.addressed import Addressed
from ..cpu.numbers.grids import addressed_grid, round_channels, round_wrapping

WIDTHS = range(53)
_MOST_BITS = 52  # Integer and fraction bits together: every number and every step is exact in float64.

# Products of two numbers have twice the bits and must be exact in the carrier, so that they are rounded once.
_LARGEST_IN_FLOAT32 = 12


@dataclass(frozen=True)
class FixedFormat(Family):
    """Fixed-point numbers: k 2^-f with an integer k of i + f bits, and a sign bit in two's complement if ``signed``.

    ``q3.4`` has 1 sign, 3 integer and 4 fraction bits: 8 bits in all, from -8 to 7.9375 in steps of 1/16; ``uq4.4``
    has 4 integer and 4 fraction bits and no sign: 0 to 15.9375. (ARM's way to count: the sign bit is not among the
    integer bits.)

    NaN, infinities and negative zero do not exist. Rounding turns -0 and negative numbers that vanish into +0;
    infinity saturates. What the hardware cannot hold stays visible in the simulation: NaN stays NaN, and an infinity
    that should wrap becomes NaN. :meth:`encode` refuses both.

    Args:
        integer_bits: i, 0 to 52.
        fraction_bits: f, 0 to 52; i + f from 1 to 52.
        signed: whether there is a sign bit.
        overflow: ``Overflow.SATURATE`` (to the nearest end), or ``Overflow.WRAP``: k modulo 2^bits.

    Raises:
        FormatError: a width is out of range, or the overflow is neither.
    """

    integer_bits: int
    fraction_bits: int
    signed: bool = True
    overflow: Overflow = Overflow.SATURATE

    elementwise = True

    def __post_init__(self) -> None:
        for name in ("integer_bits", "fraction_bits"):
            check_integer("a fixed-point format", name, getattr(self, name), WIDTHS)
        if not 1 <= self._magnitude_bits <= _MOST_BITS:
            raise FormatError(
                "a fixed-point format must have 1 to 52 integer and fraction bits together,"
                f" got {self.integer_bits} + {self.fraction_bits}"
            )
        if self.overflow not in (Overflow.SATURATE, Overflow.WRAP):
            raise FormatError(f"overflow of a fixed-point format must be saturate or wrap, got {str(self.overflow)!r}")

    def __str__(self) -> str:
        wrap = "_wrap" if self.overflow == Overflow.WRAP else ""
        return f"{'' if self.signed else 'u'}q{self.integer_bits}.{self.fraction_bits}{wrap}"

    @property
    def _magnitude_bits(self) -> int:
        return self.integer_bits + self.fraction_bits

    @property
    def bits(self) -> int:
        """Storage size of one number, in bits: sign, integer and fraction."""
        return self.signed + self._magnitude_bits

    @property
    def max(self) -> float:
        """The largest number, 2^i - 2^-f."""
        return ((1 << self._magnitude_bits) - 1) * self.eps

    @property
    def min(self) -> float:
        """The smallest number: -2^i, or 0 without a sign."""
        return -(2.0**self.integer_bits) if self.signed else 0.0

    @property
    def smallest(self) -> float:
        """2^-f, the smallest number above zero."""
        return self.eps

    @property
    def eps(self) -> float:
        """2^-f, the distance between neighbours, everywhere."""
        return 2.0**-self.fraction_bits

    @property
    def carrier(self) -> torch.dtype:
        """float32 for at most 12 integer and fraction bits, else float64.

        Sums and products of numbers of the format are then exact before they are rounded (up to 26 bits in float64;
        in a simulation, formats of up to 51 bits are also rounded only once).
        """
        return torch.float32 if self._magnitude_bits <= _LARGEST_IN_FLOAT32 else torch.float64

    def fits_in(self, dtype: torch.dtype) -> bool:
        """Whether every number is a number of ``dtype``: up to 24 integer and fraction bits in float32."""
        return dtype == torch.float64 or self._magnitude_bits <= 24  # The precision of float32.

    def _values(self) -> torch.Tensor:
        low, high = self._codes
        return torch.arange(low, high + 1, dtype=torch.float64) * self.eps

    @property
    def _codes(self) -> tuple[int, int]:
        """The smallest and the largest integer k."""
        return -(1 << self._magnitude_bits) if self.signed else 0, (1 << self._magnitude_bits) - 1

    @cached_property
    def _scales(self) -> dict[torch.dtype, tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
        # Reciprocal of the scale, scale, and zero point.
        numbers = torch.tensor([2.0**self.fraction_bits, self.eps, 0.0], dtype=torch.float64, device="cpu")
        return {
            dtype: (numbers[0:1].to(dtype), numbers[1:2].to(dtype), numbers[2:3].to(dtype))
            for dtype in (torch.float32, torch.float64)
        }

    def _round_memory(self, source: torch.Tensor, target: torch.Tensor, options: RoundingOptions) -> None:
        if options.policy == Overflow.WRAP:
            round_wrapping(source, target, self.eps, self._codes, options)
        else:  # One channel: the whole tensor.
            round_channels(source, target, (1, 1), self._scales[source.dtype], self._codes, options)

    def addressed(self, dtype: torch.dtype, rounding: Rounding, *, strided: bool = False) -> Addressed | None:  # noqa: ARG002
        """See :meth:`.Family.addressed`."""
        if not self.fits_in(dtype):
            return None
        return addressed_grid(dtype, self.eps, self._codes, rounding, wraps=self.overflow == Overflow.WRAP)

    def _round_on_device(self, source: torch.Tensor, target: torch.Tensor, options: RoundingOptions) -> None:
        if options.policy == Overflow.WRAP:
            gpu.to_wrapping_grid(source, target, self.eps, self._codes, options)
        else:
            gpu.to_grid(source, target, self.eps, 0.0, self._codes, options)

    def _policy(self, overflow: Overflow | None) -> Overflow:
        other = Overflow.WRAP if self.overflow == Overflow.SATURATE else Overflow.SATURATE
        return overflow_policy(self, overflow, (self.overflow, other))

    def _encoded(self, x: torch.Tensor, options: RoundingOptions) -> torch.Tensor:
        """K in two's complement as unsigned integers: uint8, uint16 or uint32, the smallest that do, or int64."""
        # Infinity saturates. A wrapping format refuses it like NaN: infinity times 0 is NaN.
        check_encodable(self, x if options.policy == Overflow.SATURATE else x * 0)
        codes = (self._rounded_to_encode(x, options).to(torch.float64) * 2.0**self.fraction_bits).to(torch.int64)
        return (codes & ((1 << self.bits) - 1)).to(code_dtype(self.bits))  # Two's complement.

    def _decoded(self, codes: torch.Tensor, dtype: torch.dtype | None) -> torch.Tensor:
        k = integer_codes(self, codes, self.bits, signed=self.signed)
        k = where(k > self._codes[1], k - (1 << self.bits), k)  # Codes of negative numbers.
        return (k.to(torch.float64) * self.eps).to(dtype or self.carrier)


register(
    FixedFormat,
    beginnings=[
        Beginning(
            "qI.F",
            r"(u)?q(\d{1,3})\.(\d{1,3})",
            lambda match: {"signed": not match[1], "integer_bits": int(match[2]), "fraction_bits": int(match[3])},
        )
    ],
    suffixes=[overflow_suffix("saturate", "wrap")],
    called="fixed",
    shown=["q3.4"],
    verified=["q3.4"],
    drawn={"integer_bits": range(9), "fraction_bits": range(1, 9), "signed": (False, True)},
)
