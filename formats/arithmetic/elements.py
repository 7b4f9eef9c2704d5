"""The elements of a block format, and the rules that choose their shared scale."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from functools import cache

import torch

from ..base.memory import unsimulated
from .patterns import power_of_two


class ScaleRule(StrEnum):
    """The rule that computes the shared exponent from a block's largest magnitude, A, and the largest element, M.

    Every rule clamps it to -127 .. 127, the range of the E8M0 scale; a block of zeros has -127.
    """

    FLOOR = "floor"
    """floor(log2 A) - floor(log2 M), as in OCP MX v1.0, section 6.3; elements may saturate."""
    CEIL = "ceil"
    """ceil(log2 A) - floor(log2 M)."""
    EVEN = "even"
    """floor(log2 of A rounded to the element's significand) - floor(log2 M): as floor, unless A rounds up to 2^n."""
    RCEIL = "rceil"
    """ceil(log2(A / M)): the smallest scale at which no element saturates."""


@dataclass(frozen=True)
class Element:
    """The element format of a block-scaled format: floats, or integers (one binade and subnormals: emin = 0)."""

    bits: int
    """Storage size, sign included."""
    emin: int
    """Exponent of the smallest normal element."""
    significand_bits: int
    """Stored significand bits m."""
    max: float
    """The largest element; beyond it, elements saturate."""
    integer: bool = False
    """Whether codes are two's complement integers, which have no negative zero, rather than sign and magnitude."""
    specials: tuple[float, ...] = ()
    """The meaning of the codes above the code of ``max``: infinity and NaN."""
    text: str = ""
    """The float format that they are, if torch has a type for it; see :mod:`.codes`."""

    @property
    def emax(self) -> int:
        """floor(log2 of the largest element)."""
        return math.frexp(self.max)[1] - 1

    @property
    def signed_zero(self) -> bool:
        """Whether there is a negative zero."""
        return not self.integer

    @property
    def table(self) -> torch.Tensor:
        """The element of each code, 2^bits float64 numbers, on the CPU."""
        return _element_table(self)


@cache  # not a cached_property, whose lock torch.compile cannot trace
@unsimulated
def _element_table(element: Element) -> torch.Tensor:
    half = torch.arange(1 << (element.bits - 1), device="cpu")  # The codes without the sign bit.
    if element.integer:
        return torch.cat([half, half - len(half)]).to(torch.float64) * 2.0**-element.significand_bits
    field = half >> element.significand_bits
    fraction = half & ((1 << element.significand_bits) - 1)
    significand = torch.where(field > 0, fraction + (1 << element.significand_bits), fraction)
    exponent = field.clamp(min=1) - 1 + element.emin - element.significand_bits  # Fields 0 and 1 share an exponent.
    numbers = significand.to(torch.float64) * power_of_two(exponent)
    if element.specials:
        numbers[-len(element.specials) :] = torch.tensor(element.specials, dtype=torch.float64)
    return torch.cat([numbers, -numbers])
