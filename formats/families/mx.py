"""The microscaling formats of OCP MX v1.0: blocks of 32 small floats or integers with a shared 8-bit exponent."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..arithmetic.elements import Element, ScaleRule
from ..base.errors import FormatError
from ..base.names import AXIS_SUFFIX, Beginning, register
from ..scales.shared_scale import BLOCK_SUFFIX, RULE_SUFFIX, SharedScaleFormat

BLOCK = 32
"""The block length of the standard."""

# OCP MX v1.0, section 5.3 (elements), after OCP OFP8 v1.0 for FP8. E4M3 has one NaN and no infinity; E5M2 is IEEE-like;
# FP6 and FP4 have numbers only; INT8 has an implied scale of 2^-6 and leaves -2 unused, so that it is symmetric.
ELEMENTS: dict[str, Element] = {
    "mxfp8_e4m3": Element(8, emin=-6, significand_bits=3, max=448.0, specials=(math.nan,), text="e4m3fn"),
    "mxfp8_e5m2": Element(
        8, emin=-14, significand_bits=2, max=57344.0, specials=(math.inf, math.nan, math.nan, math.nan), text="e5m2"
    ),
    "mxfp6_e2m3": Element(6, emin=0, significand_bits=3, max=7.5),
    "mxfp6_e3m2": Element(6, emin=-2, significand_bits=2, max=28.0),
    "mxfp4_e2m1": Element(4, emin=0, significand_bits=1, max=6.0, text="e2m1_finite"),
    "mxint8": Element(8, emin=0, significand_bits=6, max=127 / 64, integer=True),
}


@dataclass(frozen=True)
class MXFormat(SharedScaleFormat):
    """A microscaling format of OCP MX v1.0; how it rounds is described in :class:`SharedScaleFormat`.

    Args:
        name: ``mxfp8_e4m3``, ``mxfp8_e5m2``, ``mxfp6_e2m3``, ``mxfp6_e3m2``, ``mxfp4_e2m1`` or ``mxint8``.
        block: the number of elements that share a scale; 32 in the standard.
        axis: the axis of the blocks.
        scale_rule: the rule for the scale; floor in the standard.

    Raises:
        FormatError: the element type does not exist, or a number is out of range.
    """

    name: str
    block: int = BLOCK
    axis: int = -1
    scale_rule: ScaleRule = ScaleRule.FLOOR

    def __post_init__(self) -> None:
        if self.name not in ELEMENTS:
            raise FormatError(f"an MX format is one of {', '.join(ELEMENTS)}, got {self.name!r}")
        self._check()

    def __str__(self) -> str:
        return self.name + self._suffixes(BLOCK)

    @property
    def element(self) -> Element:
        """The element type, after OCP MX v1.0, section 5.3."""
        return ELEMENTS[self.name]


register(
    MXFormat,
    beginnings=[Beginning(", ".join(ELEMENTS), f"({'|'.join(ELEMENTS)})", lambda match: {"name": match[1]})],
    suffixes=[BLOCK_SUFFIX, AXIS_SUFFIX, RULE_SUFFIX],
    aliases={"mxfp4": MXFormat("mxfp4_e2m1"), **{name: MXFormat(name) for name in ELEMENTS}},
    called="mx",
    shown=["mxfp8_e4m3", "mxfp4_e2m1"],
    verified=["mxfp8_e4m3", "mxfp6_e2m3", "mxfp4_e2m1", "mxint8"],
    drawn={"name": sorted(ELEMENTS), "block": (16, 32, 2, 1)},
)
