"""Contractions by the fused sums of a matrix unit."""

from __future__ import annotations

from typing import Any, NamedTuple, final

import numpy as np
import torch

from ...formats import FloatFormat, FormatError, Overflow, round
from ...formats.arithmetic.float_layout import Specials
from ...formats.cpu.threads import compiled, in_pieces
from .arithmetic import ShapesUnfitError
from .fused_loops import NOTHING, fused_products
from .fused_sum import FusedSum

_WORK = 8  # The time of a product, in elements of other loops.
_CLOSE = 2.0**-22  # an element times a scale is rounded to float32
_E4M3 = FloatFormat(4, 3, Specials.FN, overflow=Overflow.SATURATE)
_GROUPS = ((0, 0), (1, 0), (1, 128), (128, 128), (1, 32))
"""Groups of operands that share a scale, (rows, elements of a row); 0: all of them. The first is the whole tensor."""


class UnfitOperandsError(FormatError):
    """The operands of a product are not values that the matrix unit takes."""


class ScaledElements(NamedTuple):
    """Operands as a matrix unit has them: values of its formats, and the scales that were applied to them."""

    elements: torch.Tensor
    """(batches, rows, depth)."""
    scales: torch.Tensor | None
    """float64, (batches or 1, rows or 1, blocks); None: all are 1."""
    exponents: torch.Tensor
    """Exponents of the elements, with subnormal values' exponents raised to the format's emin; as ``elements``."""
    block: int = 0
    """Number of elements along a row that share a scale."""


@final
class FusedSums:
    """Contractions of one dtype by chains of the fused sums of a matrix unit.

    Operands that were rounded with scales are divided into elements and scales; the sum is of products of elements, and
    the scales are applied to it afterwards in float32, as the epilogues of libraries do.

    Args:
        unit: the sums of a matrix unit.
        dtype: float32 or float64.
    """

    def __init__(self, unit: FusedSum, dtype: torch.dtype) -> None:
        self._unit, self._dtype = unit, dtype
        self._carrier = torch.float32 if _fits_in_float32(unit) else torch.float64
        result = unit.result
        numbers = (
            unit.block, unit.fraction_bits, result.significand_bits, result.emin, result.emax, unit.to_nearest,
            max(unit.floor, NOTHING), unit.restart or 0, unit.group,
        )  # fmt: skip
        self._settings = np.array(numbers, np.int64)

    def prepare(self, named: dict[str, Any]) -> tuple[FusedSums, dict[str, Any]]:
        """Returns the arithmetic and the arguments for an operation: a chain begins with zero."""
        return self, named

    def add(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Computes ``x + y`` in float32, rounded to nearest, as an epilogue does; ``y`` is broadcast."""
        return (x.double() + y.double()).float().to(self._dtype)

    def total(self, x: torch.Tensor) -> torch.Tensor:  # noqa: ARG002  the interface of sums
        """Refuses plain sums, which do not run on matrix units."""
        raise ShapesUnfitError

    def contract(self, a: torch.Tensor, b: torch.Tensor, addend: torch.Tensor | None = None) -> torch.Tensor:
        """Computes products of matrices (B, M, K) and (B, K, N), any strides and device.

        Args:
            a: The left matrices.
            b: The right matrices.
            addend: (B, M, N) first values of the chains, in the accumulator's format; None: zeros. Not with scales.

        Raises:
            ShapesUnfitError: The shapes do not fit.
            UnfitOperandsError: The unit does not take such values.
        """
        if a.dim() != 3 or b.dim() != 3 or a.shape[0] != b.shape[0] or a.shape[2] != b.shape[1]:
            raise ShapesUnfitError
        if a.shape[1] > b.shape[2] and b.shape[2] < 32:
            return self.contract(b.mT, a.mT, None if addend is None else addend.mT).mT
        shape = (a.shape[0], a.shape[1], b.shape[2])
        if a.shape[2] == 0 or 0 in shape:
            return a.new_zeros(shape) if addend is None else addend.clone()
        x, y = a.detach().cpu(), b.detach().cpu()
        finite = bool(x.isfinite().all() and y.isfinite().all())
        if not finite:  # NaN and infinities go their usual way; the sums of the others are as without them
            special = torch.bmm(x.double(), y.double())
            x, y = (torch.where(operand.isfinite(), operand, 0.0) for operand in (x, y))
        left, right = self._elements(x.contiguous()), self._elements(y.mT.contiguous())
        if addend is not None and not (left.scales is None and right.scales is None):
            raise UnfitOperandsError(f"{self._unit} begins a sum with an addend only where operands have no scales")
        result = self._scaled(left, right) if addend is None else self._chain(left, right, addend)
        if not finite:
            result = torch.where(special.isfinite(), result, special)
        return result.to(a.device, self._dtype)

    def _elements(self, x: torch.Tensor) -> ScaledElements:
        """Divides (B, R, K) operands into elements of a format of the unit and scales."""
        formats = self._unit.operands
        if not formats:
            return ScaledElements(x, None, _exponents(x, -1022))
        for fmt in formats:
            if torch.equal(round(x, fmt), x):
                return ScaledElements(x, None, _exponents(x, fmt.emin, grouped=self._unit.group > 1))
        x = x.double()
        for group in ((1, self._unit.scaled),) if self._unit.scaled else _GROUPS:
            for fmt in formats:
                elements = _with_e4m3_scales(x, fmt) if self._unit.scaled == 16 else _divided(x, fmt, group, self._unit)
                if elements is not None:
                    return elements
        names = " or ".join(map(str, formats))
        raise UnfitOperandsError(
            f"{self._unit} multiplies operands in {names}, with or without scales, and these are not: round them first,"
            f" by a policy such as fp8-tensorwise or a rule with operands={str(formats[0])!r}"
        )

    def _scaled(self, left: ScaledElements, right: ScaledElements) -> torch.Tensor:
        """Computes the sums of products of elements, and applies the scales."""
        if left.scales is None and right.scales is None:
            return self._chain(left, right)
        depth = left.elements.shape[2]
        size = min(operand.block for operand in (left, right) if operand.scales is not None)
        total: torch.Tensor | None = None
        for first in range(0, depth, size):
            part = slice(first, first + size)
            alpha = torch.ones(1, 1, 1, dtype=torch.float64)
            for operand, is_left in ((left, True), (right, False)):
                if operand.scales is not None:
                    scale = operand.scales[..., first // operand.block, None]
                    alpha = alpha * (scale if is_left else scale.mT)
            a, b = (ScaledElements(x.elements[..., part], None, x.exponents[..., part]) for x in (left, right))
            # The scales' product and the scaled sum are float32; float64 holds both before they are rounded.
            scaled = self._chain(a, b) * alpha.float().double()
            total = (scaled if total is None else total + scaled).float().double()
        assert total is not None
        return total

    def _chain(self, left: ScaledElements, right: ScaledElements, addend: torch.Tensor | None = None) -> torch.Tensor:
        dtype = self._carrier
        operands = (left.elements, right.elements.mT, left.exponents, right.exponents.mT)
        a, b, a_exponents, b_exponents = (x.to(dtype).contiguous() for x in operands)
        (batches, rows, depth), columns = a.shape, b.shape[2]
        target, chain = (torch.zeros(batches, rows, columns, dtype=dtype) for _ in range(2))
        if addend is not None:
            chain.copy_(addend)
        kernel = compiled(fused_products, dtype)
        addresses = tuple(x.data_ptr() for x in (a, b, a_exponents, b_exponents, target, chain))
        settings = self._settings.ctypes.data

        def piece(first: int, last: int) -> None:
            kernel(*addresses, first, last, rows, depth, columns, settings)

        in_pieces(piece, batches * rows, batches * rows * columns * depth * _WORK)
        return target.double()


def _fits_in_float32(unit: FusedSum) -> bool:
    """Whether float32 holds the products of the unit's operands and the sums of a block exactly."""
    bits = [2 * fmt.significand_bits + 2 for fmt in unit.operands]
    ranges = [fmt.emax - fmt.emin + fmt.significand_bits for fmt in unit.operands]
    sums = unit.fraction_bits + 2 + (unit.block + 1).bit_length()
    return bool(unit.operands) and not unit.scaled and max(*bits, sums) <= 24 and max(ranges) <= 40


def _exponents(x: torch.Tensor, emin: int, *, grouped: bool = False) -> torch.Tensor:
    """Returns max(floor(log2 |x|), emin) of each element, or 0 if grouped; NOTHING for zero; in the type of ``x``."""
    if grouped:  # only scales have exponents
        return torch.zeros_like(x).masked_fill_(x == 0, NOTHING)
    return torch.frexp(x).exponent.sub_(1).clamp_(min=emin).masked_fill_(x == 0, NOTHING).to(x.dtype)


def _with_e4m3_scales(x: torch.Tensor, fmt: FloatFormat) -> ScaledElements | None:
    """Divides operands into elements, E4M3 scales of blocks of 16, and the tensor's scale; None where that fails."""
    assert fmt.max is not None
    top, depth = x.abs().amax(), x.shape[2]
    of_tensor = torch.where(top > 0, top / (_E4M3.max * fmt.max), 1.0).float().double()
    padded = torch.nn.functional.pad(x / of_tensor, (0, -depth % 16))
    blocks = padded.view(*x.shape[:2], -1, 16)
    largest = blocks.abs().amax(3, keepdim=True)
    scales, elements = torch.ones_like(largest), torch.zeros_like(blocks)
    fits = largest == 0
    # The largest element of a block is the format's, unless the scale was rounded coarsely.
    for element in sorted((value for value in fmt.values().tolist() if value > 0), reverse=True):
        candidate = round(largest / element, _E4M3).clamp(min=2.0**-9)
        divided = round(blocks / candidate, fmt)
        matches = ((divided * candidate - blocks).abs() <= 2 * _CLOSE * blocks.abs()).all(3, keepdim=True)
        scales = torch.where(matches & ~fits, candidate, scales)
        elements = torch.where(matches & ~fits, divided, elements)
        fits |= matches
    if not bool(fits.all()):
        return None
    exponents = _exponents(elements, 0, grouped=True) + _exponents(scales, _E4M3.emin)
    products, powers = (blocks.flatten(2)[..., :depth] for blocks in (elements * scales, exponents))
    return ScaledElements(products, of_tensor.view(1, 1, 1), powers, depth)


def _elements_of(x: torch.Tensor, scales: torch.Tensor, fmt: FloatFormat) -> torch.Tensor | None:
    """Returns elements of the format that give ``x``, times these scales, up to roundings; None if that fails."""
    elements = round(x / scales, fmt)
    return elements if bool(((elements * scales).sub_(x).abs_() <= (_CLOSE * x).abs_()).all()) else None


def _divided(x: torch.Tensor, fmt: FloatFormat, group: tuple[int, int], unit: FusedSum) -> ScaledElements | None:
    """Divides operands into elements of a format and scales; returns None where that fails.

    Args:
        x: (batches, rows, depth).
        fmt: Format of the elements.
        group: Number of rows, and of elements along a row, that share a scale; 0 for all.
        unit: the sums of a matrix unit; some units apply the blocks' powers of two themselves.
    """
    of_blocks = unit.scaled == 32
    batches, rows, depth = x.shape
    height, length = group[0] or rows, group[1] or depth
    if length > depth and not of_blocks and height == 1:  # then the row is the only block
        return None
    padding = 0, -depth % length, 0, -rows % height
    padded = torch.nn.functional.pad(x, padding) if any(padding) else x
    groups = padded.view(batches, padded.shape[1] // height, height, padded.shape[2] // length, length)
    largest = torch.maximum(groups.amax((2, 4), keepdim=True), -groups.amin((2, 4), keepdim=True))
    if group == (0, 0):
        largest = largest.amax(0, keepdim=True)
    assert fmt.max is not None
    mantissa, nearest = torch.frexp(largest / fmt.max)
    nearest = nearest - (mantissa == 0.5).int()  # so that 2^nearest is the least power of two that is not smaller
    powers = torch.ldexp(torch.ones_like(largest), nearest)
    if of_blocks:  # the scale of the OCP's MX formats first
        exponent = torch.frexp(largest).exponent - 1 - fmt.emax
        candidates = (torch.ldexp(torch.ones_like(largest), exponent), powers)
    else:  # The least power of two: elements at a larger scale would also be elements at this one.
        candidates = (powers, (largest / fmt.max).float().double())
    for scales in candidates:
        factors = torch.where(largest > 0, scales, 1.0)
        # Most wrong guesses fail in the first row.
        if _elements_of(groups[:1, :1, :1], factors[:1, :1], fmt) is None:
            continue
        elements = _elements_of(groups, factors, fmt)
        if elements is not None:
            exponents = _exponents(elements, fmt.emin, grouped=unit.group > 1)
            if of_blocks:  # the scales' exponents are part of the products'
                exponents = exponents + (torch.frexp(factors).exponent - 1)
            parts = (blocks.reshape(padded.shape)[:, :rows, :depth] for blocks in (elements, exponents))
            if of_blocks:
                return ScaledElements(x, None, [*parts][1])
            of_rows = factors.expand(-1, -1, height, -1, -1).reshape(factors.shape[0], -1, factors.shape[3])[:, :rows]
            return ScaledElements(next(parts), of_rows, next(parts), length)
    return None
