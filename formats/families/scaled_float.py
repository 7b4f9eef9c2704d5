"""Floats with a scale from the data, as FP8 hardware has them: for the tensor, for each row, for each block."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch

from roundoff.locks import cached_property

from .. import gpu
from ..arithmetic.codes import stored_codes
from ..arithmetic.cutting import blocks_in, check_axis, cut_squares, in_squares, joined_squares
from ..arithmetic.patterns import INFINITY, INTEGER
from ..base.errors import FormatError
from ..base.family import check_integer
from ..base.memory import along
from ..base.modes import Overflow, Rounding, RoundingOptions
from ..base.names import ALIASES, AXIS_SUFFIX, Beginning, Suffix, format_called, register
from ..cpu.addressed import Addressed, AddressedSquares
from ..cpu.scaled.float_scales import addressed_scaled, round_scaled
from ..cpu.threads import ELEMENTS_PER_THREAD
from ..scales.shared_scale import AXES, ROW, ScaledByData, check_block
from .floats import FloatFormat

_MOST_BITS = 16  # Of the element format.


class ScaledFloats(NamedTuple):
    """A tensor as it is stored: x = number of the code / scale."""

    codes: torch.Tensor
    """Codes of the element format, the shape of the tensor."""
    scales: torch.Tensor
    """The scales, in the tensor's dtype: zero-dimensional, or a row's or block's one in place of its elements."""


@dataclass(frozen=True)
class ScaledFloatFormat(ScaledByData):
    """A float format that is scaled so that the largest magnitude of the tensor, row or block is its largest number.

    With A that magnitude and M the largest number of the element format E, in the arithmetic of the carrier,

        s = M / A,  x -> E(x s) / s

    where every operation is rounded once, E in the mode asked for and the others to nearest-even; E saturates. That is
    FP8 with "dynamic" or "current" scaling, with the bits of the emulation in torchao. With ``power_of_two``, s is
    rounded down to a power of two, so that products and quotients are exact unless they are subnormal.

    A tensor, row or block that holds a NaN or an infinity lacks a scale and becomes NaN altogether. The scale stays
    between 2^-126 and 2^126 (float64: 2^-1022 and 2^1022): zeros also have one, and keep their signs if E has -0;
    numbers below M 2^-126 are scaled by less than they ask for. torchao's stays below M 10^12.

    Rounding is idempotent with ``power_of_two``. Otherwise a second rounding may change last bits of the carrier: s
    follows from A, which itself was rounded.

    Args:
        element: E: at most 16 bits, with a sign, subnormal numbers and its usual overflow; no number beyond float32.
        block: the number of neighbours that share a scale; ``shared_scale.ROW`` for all along the axis; None for all.
        axis: the axis of the blocks and rows.
        power_of_two: whether scales are powers of two.
        square: blocks are squares of ``block`` times ``block`` numbers along ``axis`` and its neighbour, so that a
            matrix and its transpose have the same numbers: weights of DeepSeek-V3 (2024, Section 3.3.2)
            are scaled in squares of 128.

    Raises:
        FormatError: the element does not suit, or a number is out of range.
    """

    element: FloatFormat
    block: int | None = None
    axis: int = -1
    power_of_two: bool = False
    square: bool = False

    def __post_init__(self) -> None:
        element = self.element
        fits = isinstance(element, FloatFormat) and element.bits <= _MOST_BITS and element.fits_in(torch.float32)
        if not fits or not element.signed or not element.subnormals or element.overflow is not None:
            raise FormatError(
                f"a format with a scale has a float element of at most {_MOST_BITS} bits that fits in float32, with a"
                f" sign, subnormal numbers and its usual overflow, got {element}"
            )
        if self.block is not None:
            check_block("a format with a scale", "block", self.block)
        check_integer("a format with a scale", "axis", self.axis, AXES)
        if self.block is None and self.axis != -1:
            raise FormatError(f"a scale of the whole tensor lies along no axis: leave out axis, got {self.axis}")
        if self.square:
            if self.block in (None, ROW):
                raise FormatError(
                    "squares have a side: give the number of neighbours that share a scale, as in fp8_e4m3_b128_square"
                )
            assert self.block is not None
            check_block("a format with a scale", "numbers in a square", self.block**2)

    def __str__(self) -> str:
        span = "tensor" if self.block is None else "row" if self.block == ROW else f"b{self.block}"
        axis = f"_ax{self.axis}" if self.axis != -1 else ""
        element = str(self.element)  # torch.compile reads this method, and formats no objects
        power_of_two, square = "_pow2" if self.power_of_two else "", "_square" if self.square else ""
        return f"{element}_{span}{axis}{power_of_two}{square}"

    @property
    def bits(self) -> int:
        """Storage size of one element, in bits, without its share of the scale."""
        return self.element.bits

    @property
    def bits_per_number(self) -> float:
        """Storage size of one number in a full block, with its share of the 32-bit scale; a row's is not counted."""
        if self.block is None or self.block == ROW:
            return float(self.bits)
        return self.bits + 32 / (self.block**2 if self.square else self.block)

    def stored_bits(self, shape: Sequence[int]) -> int:
        """Storage size of a tensor of this shape, in bits: full blocks, and a 32-bit scale for each, or for all."""
        if self.block is None:
            return math.prod(shape) * self.bits + 32
        blocks, numbers = blocks_in(shape, self.axis, self.block, square=self.square)
        return numbers * self.bits + blocks * 32

    @property
    def eps(self) -> float:
        """Distance of neighbours, relative to the power of two below, for the largest numbers."""
        return self.element.eps

    def _values(self) -> torch.Tensor:
        """The finite numbers of the element, which are those at a scale of 1."""
        return self.element.values()

    @cached_property
    def _rows(self) -> ScaledFloatFormat:
        """The format of squares that are arranged in rows."""
        assert self.block is not None
        return replace(self, block=self.block**2, axis=-1, square=False)

    def _in_squares(self, x: torch.Tensor, options: RoundingOptions) -> tuple[torch.Tensor, RoundingOptions]:
        assert self.block is not None
        return in_squares(x, check_axis(self, self.axis, x), self.block, options)

    def _joined(self, squares: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        assert self.block is not None
        return joined_squares(squares, like, check_axis(self, self.axis, like), self.block)

    def _round_memory(self, source: torch.Tensor, target: torch.Tensor, options: RoundingOptions) -> None:
        if self.square:
            squares, square_options = self._in_squares(source, options)
            self._rows._round_memory(squares, squares, square_options)  # noqa: SLF001  of this class
            target.copy_(self._joined(squares, source))
            return
        if self.block is None and source.numel() >= 2 * ELEMENTS_PER_THREAD and torch.get_num_threads() > 1:
            (scale,) = self._scale_up(source, target)  # Torch's maximum uses several threads; a loop, one per block.
            self._saturating.round_into(target, target, options.rounding, None, options.random)
            target.div_(scale)
            return
        n = source.numel()
        length, inner = (n, 1) if self.block is None else along(source, check_axis(self, self.axis, source))
        layout = length, inner, length if self.block is None else min(self.block, length)

        def rounded(x: torch.Tensor) -> None:
            self._saturating.round_into(x, x, options.rounding, None, options.random)

        round_scaled(source, target, layout, self.element.max, rounded, power_of_two=self.power_of_two)

    def addressed(
        self, dtype: torch.dtype, rounding: Rounding, *, strided: bool = False
    ) -> Addressed | AddressedSquares | None:
        """See :meth:`.Family.addressed`."""
        del strided  # one loop for both
        element = self._saturating.addressed(dtype, rounding)
        if self.axis != -1 or element is None:
            return None
        if self.square:
            block = self._rows.addressed(dtype, rounding)
            is_drawn = rounding is Rounding.STOCHASTIC  # random bits follow the order in the tensor
            return AddressedSquares(self.block or 0, block) if isinstance(block, Addressed) and not is_drawn else None
        return addressed_scaled(dtype, self.block or 0, self.element.max, element, power_of_two=self.power_of_two)

    def _round_on_device(self, source: torch.Tensor, target: torch.Tensor, options: RoundingOptions) -> None:
        if self.square:
            squares, square_options = self._in_squares(source, options)
            self._rows._round_on_device(squares, squares, square_options)  # noqa: SLF001  of this class
            target.copy_(self._joined(squares, source))
            return
        parameters = self._saturating.parameters(source.dtype, options.rounding)
        if self.block is None or source.dim() == 0:
            gpu.to_scaled_float(source, target, parameters, self._scale_of(source), options)
        else:
            layout = check_axis(self, self.axis, source), self.block
            largest, power = self.element.max, self.power_of_two
            gpu.to_scaled_blocks(source, target, layout, parameters, largest, options, power_of_two=power)

    def _scale_up(self, source: torch.Tensor, target: torch.Tensor) -> list[torch.Tensor]:
        """Writes x s into ``target``, which may be ``source``, and returns the scales of the pieces."""
        pieces = self._pieces(source)
        scales = [self._scale_of(piece) for piece in pieces]
        for piece, scale, scaled in zip(pieces, scales, self._pieces(target), strict=True):
            torch.mul(piece, scale, out=scaled)
        return scales

    @cached_property
    def _saturating(self) -> FloatFormat:
        return replace(self.element, overflow=Overflow.SATURATE)

    def _pieces(self, x: torch.Tensor) -> list[torch.Tensor]:
        """Views of ``x``: the whole, or blocks along the axis after ours, with a short last block separate."""
        if self.block is None or x.dim() == 0:
            return [x]
        axis = check_axis(self, self.axis, x)
        full = x.shape[axis] // self.block * self.block
        rest = x.shape[axis] - full
        if not full:  # One short block.
            return [x.unsqueeze(axis)]
        before, behind = x.shape[:axis], x.shape[axis + 1 :]
        pieces = [(x.narrow(axis, 0, full) if rest else x).view(*before, -1, self.block, *behind)]
        return [*pieces, x.narrow(axis, full, rest).unsqueeze(axis)] if rest else pieces

    def _scale_of(self, piece: torch.Tensor) -> torch.Tensor:
        """The scales of a piece, in a shape that can be multiplied with it; NaN where it holds a NaN or an infinity."""
        if self.block is None or piece.dim() == 0:
            low, high = torch.aminmax(piece)
        else:
            axis = self.axis + 1 if self.axis >= 0 else self.axis  # Pieces have the axis of blocks before it.
            low, high = piece.amin(axis, keepdim=True), piece.amax(axis, keepdim=True)
        top, limits = torch.maximum(-low, high), torch.finfo(piece.dtype)
        # In PyTorch, number / tensor multiplies by the reciprocal, which rounds twice.
        scale = (torch.full_like(top, self.element.max) / top).clamp_(limits.tiny, 1 / limits.tiny)
        if self.power_of_two:
            # The pattern of infinity masks the exponent: a number without significand bits is a power of two.
            scale = (scale.view(INTEGER[piece.dtype]) & INFINITY[piece.dtype]).view(piece.dtype)
        return scale.add_(top.mul_(0.0))  # NaN, unless top is finite

    def _encoded(self, x: torch.Tensor, options: RoundingOptions) -> ScaledFloats:
        """Encodes a tensor; refuses an empty one. Where there is a NaN or an infinity, scales are NaN and codes 0."""
        if x.numel() == 0:
            raise FormatError(f"{self}: an empty tensor has no scale")
        self._check_shape(x)
        if self.square:
            squares, square_options = self._in_squares(x, options)
            stored = self._rows._encoded(squares, square_options)  # noqa: SLF001  of this class
            return ScaledFloats(self._joined(stored.codes, x), stored.scales.squeeze(-1))
        scaled = torch.empty_like(x)
        scales = self._scale_up(x, scaled)
        # The codes of a block without a scale are 0.
        codes = self._saturating.encode(scaled.nan_to_num_(0.0), options.rounding, random=options.random)
        if self.block is None or x.dim() == 0:
            return ScaledFloats(codes, scales[0])
        axis = check_axis(self, self.axis, x)
        return ScaledFloats(codes, torch.cat([scale.squeeze(axis + 1) for scale in scales], axis))

    def _decoded(self, stored: ScaledFloats, dtype: torch.dtype | None) -> torch.Tensor:
        """Decodes codes, which may be of torch's own types, with scales, one for each block."""
        stored = stored_codes(self, stored, ScaledFloats)
        if self.square:
            assert self.block is not None
            codes = cut_squares(stored.codes, check_axis(self, self.axis, stored.codes), self.block)
            squares = self._rows._decoded(ScaledFloats(codes, stored.scales.unsqueeze(-1)), dtype)  # noqa: SLF001  of this class
            return self._joined(squares, stored.codes)
        numbers = self.element.decode(stored.codes, torch.float64).to(stored.scales.dtype)
        if self.block is not None and numbers.dim():
            axis = check_axis(self, self.axis, numbers)
            first = 0
            for piece in self._pieces(numbers):
                count = piece.shape[axis]
                piece.div_(stored.scales.narrow(axis, first, count).unsqueeze(axis + 1))
                first += count
        else:
            numbers.div_(stored.scales)
        return numbers if dtype is None else numbers.to(dtype)


def _from_name(match: re.Match[str]) -> dict[str, Any]:
    element, span = match[1], match[2]
    block = None if span == "tensor" else ROW if span == "row" else int(span[1:])
    return {"element": format_called(element), "block": block}


# The longest names come first, since a regular expression takes the first alternative that matches.
_FLOATS = sorted((name for name, fmt in ALIASES.items() if isinstance(fmt, FloatFormat)), key=len, reverse=True)
_WIDTHS = r"e\d{1,3}m\d{1,3}(?:b-?\d{1,5})?(?:fnuz|fn|_finite|_p3109)?|binary\d{1,2}p\d{1,2}(?:s[ef])?"
_E4M3, _E5M2, _E2M1 = map(format_called, ("fp8_e4m3", "fp8_e5m2", "fp4_e2m1"))

register(
    ScaledFloatFormat,
    beginnings=[
        Beginning(
            "FLOAT_tensor, FLOAT_row, FLOAT_bBLOCK",
            rf"({'|'.join(_FLOATS)}|{_WIDTHS})_(tensor|row|b\d{{1,9}})",
            _from_name,
            behind=(FloatFormat, ("_tensor", "_row", "_bBLOCK")),
        )
    ],
    suffixes=[
        AXIS_SUFFIX,
        Suffix("_pow2", "power_of_two", "(pow2)", lambda _: True),
        Suffix("_square", "square", "(square)", lambda _: True),
    ],
    aliases={
        f"fp8_{name}_{span}": ScaledFloatFormat(element, block)
        for name, element in (("e4m3", _E4M3), ("e5m2", _E5M2))
        for span, block in (("tensor", None), ("row", ROW), ("b128", 128))
    },
    called="scaled",
    shown=["fp8_e4m3_tensor", "fp8_e4m3_row"],
    verified=[
        "fp8_e4m3_tensor",
        "fp8_e5m2_row",
        "fp8_e4m3_b128",
        "fp8_e4m3_row_pow2",
        "fp4_e2m1_b16",
        "fp8_e4m3_b128_square",
    ],
    drawn={
        "element": (_E4M3, _E5M2, _E2M1),
        "block": (None, ROW, 16, 2),
        "power_of_two": (False, True),
        "square": (False, True),
    },
)
