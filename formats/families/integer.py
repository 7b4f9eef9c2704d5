"""Affine integer quantization: scale * (code - zero point), with scales from the data or given."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from roundoff.locks import cached_property

from .. import gpu
from ..arithmetic.codes import integer_codes, stored_codes
from ..arithmetic.cutting import blocks_in, check_axis, cut, joined
from ..base.errors import FormatError
from ..base.family import Family, check_integer
from ..base.memory import along, in_order_of_memory
from ..base.modes import RandomBits, Rounding, RoundingOptions
from ..base.names import AXIS_SUFFIX, Beginning, Suffix, register
from ..base.on_device import number_on, where
from ..base.random_words import random_words
from ..cpu.addressed import Addressed
from ..cpu.numbers.grids import round_channels
from ..cpu.numbers.grids_nearest import addressed_whole, is_small, round_whole
from ..cpu.scaled.groups import channel_scales, round_groups
from ..scales.calibration import SMALLEST_SCALE, scales_of
from ..scales.shared_scale import AXES, ROW, check_block

WIDTHS = range(2, 17)


class Quantized(NamedTuple):
    """A tensor as it is stored: x = scale * (codes - zero_point)."""

    codes: torch.Tensor
    """Integers, the shape of the tensor: int8, uint8, int16 or uint16."""
    scale: torch.Tensor
    """The scale, in the tensor's dtype: zero-dimensional, one per channel, or one per group."""
    zero_point: torch.Tensor
    """int32, the shape of ``scale``."""


@dataclass(frozen=True)
class IntegerFormat(Family):
    """Integers of 2 to 16 bits with a scale s and a zero point z: x = s (q - z), q = clamp(round(x * (1/s)) + z).

    1/s is rounded to the carrier, as the product is: the very arithmetic of ``torch.fake_quantize_per_tensor_affine``
    and ``..._per_channel_affine``, which give the same bits (up to codes beyond 2^63, where torch overflows).

    - Symmetric (the default of ``int8``): z = 0, s = max |x| / (2^(bits-1) - 1), codes -127 .. 127 of int8. An unsigned
      symmetric format is for data that is never negative: codes 0 .. 255, s = max |x| / 255.
    - Asymmetric (the default of ``uint8``): all codes; s = (max - min) / 255 with the range widened to hold zero, and z
      the integer that makes zero exact.

    Scale and zero point belong to the whole tensor, to each channel (``axis``), or to each group of ``group``
    neighbours along ``axis``. They come from minimum and maximum, from a percentile, or are given. From the data, the
    scale is computed in float64 and rounded once to the carrier; what computes it in float32 (ONNX's
    DynamicQuantizeLinear, torch's MinMaxObserver) has another last bit for about a quarter of the tensors. A scale is
    never below 2^-126, and never so large that a code would represent an infinite number.

    That formula, with three roundings, is for nearest-even. A tie of x (1/s) goes to the even multiple of s, as in
    torch and ONNX: to the even code if z is even. In the other modes the numbers themselves count: each chooses between
    the two floats s k and s (k + 1) next to x, as the carrier holds them, so that numbers of the format stay
    unchanged. To-odd uses the code; the probability of stochastic rounding is (x - lower) / (upper - lower) in float64.

    Infinities and negative zero do not exist. NaN stays NaN and an infinity saturates if the scale is given. If it
    comes from the data, a tensor, channel or group that holds either lacks a scale and becomes NaN altogether.

    Args:
        width: bits of a code, 2 to 16.
        signed: whether codes run from -2^(width-1), or from 0.
        symmetric: whether the zero point is 0, and the codes are symmetric.
        axis: the channel axis; with ``group``, the axis that groups lie along (the last if None).
        group: the number of neighbours that share a scale; ``shared_scale.ROW`` for all along the axis.
        percentile: above 50, up to 100: the range leaves out values beyond that percentile of |x| (symmetric) or of x
            on either side (asymmetric). The percentile p of n numbers is the one of rank ceil(n p / 100).
        scale: given for the whole tensor, positive.
        zero_point: given with ``scale``, for asymmetric formats.

    Raises:
        FormatError: a number is out of range, or two arguments exclude each other.
    """

    width: int
    signed: bool = True
    symmetric: bool = True
    axis: int | None = None
    group: int | None = None
    percentile: float | None = None
    scale: float | None = None
    zero_point: int = 0

    def __post_init__(self) -> None:
        check_integer("an integer format", "width", self.width, WIDTHS)
        if self.axis is not None:
            check_integer("an integer format", "axis", self.axis, AXES)
        if self.group is not None:
            check_block("an integer format", "group", self.group)
        if self.percentile is not None and not 50 < self.percentile <= 100:
            raise FormatError(f"percentile must be above 50 and at most 100, got {self.percentile!r}")
        if self.scale is not None:
            if not (SMALLEST_SCALE <= self.scale < math.inf):
                raise FormatError(f"scale of an integer format must be 2^-126 or more and finite, got {self.scale!r}")
            if (self.axis, self.group, self.percentile) != (None, None, None):
                raise FormatError("a given scale is for the whole tensor: leave out axis, group and percentile")
        # Without a scale, or if the format is symmetric, the zero point can only be 0.
        codes = range(1) if self.scale is None or self.symmetric else range(self.code_min, self.code_max + 1)
        if self.zero_point not in codes:
            raise FormatError(
                f"zero_point must be from {codes[0]} to {codes[-1]} here (it is given with a scale, for asymmetric"
                f" formats), got {self.zero_point!r}"
            )

    def __str__(self) -> str:
        text = f"{'int' if self.signed else 'uint'}{self.width}"
        if self.symmetric != self.signed:  # By default, int is symmetric and uint is not.
            text += "_sym" if self.symmetric else "_asym"
        if self.group is not None:
            text += "_row" if self.group == ROW else f"_g{self.group}"
        text += f"_ax{self.axis}" if self.axis is not None else ""
        text += f"_p{float(self.percentile)!r}".removesuffix(".0") if self.percentile is not None else ""
        text += f"_s{float(self.scale)!r}" if self.scale is not None else ""
        return text + (f"_z{self.zero_point}" if self.zero_point else "")

    @property
    def bits(self) -> int:
        """Storage size of one code, in bits."""
        return self.width

    def stored_bits(self, shape: Sequence[int]) -> int:
        """Storage size of a tensor of this shape, in bits: codes, and a 32-bit scale for whatever shares one.

        Asymmetric formats also have a zero point for each scale, with the bits of a code. A group that is not full
        is filled. A scale that is given is part of the format, and takes none.
        """
        if self.group is not None:
            scales, numbers = blocks_in(shape, -1 if self.axis is None else self.axis, self.group)
        else:
            numbers = math.prod(shape)
            per_channel = self.axis is not None and len(shape) > 0
            scales = shape[self.axis % len(shape)] if per_channel and self.axis is not None else 1
        scale_bits = 0 if self.scale is not None else 32 + (0 if self.symmetric else self.bits)
        return numbers * self.bits + scales * scale_bits

    @property
    def code_min(self) -> int:
        """The smallest code."""
        if not self.signed:
            return 0
        return -(1 << (self.width - 1)) + (1 if self.symmetric else 0)  # int8 leaves -128 unused.

    @property
    def code_max(self) -> int:
        """The largest code."""
        return (1 << (self.width - self.signed)) - 1

    @property
    def open_block(self) -> int | None:
        """The group, along the last axis."""
        return self.group if self.axis in (None, -1) else None

    def bounds(self, dtype: torch.dtype) -> tuple[float, float] | None:
        """The numbers of the first and last code, if the scale is given; None if the data decide."""
        return self._bounds[dtype]

    @cached_property
    def _bounds(self) -> dict[torch.dtype, tuple[float, float] | None]:
        if self.scale is None:
            return {torch.float32: None, torch.float64: None}
        codes = self.code_min - self.zero_point, self.code_max - self.zero_point
        with np.errstate(over="ignore"):  # A scale for float64 may overflow in float32.
            low32, high32 = (float(np.float32(code) * np.float32(self.scale)) for code in codes)
            low64, high64 = (float(np.float64(code) * np.float64(self.scale)) for code in codes)
        return {torch.float32: (low32, high32), torch.float64: (low64, high64)}

    @property
    def carrier(self) -> torch.dtype:
        """float32, unless a given scale makes numbers that are too large for it.

        Numbers are as exact as scale times integer is in float32; quantize float64 tensors for more.
        """
        return torch.float32 if self.fits_in(torch.float32) else torch.float64

    @property
    def elementwise(self) -> bool:
        """Whether the scale is given."""
        return self.scale is not None

    def fits_in(self, dtype: torch.dtype) -> bool:
        """Whether the numbers of a given scale are finite in ``dtype``; yes for scales from the data."""
        bounds = self.bounds(dtype)
        return bounds is None or all(map(math.isfinite, bounds))

    def values(self, dtype: torch.dtype | None = None) -> torch.Tensor:
        """All numbers in ascending order, float64: of the given scale, else in units of the scale, zero point 0.

        Args:
            dtype: the dtype of the rounded tensors, which decides the last bits of the numbers; the carrier if None.
        """
        codes = torch.arange(self.code_min, self.code_max + 1, dtype=dtype or self.carrier)
        scale = number_on(1.0 if self.scale is None else self.scale, codes.dtype, codes.device)
        return ((codes - self.zero_point) * scale).to(torch.float64)

    def _check_shape(self, x: torch.Tensor) -> None:
        if x.numel():
            self._axis(x)

    @property
    def _in_order(self) -> bool:
        return self.percentile is not None

    def _round_on_device(self, source: torch.Tensor, target: torch.Tensor, options: RoundingOptions) -> None:
        codes = (self.code_min, self.code_max)
        if self.group is not None and source.dim():
            if self.percentile is not None:  # Tensor operations sort the numbers.
                self._round_groups_on_device(source, target, options)
                return
            layout = self._axis(source), self.group
            gpu.to_integer_blocks(source, target, layout, codes, SMALLEST_SCALE, options, symmetric=self.symmetric)
        elif self.scale is not None:
            between = options.rounding is not Rounding.NEAREST_EVEN
            gpu.to_grid(source, target, self.scale, self.zero_point, codes, options, between=between)
        else:
            scales, zeros = self._parameters(source)
            inner = source.shape[self._axis(source) + 1 :].numel() if scales.dim() else 1
            gpu.to_grids(source, target, (inner, scales.numel()), scales, zeros, codes, options)

    def _round_groups_on_device(self, source: torch.Tensor, target: torch.Tensor, options: RoundingOptions) -> None:
        """Rounds groups with known scales, each as a row."""
        scales, zeros = self._parameters(source)
        if options.random is not None:  # The words belong to the elements' places in the tensor.
            options = options._replace(random=self._in_pieces(random_words(options.random, source))[0].contiguous())
        pieces = self._in_pieces(source)[0].contiguous()
        layout = pieces.shape[-1], scales.numel()
        gpu.to_grids(pieces, pieces, layout, scales, zeros, (self.code_min, self.code_max), options)
        target.copy_(self._joined(pieces, source))

    def _round_memory(self, source: torch.Tensor, target: torch.Tensor, options: RoundingOptions) -> None:
        codes, between = (self.code_min, self.code_max), options.rounding is not Rounding.NEAREST_EVEN
        # One scale for the tensor; for small tensors one loop finds it and rounds.
        if (self.axis is None and self.group is None) or source.dim() == 0:
            if self.percentile is None and not between and is_small(source):
                fixed = (self.scale or 0.0, self.zero_point)
                round_whole(source, target, codes, SMALLEST_SCALE, fixed, symmetric=self.symmetric)
                return
            scale, zero = self._parameters(in_order_of_memory(source))
            round_channels(source, target, (1, 1), (1 / scale, scale, zero), codes, options, between=between)
            return
        axis = self._axis(source)
        length, inner = along(source, axis)
        if self.group is None:  # A scale for each channel.
            if self.percentile is None:
                scale, zero = channel_scales(source, length, inner, codes, SMALLEST_SCALE, symmetric=self.symmetric)
            else:
                scale, zero = self._parameters(source)
            parameters = 1 / scale, scale, zero
            round_channels(source, target, (length, inner), parameters, codes, options, between=between)
            return
        group_parameters = None  # A scale for each group, in the loop's order, or from minimum and maximum in the loop.
        if self.percentile is not None:
            group_parameters = [p.movedim(-1, axis).contiguous() for p in self._parameters(source)]
        layout = (length, inner, min(self.group, length))
        round_groups(source, target, layout, codes, group_parameters, SMALLEST_SCALE, options, symmetric=self.symmetric)

    def addressed(self, dtype: torch.dtype, rounding: Rounding, *, strided: bool = False) -> Addressed | None:
        """See :meth:`.Family.addressed`."""
        del strided  # one scale for all
        if (self.axis, self.group, self.percentile) != (None, None, None):
            return None
        if dtype != torch.float32 or rounding is not Rounding.NEAREST_EVEN:
            return None
        codes = (self.code_min, self.code_max)
        return addressed_whole(codes, SMALLEST_SCALE, (self.scale or 0.0, self.zero_point), symmetric=self.symmetric)

    def _parameters(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Scale and zero point of each slice, contiguous, of the dtype of ``x``."""
        if self.scale is not None:
            scale = number_on(self.scale, x.dtype, x.device)
            return scale, torch.full_like(scale, self.zero_point)
        codes = (self.code_min, self.code_max)
        parts = [scales_of(part, codes, self.percentile, symmetric=self.symmetric) for part in self._slices(x)]
        if len(parts) == 1:
            return parts[0]
        scales, zeros = zip(*parts, strict=True)
        return torch.cat(scales, dim=-1), torch.cat(zeros, dim=-1)

    def _slices(self, x: torch.Tensor) -> list[torch.Tensor]:
        """Returns the slices that share a scale; groups as (..., groups, group), a short last one apart."""
        if self.group is not None:
            axis = self._axis(x)
            rows = x.reshape(1) if x.dim() == 0 else x.movedim(axis, -1)
            full = rows.shape[-1] // self.group * self.group
            parts = (rows[..., :full], self.group), (rows[..., full:], rows.shape[-1] - full)
            return [cut(part, -1, size) for part, size in parts if part.numel()]
        if self.axis is not None and x.dim():
            return [x.movedim(self._axis(x), 0).flatten(1) if x.dim() > 1 else x[:, None]]  # A row is a channel.
        return [x.flatten()]

    def _axis(self, x: torch.Tensor) -> int:
        return check_axis(self, -1 if self.axis is None else self.axis, x)

    def _in_pieces(self, x: torch.Tensor, *parameters: torch.Tensor) -> list[torch.Tensor]:
        """``x`` in a shape that the parameters can be broadcast to, and the parameters in that shape."""
        if self.group is not None:
            return [cut(x, self._axis(x), self.group), *(p.unsqueeze(-1) for p in parameters)]  # (..., groups, group)
        if self.axis is None or x.dim() == 0:
            return [x, *parameters]
        shape = [1] * x.dim()
        shape[self._axis(x)] = -1
        return [x, *(p.reshape(shape) for p in parameters)]

    def _joined(self, pieces: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        return pieces if self.group is None else joined(pieces, like, self._axis(like))

    def quantize(
        self,
        x: torch.Tensor,
        rounding: Rounding | str = Rounding.NEAREST_EVEN,
        random: RandomBits | torch.Tensor | None = None,
        *,
        seed: int | None = None,
    ) -> Quantized:
        """The codes of ``x``, with their scales and zero points; :meth:`encode` does the same.

        Args:
            x: float32 or float64, any shape, not empty; finite, or without NaN if the scale is given.
            rounding: as for :func:`roundoff.formats.round`.
            random: as for :func:`roundoff.formats.round`.
            seed: as for :func:`roundoff.formats.round`.

        Raises:
            FormatError: ``x`` is empty, or holds a value without a code.
        """
        quantized: Quantized = self.encode(x, rounding, random=random, seed=seed)
        return quantized

    def dequantize(self, quantized: Quantized) -> torch.Tensor:
        """The numbers that codes represent: scale * (codes - zero_point), in the dtype of the scale, as ``decode``.

        Args:
            quantized: the result of :meth:`quantize`; the codes may be integers of any type.

        Raises:
            FormatError: the codes are not integers of the format's width.
        """
        return self.decode(quantized)

    def _encoded(self, x: torch.Tensor, options: RoundingOptions) -> Quantized:
        if x.numel() == 0:
            raise FormatError(f"{self}: an empty tensor has no scale")
        scale, zero = self._parameters(x)
        numbers = self.rounded(x, options.rounding, options.policy, options.random)
        pieces, in_scale, in_zero = self._in_pieces(numbers, scale, zero)
        # Each is an integer number of steps, below 2^17, rounded once: the quotient is nearest to it.
        codes = ((pieces / in_scale).round() + in_zero).clamp(self.code_min, self.code_max)
        if bool(codes.isnan().any()):  # With a given scale, infinity saturates.
            value = "NaN or infinity" if self.scale is None else "NaN"
            raise FormatError(f"{self} has no code for {value}, and the tensor holds one; replace it first")
        dtype = getattr(torch, f"{'' if self.signed else 'u'}int{8 if self.width <= 8 else 16}")
        codes = self._joined(codes, x).to(dtype)
        if self.group is not None and x.dim():
            scale, zero = (p.movedim(-1, self._axis(x)) for p in (scale, zero))
        return Quantized(codes, scale, zero.to(torch.int32))

    def _decoded(self, quantized: Quantized, dtype: torch.dtype | None) -> torch.Tensor:
        bits, scale, zero = stored_codes(self, quantized, Quantized)
        codes = integer_codes(self, bits, self.width, signed=self.signed)
        codes = where(codes > self.code_max, codes - (1 << self.width), codes)  # Two's complement.
        if self.group is not None and codes.dim():
            scale, zero = (p.movedim(self._axis(codes), -1) for p in (scale, zero))
        pieces, scale, zero = self._in_pieces(codes.to(scale.dtype), scale, zero)
        numbers = self._joined((pieces - zero) * scale, codes)
        return numbers if dtype is None else numbers.to(dtype)


register(
    IntegerFormat,
    beginnings=[
        Beginning(
            "intN",
            r"(u)?int(\d{1,3})",
            lambda match: {"width": int(match[2]), "signed": not match[1], "symmetric": not match[1]},
        )
    ],
    suffixes=[
        Suffix("_sym, _asym", "symmetric", "(a?sym)", lambda text: text == "sym"),
        Suffix("_gGROUP, _row", "group", r"(row|g\d{1,9})", lambda text: ROW if text == "row" else int(text[1:])),
        AXIS_SUFFIX,
        Suffix("_pPERCENTILE", "percentile", r"p(\d{1,3}(?:\.\d{1,12})?)", float),
        Suffix("_sSCALE", "scale", r"s(\d{1,20}(?:\.\d{1,20})?(?:e[+-]?\d{1,3})?)", float),
        Suffix("_zZERO", "zero_point", r"z(-?\d{1,6})", int),
    ],
    aliases={"int8": IntegerFormat(8), "uint8": IntegerFormat(8, signed=False, symmetric=False)},
    called="integer",
    shown=["int8"],
    verified=["int8"],
    drawn={"width": range(3, 17), "signed": (False, True), "symmetric": (False, True)},
)
