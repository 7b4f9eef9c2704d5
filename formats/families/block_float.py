"""Classic block floating point: blocks of integers with a shared exponent."""

from __future__ import annotations

from dataclasses import dataclass

from ..arithmetic.elements import Element, ScaleRule
from ..base.family import check_integer
from ..base.names import AXIS_SUFFIX, Beginning, register
from ..scales.shared_scale import RULE_SUFFIX, SharedScaleFormat

SIGNIFICAND_BITS = range(2, 24)


@dataclass(frozen=True)
class BlockFloatFormat(SharedScaleFormat):
    """Block floating point: x = k 2^(e - b + 2), with an integer k of b bits and an exponent e that a block shares.

    ``bfp8_16`` has 8-bit integers, sign included, in blocks of 16. |k| is at most 2^(b-1) - 1, and the largest number
    of a block has |k| >= 2^(b-2): all its bits are used. ``mxint8`` is ``bfp8_32``. How it rounds is described in
    :class:`SharedScaleFormat`.

    Args:
        significand_bits: b, 2 to 23, the sign included.
        block: the number of elements that share an exponent, from 1.
        axis: the axis of the blocks.
        scale_rule: the rule for the exponent; e = floor(log2 of the largest magnitude) by default.

    Raises:
        FormatError: a number is out of range.
    """

    significand_bits: int
    block: int
    axis: int = -1
    scale_rule: ScaleRule = ScaleRule.FLOOR

    def __post_init__(self) -> None:
        check_integer("block floating point", "significand_bits", self.significand_bits, SIGNIFICAND_BITS)
        self._check()

    def __str__(self) -> str:
        return f"bfp{self.significand_bits}_{self.block}{self._suffixes(None)}"

    @property
    def element(self) -> Element:
        """Integers times 2^(2 - b): from -(2 - 2^(2 - b)) to 2 - 2^(2 - b)."""
        m = self.significand_bits - 2
        return Element(self.significand_bits, emin=0, significand_bits=m, max=2.0 - 2.0**-m, integer=True)


register(
    BlockFloatFormat,
    beginnings=[
        Beginning(
            "bfpBITS_BLOCK",
            r"bfp(\d{1,3})_(\d{1,9})",
            lambda match: {"significand_bits": int(match[1]), "block": int(match[2])},
        )
    ],
    suffixes=[AXIS_SUFFIX, RULE_SUFFIX],
    aliases={"bfp8_16": BlockFloatFormat(8, 16)},
    called="block",
    shown=["bfp8_16"],
    verified=["bfp8_16"],
    drawn={"significand_bits": range(3, 13), "block": (16, 32, 2, 1)},
)
