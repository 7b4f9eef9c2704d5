"""Scales from the data, and blocks that share a power of two: OCP MX and classic block floating point."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

import torch

from roundoff.locks import cached_property

from .. import gpu
from ..arithmetic.codes import code_dtype, integer_codes, stored_codes
from ..arithmetic.cutting import blocks_in, check_axis, cut, joined
from ..arithmetic.elements import Element, ScaleRule
from ..arithmetic.patterns import float64_bits, narrowed, power_of_two, significand_and_exponent
from ..base.errors import FormatError
from ..base.family import Family, check_integer
from ..base.memory import along
from ..base.modes import Rounding, RoundingOptions
from ..base.names import Suffix
from ..base.on_device import table_on, where
from ..cpu.addressed import Addressed
from ..cpu.scaled.blocks import addressed_blocks_in_mode, round_blocks_in_mode
from ..cpu.scaled.blocks_nearest import BlockSettings, addressed_blocks, block_settings, round_blocks

BLOCKS = range(1, (1 << 20) + 1)
ROW = (1 << 63) - 1
"""A block as long as its axis."""
AXES = range(-8, 8)
BLOCK_SUFFIX = Suffix("_bBLOCK", "block", r"b(\d{1,9})", int)
RULE_SUFFIX = Suffix("_floor, _ceil, _even, _rceil", "scale_rule", f"({'|'.join(ScaleRule)})", ScaleRule)
_SCALE_BIAS = 127
_NAN_SCALE = 255
_FRACTION = (1 << 52) - 1  # the significand bits of float64
_MAGNITUDE = (1 << 63) - 1
_INFINITY = 0x7FF << 52


def check_block(owner: str, name: str, block: object) -> None:
    """Raises FormatError unless ``block`` is a possible number of neighbours that share a scale, or ``ROW``."""
    if block != ROW:
        check_integer(owner, name, block, BLOCKS)


class Blocks(NamedTuple):
    """A tensor as it is stored: the codes of its elements, and the codes of the scales of its blocks."""

    codes: torch.Tensor
    """Unsigned integers, the shape of the tensor."""
    scales: torch.Tensor
    """E8M0 exponents (exponent + 127; 255 is NaN), uint8, a block's one in place of its elements."""


class ScaledByData(Family):
    """A format with scales from the data: for each block of neighbours along an axis, or for the tensor (None)."""

    block: int | None
    axis: int

    carrier = torch.float32  # scales are computed in it by definition

    @property
    def open_block(self) -> int | None:
        """The block, which may be a row, along the last axis."""
        return self.block if self.axis == -1 else None

    def fits_in(self, dtype: torch.dtype) -> bool:  # noqa: ARG002
        """Yes: the scales follow from the data, in their ``dtype`` (torch.float32 or torch.float64)."""
        return True

    def _check_shape(self, x: torch.Tensor) -> None:
        if self.block is not None and x.numel():
            check_axis(self, self.axis, x)


class SharedScaleFormat(ScaledByData):
    """A number is an element times the scale 2^e, -127 <= e <= 127, that its block shares.

    Blocks lie along one axis; the last is shorter if the length is not a multiple. The scale follows from the
    block's largest magnitude by a :class:`ScaleRule`; then every x / 2^e is rounded to an element. Beyond the largest
    element it saturates, in every mode. A block that holds a NaN or an infinity becomes NaN altogether (scale code
    255): the one representation that every element type has (OCP MX v1.0 leaves it to the implementation). Float
    elements keep the sign of zero; integer elements have +0 only. A float32 result of 2^128, which the rules ceil, even
    and rceil can make of numbers above 1.9 x 2^127, is infinity: the carrier ends there, the format does not.
    """

    block: int
    scale_rule: ScaleRule

    @property
    @abstractmethod
    def element(self) -> Element:
        """The element format that scaled values are rounded to."""

    def _check(self) -> None:
        check_integer("a block format", "block", self.block, BLOCKS)
        check_integer("a block format", "axis", self.axis, AXES)
        if self.scale_rule not in list(ScaleRule):
            raise FormatError(f"scale_rule must be {', '.join(ScaleRule)}, got {self.scale_rule!r}")

    def _suffixes(self, usual_block: int | None) -> str:
        block = f"_b{self.block}" if usual_block is not None and self.block != usual_block else ""
        axis = f"_ax{self.axis}" if self.axis != -1 else ""
        scale_rule = f"_{self.scale_rule}" if self.scale_rule != ScaleRule.FLOOR else ""
        return block + axis + scale_rule

    @property
    def bits(self) -> int:
        """Storage size of one element, in bits, without its share of the scale."""
        return self.element.bits

    @property
    def bits_per_number(self) -> float:
        """Storage size of one number in a full block: an element and its share of the 8-bit scale."""
        return self.bits + 8 / self.block

    def stored_bits(self, shape: Sequence[int]) -> int:
        """Storage size of a tensor of this shape, in bits: full blocks of elements, and an 8-bit scale for each."""
        blocks, numbers = blocks_in(shape, self.axis, self.block)
        return numbers * self.bits + blocks * 8

    @property
    def max(self) -> float:
        """The largest number: the largest element at the largest scale, 2^127."""
        return self.element.max * 2.0**127  # 2^127: OCP MX v1.0, section 5.4.1

    @property
    def smallest(self) -> float:
        """The smallest number above zero: the smallest element at the smallest scale, 2^-127."""
        return 2.0 ** (self.element.emin - self.element.significand_bits - _SCALE_BIAS)

    @property
    def eps(self) -> float:
        """2^-m: distance of neighbours, relative to the power of two below, for the largest numbers of a block."""
        return 2.0**-self.element.significand_bits

    carrier = torch.float32
    """Holds exactly what float32 data can make of the format, down to the smallest subnormal.

    Results of an operation were rounded to float32 before. A number that lies within 2^-25 of a tie between two
    elements, relative to itself, can therefore go the wrong way; round float64 tensors if that matters.
    """

    def bounds(self, dtype: torch.dtype) -> None:  # noqa: ARG002
        """Returns None: the data decide the scales, and the scales decide the range."""
        return

    def _values(self) -> torch.Tensor:
        """All elements that rounding gives, for a block of scale 1; -0 left out."""
        positive = self.element.table[: 1 << (self.bits - 1)]
        positive = positive[positive.isfinite()]
        return torch.cat([-positive[1:].flip(0), positive])

    @cached_property  # small tensors take no longer than deriving them
    def _settings(self) -> BlockSettings:
        return block_settings(self.block, self._addend, self.element)

    @property
    def _addend(self) -> int:
        """The integer that a :class:`ScaleRule` adds to a float64 pattern, so that a carry raises its exponent."""
        largest = int(math.ldexp(math.frexp(self.element.max)[0], 53)) & _FRACTION  # M's significand in float64.
        return {
            ScaleRule.FLOOR: 0,
            ScaleRule.CEIL: _FRACTION,
            ScaleRule.EVEN: 1 << (51 - self.element.significand_bits),  # Half of an element's last place.
            ScaleRule.RCEIL: _FRACTION - largest,  # Carries if A's significand is above M's.
        }[self.scale_rule]

    def _check_shape(self, x: torch.Tensor) -> None:
        check_axis(self, self.axis, x)

    def _round_memory(self, source: torch.Tensor, target: torch.Tensor, options: RoundingOptions) -> None:
        length, inner = along(source, check_axis(self, self.axis, source))
        if inner == 1 and source.dtype == torch.float32 and options.rounding == Rounding.NEAREST_EVEN:
            round_blocks(source, target, length, self._settings)
        else:
            layout = (length, inner, self.block)
            round_blocks_in_mode(source, target, layout, self._addend, self.element, 0.0, options)

    def addressed(self, dtype: torch.dtype, rounding: Rounding, *, strided: bool = False) -> Addressed | None:
        """See :meth:`.Family.addressed`."""
        if self.axis != -1:
            return None
        if dtype == torch.float32 and rounding is Rounding.NEAREST_EVEN and not strided:
            return addressed_blocks(self._settings)
        return addressed_blocks_in_mode(dtype, self.block, self._addend, self.element, rounding, strided=strided)

    def _round_on_device(self, source: torch.Tensor, target: torch.Tensor, options: RoundingOptions) -> None:
        layout = check_axis(self, self.axis, source), self.block
        gpu.to_elements(source, target, layout, self._addend, self.element, None, options)

    def _encoded(self, x: torch.Tensor, options: RoundingOptions) -> Blocks:
        """Element codes (uint8, uint16 or uint32, the smallest that do) and scale codes (uint8).

        A block with a NaN or an infinity gets scale code 255 and element codes 0.
        """
        axis = check_axis(self, self.axis, x)
        bits = float64_bits(x)
        # In float64, since results may be beyond float32.
        numbers = self.rounded(bits.view(torch.float64), options.rounding, options.policy, options.random)
        # The largest magnitude has the largest pattern without the sign; NaN is above infinity.
        top = (cut(bits, axis, self.block) & _MAGNITUDE).amax(-1, keepdim=True)
        shared = (((top + self._addend) >> 52) - 1023 - self.element.emax).clamp(-_SCALE_BIAS, _SCALE_BIAS)
        scale = where(top < _INFINITY, shared + _SCALE_BIAS, _NAN_SCALE)
        blocks = cut(numbers, axis, self.block)
        significand, exponent = significand_and_exponent(blocks)
        m, lowest = self.element.significand_bits, self.element.emin - self.element.significand_bits
        quantum = (exponent + 52 - shared - m).clamp(min=lowest)  # the unit of the element, relative to the scale
        k = significand >> (quantum + shared - exponent).clamp(0, 63)
        negative = blocks.signbit()
        # With the implicit bit in k, the exponent field counts from 0.
        codes = ((quantum - lowest) << m) + k
        if self.element.integer:
            codes = where(negative, -codes, codes) & ((1 << self.bits) - 1)
        else:
            codes = codes | (negative.to(torch.int64) << (self.bits - 1))
        codes = where(scale == _NAN_SCALE, 0, codes)
        scales = scale.squeeze(-1).movedim(-1, axis) if x.dim() else scale.flatten()
        return Blocks(joined(codes, x, axis).to(code_dtype(self.bits)), scales.to(torch.uint8))

    def _decoded(self, blocks: Blocks, dtype: torch.dtype | None) -> torch.Tensor:
        """Decodes results of :meth:`encode`, or codes from other sources.

        Codes of infinity and NaN in float elements are understood, and torch's own types of floats, such as
        ``torch.float8_e8m0fnu`` for the scales. Refused if there is not one scale for each block.
        """
        blocks = stored_codes(self, blocks, Blocks)
        codes = integer_codes(self, blocks.codes, self.bits, self.element.text, signed=self.element.integer)
        scales = integer_codes("scales", blocks.scales, 8, "e8m0fnu")
        axis = check_axis(self, self.axis, codes)
        expected = list(codes.shape) or [1]
        expected[axis] = -(-expected[axis] // self.block)
        if list(scales.shape) != expected:
            raise FormatError(
                f"codes of shape {tuple(codes.shape)} in {self} need scales {tuple(expected)},"
                f" got {tuple(scales.shape)}"
            )
        cells = cut(codes, axis, self.block)
        scale = (scales.movedim(axis, -1) if codes.dim() else scales).unsqueeze(-1)
        numbers = table_on(self.element.table, codes.device)[cells] * power_of_two(scale - _SCALE_BIAS)
        numbers = where(scale == _NAN_SCALE, torch.nan, numbers)
        return narrowed(joined(numbers, codes, axis), dtype or self.carrier)
