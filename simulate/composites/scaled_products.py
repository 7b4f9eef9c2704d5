"""Operations that scale and add the result of a contraction or a product: each product, scaling and addition is a step.

A contraction itself (mm, bmm, convolution without bias) stays one operation; how it accumulates is another subject.
"""

# ruff: noqa: SLF001  many ATen operations have names that begin with an underscore

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

_aten = torch.ops.aten


def _times(x: Tensor, factor: float) -> Tensor:
    return x if factor == 1 else x * factor


def _add_product(start: Tensor, product: Tensor, beta: float, alpha: float) -> Tensor:
    product = _times(product, alpha)
    if beta == 0:  # then even NaN is ignored
        return product
    return product + _times(start, beta)  # In this order the result has the product's strides.


def _added_to(product: Callable[[Tensor, Tensor], Tensor]) -> Callable[..., Tensor]:
    """``beta x + alpha product(a, b)``."""

    def formula(x: Tensor, a: Tensor, b: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
        return _add_product(x, product(a, b), beta, alpha)

    return formula


def _addmm_activation(
    x: Tensor, a: Tensor, b: Tensor, *, beta: float = 1, alpha: float = 1, use_gelu: bool = False
) -> Tensor:
    result = _add_product(x, torch.mm(a, b), beta, alpha)
    # The fused CUDA kernel has the tanh form, the others call gelu.
    approximate = "tanh" if x.device.type == "cuda" else "none"
    return torch.nn.functional.gelu(result, approximate=approximate) if use_gelu else result.relu()


def _merged(a: Tensor, b: Tensor) -> Tensor:
    """The sum of a batch of products, as one contraction, over the batch as well."""
    length = b.shape[0] * b.shape[1]
    return torch.mm(a.transpose(0, 1).reshape(a.shape[1], length), b.reshape(length, b.shape[2]))


def _addr(x: Tensor, a: Tensor, b: Tensor, *, beta: float = 1, alpha: float = 1) -> Any:
    if not (x.is_floating_point() or x.is_complex()):
        return NotImplemented  # integers and booleans have rules of their own
    product = _times(a.unsqueeze(1) * b, alpha)
    return product if beta == 0 else _times(x, beta) + product


def _lerp_scalar(start: Tensor, end: Tensor, weight: float) -> Tensor:
    if abs(weight) < 0.5:
        return start + (end - start) * weight
    return end - (end - start) * (1 - weight)


def _lerp_tensor(start: Tensor, end: Tensor, weight: Tensor) -> Tensor:
    difference = end - start
    return torch.where(weight.abs() < 0.5, start + weight * difference, end - difference * (1 - weight))


def _if_scaled(formula: Callable[[Tensor, Any, float], Tensor]) -> Callable[..., Any]:
    """Returns a formula for calls with a factor ``alpha``; the operation is primitive without."""

    def scaled(x: Tensor, y: Any, alpha: float = 1) -> Any:
        return NotImplemented if alpha == 1 else formula(x, y, alpha)

    return scaled


def _linalg_cross(x: Tensor, y: Tensor, *, dim: int = -1) -> Tensor:
    x, y = torch.broadcast_tensors(x, y)  # type: ignore[no-untyped-call]
    return x.roll(-1, dim) * y.roll(-2, dim) - x.roll(-2, dim) * y.roll(-1, dim)


def _convolution(x: Tensor, weight: Tensor, bias: Tensor | None, *rest: Any) -> Any:
    if bias is None:
        return NotImplemented
    result: Tensor = _aten.convolution.default(x, weight, None, *rest)
    return result + bias.reshape(-1, *[1] * (weight.dim() - 2))


FORMULAS: dict[Any, Callable[..., Any]] = {
    _aten.addmm: _added_to(torch.mm),
    _aten._addmm_activation: _addmm_activation,
    _aten.baddbmm: _added_to(torch.bmm),
    _aten.addbmm: _added_to(_merged),
    _aten.addmv: _added_to(torch.mv),
    _aten.addr: _addr,
    _aten.addcmul: lambda x, a, b, *, value=1: x + _times(a, value) * b,
    _aten.addcdiv: lambda x, a, b, *, value=1: x + _times(a, value) / b,
    _aten.lerp.Scalar: _lerp_scalar,
    _aten.lerp.Tensor: _lerp_tensor,
    _aten.add: _if_scaled(lambda x, y, alpha: x + y * alpha),
    _aten.sub: _if_scaled(lambda x, y, alpha: x - y * alpha),
    _aten.rsub: _if_scaled(lambda x, y, alpha: y - x * alpha),
    _aten.index_add: lambda x, dim, index, source, *, alpha=1: (
        NotImplemented if alpha == 1 else x.index_add(dim, index, source * alpha)
    ),
    _aten.linalg_cross: _linalg_cross,
    _aten.polar: lambda size, angle: torch.complex(size * angle.cos(), size * angle.sin()),
    _aten.convolution: _convolution,
}
