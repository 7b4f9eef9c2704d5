"""The floats of the library qtorch 0.3.0, reproduced bit for bit, so that results published with it can be repeated."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from roundoff.locks import cached_property

from .. import gpu
from ..base.errors import FormatError
from ..base.family import Family, check_integer
from ..base.modes import Overflow, Rounding, RoundingOptions
from ..base.names import Beginning, register
from ..cpu.addressed import Addressed
from ..cpu.float_choice import FloatLoop
from ..cpu.numbers.qtorch import legacy

EXPONENT_BITS = range(2, 9)
SIGNIFICAND_BITS = range(23)
_WORD = 0xFFFFFFFF


@dataclass(frozen=True)
class QtorchFormat(Family):
    """The format of ``qtorch.quant.float_quantize(x, exp, man, rounding="nearest")``; its text is ``qtorch_e5m10``.

    It is not IEEE 754: ties go away from zero; the top exponent holds numbers, so that the largest is
    (2 - 2^-m) 2^(2^(e-1)); larger values saturate there, also infinity and NaN (with 8 exponent bits these stay);
    below 2^emin numbers are rounded twice, first by float32 addition of 2^emin (ties to even), then ties away; and
    vanishing values, also -0, become +0. A NaN with its payload's upper bits all set becomes -0: the addition of half a
    unit overflows the word.

    Args:
        exponent_bits: e, 2 to 8.
        significand_bits: stored significand bits m, 0 to 22.

    Raises:
        FormatError: a width is out of range.
    """

    exponent_bits: int
    significand_bits: int

    elementwise = True
    carrier = torch.float32  # the only type that qtorch rounds

    def __post_init__(self) -> None:
        for name, allowed in (("exponent_bits", EXPONENT_BITS), ("significand_bits", SIGNIFICAND_BITS)):
            check_integer("a qtorch float", name, getattr(self, name), allowed)

    def __str__(self) -> str:
        return f"qtorch_e{self.exponent_bits}m{self.significand_bits}"

    @property
    def bits(self) -> int:
        """Sign, exponent and significand."""
        return 1 + self.exponent_bits + self.significand_bits

    @property
    def emin(self) -> int:
        """Exponent of the smallest normal number."""
        return 2 - (1 << (self.exponent_bits - 1))

    @property
    def emax(self) -> int:
        """Exponent of the largest finite number; with 8 exponent bits float32 ends before."""
        return min(1 << (self.exponent_bits - 1), 127)

    @property
    def max(self) -> float:
        """The largest finite number, (2 - 2^-m) 2^emax."""
        return (2.0 - 2.0**-self.significand_bits) * 2.0**self.emax

    @property
    def smallest_normal(self) -> float:
        """2^emin."""
        return 2.0**self.emin

    @property
    def smallest(self) -> float:
        """2^(emin - m)."""
        return 2.0 ** (self.emin - self.significand_bits)

    @property
    def eps(self) -> float:
        """2^-m, the distance from 1 to the next larger number."""
        return 2.0**-self.significand_bits

    def fits_in(self, dtype: torch.dtype) -> bool:
        """Whether ``dtype`` is float32."""
        return dtype == torch.float32

    def addressed(self, dtype: torch.dtype, rounding: Rounding, *, strided: bool = False) -> Addressed | None:  # noqa: ARG002
        """See :meth:`.Family.addressed`."""
        return self._loop.addressed if dtype == torch.float32 and rounding is Rounding.NEAREST_EVEN else None

    @cached_property
    def _loop(self) -> FloatLoop:
        return FloatLoop(np.array(self._words, np.uint32), torch.float32, legacy)

    @property
    def _words(self) -> list[int]:
        """The parameters of the loop."""
        cut_bits = 23 - self.significand_bits  # Bits of float32's significand.
        keep, last = _WORD & -(1 << cut_bits), (1 << (self.exponent_bits - 1)) + 127
        first = 127 + self.emin
        return [1 << (cut_bits - 1), keep, first, first << 23, last, (last << 23) | (keep & 0x7FFFFF)]

    def _policy(self, overflow: Overflow | None) -> Overflow:
        if overflow is not None:
            raise FormatError(f"{self} has one way to round, qtorch's: leave out overflow")
        return Overflow.SATURATE

    def _check_mode(self, rounding: Rounding) -> None:
        if rounding is not Rounding.NEAREST_EVEN:
            raise FormatError(f"{self} has one way to round, qtorch's: leave out rounding and random")

    def _round_memory(self, source: torch.Tensor, target: torch.Tensor, options: RoundingOptions) -> None:
        self._check_mode(options.rounding)
        self._loop(source, target)

    def _round_on_device(self, source: torch.Tensor, target: torch.Tensor, options: RoundingOptions) -> None:
        self._check_mode(options.rounding)
        gpu.as_qtorch(source, target, self._words, options)


register(
    QtorchFormat,
    beginnings=[
        Beginning(
            "qtorch_eXmY",
            r"qtorch_e(\d{1,3})m(\d{1,3})",
            lambda match: {"exponent_bits": int(match[1]), "significand_bits": int(match[2])},
        )
    ],
    called="qtorch",
)
