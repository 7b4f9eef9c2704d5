"""The steps of low-precision accumulation as tensor operations, in float64: the same bits as the loops on the CPU."""

from __future__ import annotations

from typing import NamedTuple

import torch

from ...formats import FloatFormat
from ...formats.arithmetic.float_tensors import round_nearest
from ...formats.families.floats import FP64
from ..rounded_once.error_free_tensors import multiply_add as scaled_multiply_add
from ..rounded_once.error_free_tensors import odd, product_odd, two_sum


def add(x: torch.Tensor, y: torch.Tensor, fmt: FloatFormat) -> torch.Tensor:
    """``x + y`` rounded once to ``fmt``; float64, any device."""
    total, error = two_sum(x, y)
    return total if fmt == FP64 else round_nearest(odd(total, error), fmt.parameters(torch.float64))


def multiply(x: torch.Tensor, y: torch.Tensor, fmt: FloatFormat) -> torch.Tensor:
    """``x * y`` rounded once to ``fmt``; float64, broadcasting, any device."""
    return x * y if fmt == FP64 else round_nearest(product_odd(x, y), fmt.parameters(torch.float64))


def multiply_add(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor, fmt: FloatFormat) -> torch.Tensor:
    """``x * y + z`` rounded once to ``fmt``; float64, broadcasting, any device."""
    to_odd = fmt != FP64
    exact = scaled_multiply_add(x, y, z, to_odd=to_odd)
    return round_nearest(exact, fmt.parameters(torch.float64)) if to_odd else exact


class TensorSteps(NamedTuple):
    """The steps of an accumulation; to be used like a :class:`~roundoff.simulate.accumulation.choice.Loop`."""

    product: FloatFormat | None
    """The format of products; None if products are exact."""
    total: FloatFormat | None
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
            x, y = a[:, :, k, None], b[:, k, None, :]
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
