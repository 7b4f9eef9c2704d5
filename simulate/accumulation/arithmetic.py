"""Contractions and sums with a rounded accumulator, made of loops or tensor operations."""

from __future__ import annotations

from functools import cache
from math import prod
from typing import Any, NamedTuple

import torch
from torch.utils._python_dispatch import _disable_current_modes

from ...formats import FixedFormat
from ...formats.arithmetic.float_tensors import round_nearest
from ...formats.base.memory import in_memory
from ...formats.families.floats import FP64
from ..rounded_once.tensors import multiply_add as scaled_multiply_add
from ..rounded_once.tensors import odd, product_odd, two_sum
from .choice import Products, SumLoop, choose, choose_block, products_of
from .description import Accumulation, AccumulatorFormat

# Elements of the partial sums of blocks that one matrix product makes.
_CHUNK = 1 << 16
# Summands of each sum that one loop takes.
_TERMS = 1 << 16


def _round_to_nearest(x: torch.Tensor, fmt: AccumulatorFormat) -> torch.Tensor:
    return fmt.rounded(x) if isinstance(fmt, FixedFormat) else round_nearest(x, fmt.parameters(torch.float64))


def add(x: torch.Tensor, y: torch.Tensor, fmt: AccumulatorFormat) -> torch.Tensor:
    """``x + y`` rounded once to ``fmt``; float64, any device."""
    total, error = two_sum(x, y)
    return total if fmt == FP64 else _round_to_nearest(odd(total, error), fmt)


def multiply(x: torch.Tensor, y: torch.Tensor, fmt: AccumulatorFormat) -> torch.Tensor:
    """``x * y`` rounded once to ``fmt``; float64, broadcasting, any device."""
    return x * y if fmt == FP64 else _round_to_nearest(product_odd(x, y), fmt)


def multiply_add(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor, fmt: AccumulatorFormat) -> torch.Tensor:
    """``x * y + z`` rounded once to ``fmt``; float64, broadcasting, any device."""
    to_odd = fmt != FP64
    exact = scaled_multiply_add(x, y, z, to_odd=to_odd)
    return _round_to_nearest(exact, fmt) if to_odd else exact


class TensorSteps(NamedTuple):
    """The steps of an accumulation; with the methods of :class:`~roundoff.simulate.accumulation.choice.SumLoop`."""

    product: AccumulatorFormat | None
    """The format of products; None if products are exact."""
    total: AccumulatorFormat | None
    """The format of sums; None for float64's own sums."""
    exact: bool
    """Whether float64 holds the products of the operands."""
    compensated: bool = False
    dtype: torch.dtype = torch.float64

    def begin(self, like: torch.Tensor, *shape: int) -> list[torch.Tensor]:
        """Sums of that shape, all zero; if compensated, also their errors."""
        return [like.new_zeros(shape, dtype=self.dtype) for _ in range(1 + self.compensated)]

    def add(self, sums: list[torch.Tensor], a: torch.Tensor, b: torch.Tensor, first: int = 0, last: int = -1) -> None:
        """Adds the products of matrices (B, M, K) and (B, K, N), K from ``first`` to before ``last``, to the sums."""
        a, b = a.to(self.dtype), b.to(self.dtype)
        for k in range(first, a.shape[2] if last < 0 else last):
            x, y = a[:, :, k, None], b[:, k, None, :]  # An outer product for each batch.
            if not self.compensated:
                sums[0] = self._add_product(sums[0], x, y)
                continue
            assert self.total is not None
            before, lost = sums
            summand = self._add_product(-lost, x, y)
            after = add(before, summand, self.total)
            sums[:] = after, add(add(after, -before, self.total), -summand, self.total)

    def _add_product(self, z: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        product = x * y if self.product is None else multiply(x, y, self.product)
        if self.total is None:
            return z + product
        if self.product is None and not self.exact:
            return multiply_add(x, y, z, self.total)
        return add(z, product, self.total)


Steps = SumLoop | TensorSteps


def _native(*tensors: torch.Tensor) -> bool:
    """Whether the compiled loops can read the tensors."""
    return all(map(in_memory, tensors))


def _ones(steps: Steps, x: torch.Tensor, terms: int) -> torch.Tensor:
    """The first factor of summands like ``x``: (1, 1, terms), or more where loops read them."""
    return _shared_ones(steps.dtype) if isinstance(steps, SumLoop) else x.new_ones(1, 1, terms)


@cache
def _shared_ones(dtype: torch.dtype) -> torch.Tensor:
    with _disable_current_modes():  # a mode could make something else of it, which would be kept
        return torch.ones(1, 1, _TERMS, dtype=dtype, device="cpu")


def gapless(x: torch.Tensor) -> torch.Tensor:
    """``x`` with the strides of a new tensor, also where a size is 1."""
    return x.contiguous().view(-1).view(x.shape)


class ShapesUnfitError(Exception):
    """The operation does not take operands of such shapes; PyTorch's own operation raises the error."""


class RoundedSums:
    """Contractions and sums of one dtype under one :class:`~roundoff.simulate.accumulation.description.Accumulation`.

    Args:
        accumulation: the format, period and compensation of the sums.
        dtype: float32 or float64; must hold the formats.
    """

    def __init__(self, accumulation: Accumulation, dtype: torch.dtype) -> None:
        self._dtype = dtype
        self._products_fit = dtype == torch.float32  # in float64
        self._every = accumulation.every
        self._compensated = accumulation.compensated
        self._format: AccumulatorFormat = accumulation.format  # type: ignore[assignment]  # parsed when made
        self._product: AccumulatorFormat | None = accumulation.product  # type: ignore[assignment]
        self._steps_by_kind: dict[tuple[bool, torch.dtype, bool], Steps] = {}

    def prepare(self, named: dict[str, Any]) -> tuple[RoundedSums, dict[str, Any]]:
        """The arithmetic and the arguments for an operation: an accumulator with a separate format begins with zero."""
        return self, named

    def contract(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        """The products of matrices, each element summed over k in ascending order.

        Args:
            a: (B, M, K), any strides.
            b: (B, K, N), any strides, same dtype and device.

        Returns:
            (B, M, N), elements of the accumulator's format; +0 where K is 0.

        Raises:
            ShapesUnfitError: these are not such matrices.
        """
        # The loops trust the shapes, and the operation's own check comes after this.
        if a.dim() != 3 or b.dim() != 3 or a.shape[0] != b.shape[0] or a.shape[2] != b.shape[1]:
            raise ShapesUnfitError
        rows, columns = a.shape[1], b.shape[2]
        if rows > columns and columns < 32:  # the loops are vectorised over columns
            return self.contract(b.mT, a.mT).mT
        if a.shape[2] == 0 or a.shape[0] * rows * columns == 0:
            return a.new_zeros(a.shape[0], rows, columns)
        if self._every == 1:
            return self._contract_each(a.contiguous(), b.contiguous())
        # L > 1, in chunks that stay in cache: torch's own product for each block, or rounded products in float64
        native = _native(a, b)
        rounded: Steps | None = None
        if self._product is not None:
            a, b = a.double().contiguous(), b.double().contiguous()
            if native:
                rounded = choose_block(self._product, Products.EXACT if self._products_fit else products_of(a, b))
            else:
                rounded = TensorSteps(self._product, None, self._products_fit)
        batches, rows, columns = a.shape[0], a.shape[1], b.shape[2]
        result = a.new_empty(batches, rows, columns, dtype=self._dtype)
        chunk = _CHUNK * (torch.get_num_threads() if native else 1 << 14)
        batch_step = max(1, chunk // (rows * columns))
        row_step = rows if rows * columns <= chunk else max(1, chunk // columns)
        for batch in range(0, batches, batch_step):
            for row in range(0, rows, row_step):
                part = slice(batch, batch + batch_step), slice(row, row + row_step)
                result[part] = self._contract_chunk(a[part], b[part[0]], rounded)
        return result

    def total(self, x: torch.Tensor) -> torch.Tensor:
        """Column sums: of (K, N) summands, any strides, the (N,) sums, rounded as products' sums are."""
        terms, count = x.shape
        if terms == 0 or count == 0:
            return x.new_zeros(count)
        every = self._every
        if every > 1:
            full = terms // every * every
            # Sums of blocks in the carrier, which the accumulator then adds.
            parts = [x[:full].reshape(-1, every, count).sum(1)] if full else []
            x = torch.cat([*parts, x[full:].sum(0, keepdim=True)]) if full < terms else parts[0]
        steps = self._summand_steps(x, compensated=self._compensated)
        sums, x = steps.begin(x, 1, 1, count), x.contiguous()
        if len(x) <= _TERMS:
            steps.add(sums, _ones(steps, x, len(x)), x.unsqueeze(0), 0, len(x))
        else:
            for piece in torch.split(x.unsqueeze(0), _TERMS, 1):
                steps.add(sums, _ones(steps, x, piece.shape[1]), piece, 0, piece.shape[1])
        return sums[0].view(-1).to(self._dtype)

    def add(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """``x + y``, rounded once to the accumulator's format; ``y`` is broadcast. ``x`` may be overwritten."""
        steps = self._summand_steps(x, compensated=False)  # One addition leaves no error to add later.
        sums = [x.reshape(1, 1, -1).to(steps.dtype).contiguous()]
        if sums[0].numel():
            steps.add(sums, _ones(steps, x, 1), y.expand(x.shape).reshape(1, 1, -1).contiguous(), 0, 1)
        return sums[0].view(x.shape).to(self._dtype)

    def _contract_each(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        """L = 1; both gapless."""
        steps: Steps
        if _native(a, b):
            steps = choose(self._product, self._format, a.dtype, products_of(a, b), compensated=self._compensated)
        else:
            steps = TensorSteps(self._product, self._format, self._products_fit, self._compensated)
        sums = steps.begin(a, a.shape[0], a.shape[1], b.shape[2])
        steps.add(sums, a, b)
        return sums[0].to(self._dtype)

    def _contract_chunk(self, a: torch.Tensor, b: torch.Tensor, rounded: Steps | None) -> torch.Tensor:
        depth, every = a.shape[2], self._every
        shape = a.shape[0], a.shape[1], b.shape[2]
        steps = self._summand_steps(a, compensated=self._compensated)
        ones = _ones(steps, a, 1)
        sums = steps.begin(a, 1, 1, prod(shape))  # A row: all sums take a step together.
        for k in range(0, depth, every):
            if rounded is None:
                block = torch.bmm(a[..., k : k + every], b[:, k : k + every])
            else:
                blocks = rounded.begin(a, *shape)
                rounded.add(blocks, a, b, k, min(k + every, depth))
                block = blocks[0]
            steps.add(sums, ones, block.reshape(1, 1, -1), 0, 1)
        return sums[0].view(shape)

    def _summand_steps(self, x: torch.Tensor, *, compensated: bool) -> Steps:
        """Makes the arithmetic for products of 1 and values like in ``x``, which are exact."""
        key = _native(x), x.dtype, compensated
        steps = self._steps_by_kind.get(key)
        if steps is None:
            if key[0]:
                steps = choose(None, self._format, x.dtype, Products.SUMMANDS, compensated=compensated)
            else:
                steps = TensorSteps(None, self._format, True, compensated)
            self._steps_by_kind[key] = steps
        return steps
