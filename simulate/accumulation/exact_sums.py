"""Contractions and sums that are exact until they are rounded once, as in a sufficiently wide accumulator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, final

import numpy as np
import torch

from ...formats import Overflow, RandomBits
from ...formats.arithmetic.patterns import INFINITY, LARGEST_EXPONENT, STORED_BITS
from ...formats.arithmetic.tail import rule
from ...formats.base.memory import in_memory
from ...formats.base.random_words import random_words
from ...formats.cpu.threads import compiled, in_pieces
from ...formats.families.floats import FP32, FP64
from ..rounded_once.carrier_rounding import CarrierRounding
from .arithmetic import ShapesUnfitError
from .exact_sum_loops import LIMBS, dot_products

_WORK = 64  # The time of a summand, in elements of other loops.


@final
class ExactSums:
    """Contractions and sums of one dtype, each result the exact one rounded once to that dtype.

    Args:
        dtype: float32 or float64.
        rounding: the rounding from exact sums to ``dtype``.
        draw: gives random bits, for stochastic rounding.
        start: initial value of the next contraction, broadcast to its results; None for zero.
    """

    def __init__(
        self,
        dtype: torch.dtype,
        rounding: CarrierRounding,
        draw: Callable[[], RandomBits | None],
        start: torch.Tensor | None = None,
    ) -> None:
        self._dtype, self._rounding, self._draw, self._start = dtype, rounding, draw, start

    def prepare(self, named: dict[str, Any]) -> tuple[ExactSums, dict[str, Any]]:
        """Includes the summand of an operation in the sum of its contraction; returns it, and the other arguments.

        That is ``beta * self``, unless the contraction is multiplied by an ``alpha``, or ``bias``.
        """
        beta, bias = named.get("beta"), named.get("bias")
        if beta is not None and beta != 0 and named["alpha"] == 1:
            addend = named["self"] if beta == 1 else named["self"] * beta
            columns = addend[..., None] if "vec" in named and addend.dim() else addend  # addmv's results are a column.
            return ExactSums(self._dtype, self._rounding, self._draw, columns), {**named, "beta": 0}
        if bias is not None:
            channels = bias.view(named["groups"], -1, 1) if "groups" in named else bias
            return ExactSums(self._dtype, self._rounding, self._draw, channels), {**named, "bias": None}
        return self, named

    def contract(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        """The products of matrices (B, M, K) and (B, K, N), any strides and device, as (B, M, N).

        A result that is exactly zero is +0. Infinities and NaN are as in any sum.

        Raises:
            ShapesUnfitError: these are not such matrices, or do not suit the start.
        """
        if a.dim() != 3 or b.dim() != 3 or a.shape[0] != b.shape[0] or a.shape[2] != b.shape[1]:
            raise ShapesUnfitError
        shape = (a.shape[0], a.shape[1], b.shape[2])
        start = self._start
        if start is not None:
            try:
                start = start.expand(shape)
            except RuntimeError:
                raise ShapesUnfitError from None
        if a.device.type != "cpu":
            on_cpu = ExactSums(self._dtype, self._rounding, self._draw, None if start is None else start.cpu())
            return on_cpu.contract(a.cpu(), b.cpu()).to(a.device)
        target = a.new_zeros(shape)
        if in_memory(target) and target.numel():
            self._compute(a.contiguous(), b.mT.contiguous(), start, target)
        return target

    def total(self, x: torch.Tensor) -> torch.Tensor:
        """Column sums: of (K, N) summands, any strides, the (N,) sums."""
        return self.contract(x.new_ones(1, 1, x.shape[0]), x[None])[0, 0]

    def add(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """``x + y``, in the carrier: of a contraction that was multiplied by an ``alpha``, and rounded before."""
        return x + y

    def _compute(self, a: torch.Tensor, bt: torch.Tensor, start: torch.Tensor | None, target: torch.Tensor) -> None:
        dtype = self._dtype
        over = (FP32 if dtype == torch.float32 else FP64).parameters(  # Results of an overflow.
            dtype, self._rounding.mode, Overflow.SATURATE if self._rounding.saturating else None
        )
        random = self._draw()
        words = None if random is None else random_words(random, target)
        begin = None if start is None else start.contiguous()
        carrier = STORED_BITS[dtype] + 1, 1 - LARGEST_EXPONENT[dtype], INFINITY[dtype]
        ends = over.over_positive, over.over_negative, self._rounding.saturating
        numbers = [*rule(self._rounding.mode, 64), *carrier, *ends, start is not None, words is not None]
        settings = np.array([number & (1 << 64) - 1 for number in numbers], np.uint64)
        kernel = compiled(dot_products, dtype)
        batches, rows, depth = a.shape
        addresses = a.data_ptr(), bt.data_ptr(), 0 if begin is None else begin.data_ptr(), target.data_ptr()
        drawn = 0 if words is None else words.data_ptr()

        def piece(first: int, last: int) -> None:
            limbs = np.zeros(LIMBS, np.int64)  # For each thread.
            shape = rows, depth, bt.shape[1]
            kernel(*addresses, first, last, *shape, limbs.ctypes.data, drawn, settings.ctypes.data)

        in_pieces(piece, batches * rows, batches * rows * bt.shape[1] * max(depth, 1) * _WORK)
