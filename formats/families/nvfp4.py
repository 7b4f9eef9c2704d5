"""NVFP4-style two-level scaling: blocks of 4-bit floats with an 8-bit float scale, under one float32 scale."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from .. import gpu
from ..arithmetic.codes import integer_codes, stored_codes
from ..arithmetic.cutting import blocks_in, check_axis, cut, cut_squares, in_squares, joined, joined_squares, neighbour
from ..arithmetic.float_layout import Specials
from ..base.errors import FormatError
from ..base.family import check_integer
from ..base.memory import along, in_order_of_memory
from ..base.modes import Overflow, RoundingOptions
from ..base.names import AXIS_SUFFIX, Beginning, Suffix, register
from ..base.on_device import table_on, where
from ..cpu.scaled.blocks import round_blocks_in_mode
from ..scales.shared_scale import AXES, BLOCK_SUFFIX, BLOCKS, ScaledByData
from .floats import FloatFormat
from .mx import ELEMENTS

BLOCK = 16
_ELEMENT = ELEMENTS["mxfp4_e2m1"]
_SCALE = ELEMENTS["mxfp8_e4m3"]  # the scales are E4M3 numbers, zero or positive
_ELEMENTS = FloatFormat(2, 1, Specials.FINITE)
_SCALES = FloatFormat(4, 3, Specials.FN, overflow=Overflow.SATURATE)


class TwoLevelBlocks(NamedTuple):
    """A tensor as it is stored: x = element * block scale * tensor scale."""

    codes: torch.Tensor
    """E2M1 codes, uint8, the shape of the tensor."""
    scales: torch.Tensor
    """E4M3 codes of the block scales, uint8, a block's one in place of its elements."""
    tensor_scale: torch.Tensor
    """Zero-dimensional, of the tensor's dtype."""


@dataclass(frozen=True)
class NVFP4Format(ScaledByData):
    """4-bit floats (E2M1) times an E4M3 scale for each block times a scale for the whole tensor.

    With A and B the largest magnitudes of the tensor and of a block, in the arithmetic of the carrier,

        g = A / (448 * 6),  d = E4M3(B / (6 g)),  t = d g,  x -> t * E2M1(x / t)

    where every operation is rounded once, d to nearest-even and E2M1 in the mode asked for; both saturate. So the
    block that holds A has d = 448, the largest E4M3 number. A block with d = 0 (B below 2^-19 of A or so) becomes
    zeros. A = 0 gives g = 1, and g is never below 2^-126.

    Zeros keep their sign. A tensor that holds a NaN or an infinity lacks a scale and becomes NaN altogether. Rounding
    is not idempotent to the last bit: g follows from A, which itself was rounded.

    Args:
        block: the number of elements that share an E4M3 scale; 16 in NVIDIA's format.
        axis: the axis of the blocks.
        square: blocks are squares of ``block`` times ``block`` numbers, along ``axis`` and its
            neighbour, so that a matrix and its transpose round equally; NVIDIA's recipe uses them for weights.

    Raises:
        FormatError: a number is out of range.
    """

    block: int = BLOCK
    axis: int = -1
    square: bool = False

    element = _ELEMENT
    bits = _ELEMENT.bits  # without a share of the scales
    eps = 2.0**-_ELEMENT.significand_bits  # for the largest numbers of a block

    def __post_init__(self) -> None:
        check_integer("a block format", "block", self.block, BLOCKS)
        check_integer("a block format", "axis", self.axis, AXES)

    def __str__(self) -> str:
        block = f"_b{self.block}" if self.block != BLOCK else ""
        return f"nvfp4{block}" + (f"_ax{self.axis}" if self.axis != -1 else "") + ("_square" if self.square else "")

    @property
    def bits_per_number(self) -> float:
        """Storage size of one number in a full block: an element and its share of the block's 8-bit scale."""
        return self.bits + 8 / (self.block**2 if self.square else self.block)

    def stored_bits(self, shape: Sequence[int]) -> int:
        """Storage size of a tensor of this shape, in bits: full blocks, 8 bits of scale for each, and 32 for all."""
        blocks, numbers = blocks_in(shape, self.axis, self.block, square=self.square)
        return numbers * self.bits + blocks * 8 + (32 if blocks else 0)

    def _values(self) -> torch.Tensor:
        """All elements, which are the numbers of a block of scale 1; -0 left out."""
        positive = _ELEMENT.table[: 1 << (_ELEMENT.bits - 1)]
        return torch.cat([-positive[1:].flip(0), positive])

    def _round_memory(self, source: torch.Tensor, target: torch.Tensor, options: RoundingOptions) -> None:
        axis = check_axis(self, self.axis, source)
        low, high = torch.aminmax(in_order_of_memory(source))
        tensor_scale = _scale_in_memory(float(torch.maximum(-low, high)), source.dtype)  # From the largest magnitude.
        if self.square:
            squares, square_options = in_squares(source, axis, self.block, options)
            size = squares.shape[-1]
            round_blocks_in_mode(squares, squares, (size, 1, size), 0, _ELEMENT, tensor_scale, square_options)
            target.copy_(self._joined(squares, source, axis))
            return
        length, inner = along(source, axis)
        round_blocks_in_mode(source, target, (length, inner, self.block), 0, _ELEMENT, tensor_scale, options)

    def _round_on_device(self, source: torch.Tensor, target: torch.Tensor, options: RoundingOptions) -> None:
        low, high = torch.aminmax(source)
        tensor_scale, axis = _tensor_scale(torch.maximum(-low, high)), check_axis(self, self.axis, source)
        if self.square:
            squares, square_options = in_squares(source, axis, self.block, options)
            layout = squares.dim() - 1, squares.shape[-1]  # A square is a block along the last axis.
            gpu.to_elements(squares, squares, layout, 0, _ELEMENT, tensor_scale, square_options)
            target.copy_(self._joined(squares, source, axis))
            return
        gpu.to_elements(source, target, (axis, self.block), 0, _ELEMENT, tensor_scale, options)

    def _cut(self, x: torch.Tensor, axis: int) -> torch.Tensor:
        return cut_squares(x, axis, self.block) if self.square else cut(x, axis, self.block)

    def _joined(self, blocks: torch.Tensor, like: torch.Tensor, axis: int) -> torch.Tensor:
        return joined_squares(blocks, like, axis, self.block) if self.square else joined(blocks, like, axis)

    def _axes(self, axis: int, dimensions: int) -> tuple[int, ...]:
        """The axes of blocks in a tensor with this number of dimensions."""
        return (neighbour(axis, dimensions), axis) if self.square else (axis,)

    def _scaled(self, codes: torch.Tensor, scales: torch.Tensor, tensor_scale: torch.Tensor) -> torch.Tensor:
        dtype = tensor_scale.dtype
        total = table_on(_SCALE.table, codes.device)[scales].to(dtype) * tensor_scale
        return table_on(_ELEMENT.table, codes.device)[codes].to(dtype) * total

    def _encoded(self, x: torch.Tensor, options: RoundingOptions) -> TwoLevelBlocks:
        """Encodes a tensor; refuses an empty one. With a NaN or an infinity the tensor's scale is NaN."""
        if x.numel() == 0:
            raise FormatError(f"{self}: an empty tensor has no scale")
        axis = check_axis(self, self.axis, x)
        numbers = self._cut(self.rounded(x, options.rounding, options.policy, options.random), axis).to(torch.float64)
        tops = self._cut(x, axis).abs().amax(-1, keepdim=True)  # Of the numbers before rounding, as in the kernels.
        tensor_scale = _tensor_scale(tops.amax())
        scales = _SCALES.encode((tops / (_ELEMENT.max * tensor_scale)).nan_to_num(0.0)).to(torch.int64)
        total = table_on(_SCALE.table, x.device)[scales].to(x.dtype) * tensor_scale
        # Each number is an element times the total, rounded once: the nearest element is the right one.
        elements = where(total == 0, numbers, numbers / total.to(torch.float64)).nan_to_num(0.0)  # 0 for NaN.
        codes = _ELEMENTS.encode(elements)
        if x.dim() > self.square:
            axes = self._axes(axis, x.dim())
            scales = scales.squeeze(-1).movedim(tuple(range(-len(axes), 0)), axes)
        else:
            scales = scales.flatten()
        return TwoLevelBlocks(self._joined(codes, x, axis).to(torch.uint8), scales.to(torch.uint8), tensor_scale)

    def _decoded(self, blocks: TwoLevelBlocks, dtype: torch.dtype | None) -> torch.Tensor:
        """Decodes codes, also of ``torch.float4_e2m1fn_x2``, with their scales, also of ``torch.float8_e4m3fn``."""
        blocks = stored_codes(self, blocks, TwoLevelBlocks)
        codes = integer_codes(self, blocks.codes, _ELEMENT.bits, _ELEMENT.text)
        scales, tensor_scale = integer_codes("scales", blocks.scales, _SCALE.bits, _SCALE.text), blocks.tensor_scale
        axis = check_axis(self, self.axis, codes)
        if codes.dim() > self.square:
            axes = self._axes(axis, codes.dim())
            scales = scales.movedim(axes, tuple(range(-len(axes), 0)))
        elif self.square:
            scales = scales[None]
        numbers = self._scaled(self._cut(codes, axis), scales.unsqueeze(-1), tensor_scale)
        numbers = self._joined(numbers, codes, axis)
        return numbers if dtype is None else numbers.to(dtype)


def _tensor_scale(top: torch.Tensor) -> torch.Tensor:
    """The scale of a tensor with largest magnitude ``top``; NaN if that is NaN or infinite."""
    scale = (top / (_SCALE.max * _ELEMENT.max)).clamp(min=2.0**-126)
    return where(top == 0, 1.0, where(top.isfinite(), scale, torch.nan))


def _scale_in_memory(top: float, dtype: torch.dtype) -> float:
    """:func:`_tensor_scale` of one number of ``dtype``, without tensors."""
    if top == 0:
        return 1.0
    carrier = np.float32 if dtype == torch.float32 else np.float64
    scale = float(carrier(top) / carrier(_SCALE.max * _ELEMENT.max))
    return max(scale, 2.0**-126) if math.isfinite(top) else math.nan


register(
    NVFP4Format,
    beginnings=[Beginning("nvfp4", "nvfp4", lambda _: {})],
    suffixes=[BLOCK_SUFFIX, AXIS_SUFFIX, Suffix("_square", "square", "(square)", lambda _: True)],
    aliases={"nvfp4": NVFP4Format()},
    called="nvfp4",
    shown=["nvfp4"],
    verified=["nvfp4"],
    drawn={"block": (16, 32, 2, 1), "square": (False, True)},
)
