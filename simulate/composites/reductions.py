"""Means, variances, norms, distances and softmax, step by step, with the signatures of the ATen operations.

A sum is one operation (how it is accumulated is another subject), and so are the largest element and a cumulative sum.
"""

# ruff: noqa: SLF001  many ATen operations have names that begin with an underscore

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from .layouts import contiguously

Dims = Sequence[int] | int | None

_aten = torch.ops.aten


def _axes(x: Tensor, dim: Dims) -> list[int]:
    """The dimensions that are reduced; None and an empty list mean all of them."""
    if dim is None or (not isinstance(dim, int) and len(dim) == 0):
        return list(range(x.dim()))
    return [axis % max(x.dim(), 1) for axis in ([dim] if isinstance(dim, int) else dim)]


def _reduced_count(x: Tensor, dim: Dims) -> int:
    return math.prod(x.shape[axis] for axis in _axes(x, dim)) if x.dim() else 1


def _over(total: Tensor, count: float) -> Tensor:
    # A count of 0 divides as a tensor: NaN, or infinity for a positive sum, as in ATen. Python would raise an error.
    return total / count if count else total / total.new_zeros(())


def _mean_dim(x: Tensor, dim: Dims, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Any:
    if not (dtype or x.dtype).is_floating_point and not (dtype or x.dtype).is_complex:
        return NotImplemented  # an error, which ATen words
    return _over(x.sum(_axes(x, dim), keepdim, dtype=dtype), _reduced_count(x, dim))


def _variance(x: Tensor, dim: Dims, correction: float | None, keepdim: bool) -> tuple[Tensor, Tensor]:
    axes = _axes(x, dim)
    mean = _over(x.sum(axes, keepdim=True), _reduced_count(x, dim))
    deviation = x - mean
    squares = deviation * deviation
    if x.is_complex():  # |deviation|^2
        parts = torch.view_as_real(deviation.resolve_conj())
        squares = (parts * parts).sum(-1)
    free = max(_reduced_count(x, dim) - (1 if correction is None else correction), 0)
    variance = _over(squares.sum(axes, keepdim), free)
    return variance, mean if keepdim else mean.squeeze(axes)


def _variance_formula(*, root: bool, with_mean: bool) -> Callable[..., Any]:
    """The variance or its root, optionally with the mean."""

    def formula(x: Tensor, dim: Dims = None, *, correction: float | None = None, keepdim: bool = False) -> Any:
        variance, mean = _variance(x, dim, correction, keepdim)
        spread = variance.sqrt() if root else variance
        return (spread, mean) if with_mean else spread

    return formula


def _power_sum(x: Tensor, order: float, axes: list[int], keepdim: bool) -> Tensor:
    if order == 2 and not x.is_complex():
        return (x * x).sum(axes, keepdim)
    size = x.abs()
    if order == 1:
        return size.sum(axes, keepdim)
    return (size * size if order == 2 else size.pow(order)).sum(axes, keepdim)


def _vector_norm(
    x: Tensor, order: float = 2, dim: Dims = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> Tensor:
    if dtype is not None:
        x = x.to(dtype)
    axes = _axes(x, dim)
    if order == 0:
        return (x != 0).to(x.abs().dtype).sum(axes, keepdim)
    if math.isinf(order):
        size = x.abs()
        if order > 0 and _reduced_count(x, dim) == 0:
            return size.sum(axes, keepdim)  # the norm of nothing is 0; there is no largest element
        return size.amax(axes, keepdim) if order > 0 else size.amin(axes, keepdim)
    total = _power_sum(x, order, axes, keepdim)
    if order == 1:
        return total
    return total.sqrt() if order == 2 else total.pow(1 / order)


def _renorm(x: Tensor, order: float, dim: int, largest: float) -> Tensor:
    dim %= x.dim()
    norm = _vector_norm(x, order, [axis for axis in range(x.dim()) if axis != dim], keepdim=True)
    factor = torch.where(norm > largest, (norm + 1e-7).reciprocal() * largest, torch.ones_like(norm))  # ATen's 1e-7.
    return x * factor


def _distance_gradient(gradient: Tensor, difference: Tensor, distance: Tensor, order: float) -> Tensor:
    """The gradient of ``difference`` from its norm's gradient; ``distance`` and its gradient lack the last axis."""
    distance, gradient = distance.unsqueeze(-1), gradient.unsqueeze(-1)
    if order == 0:
        return torch.zeros_like(difference)
    if order == 1:
        return gradient * difference.sign()
    if math.isinf(order):
        return gradient * difference.sign().masked_fill(difference.abs() != distance, 0)
    if order == 2:
        slope = gradient * difference / distance
    else:
        slope = gradient * (difference.sign() * difference.abs().pow(order - 1) / distance.pow(order - 1))
    return slope.masked_fill(distance == 0, 0)


def _pairs(x: Tensor) -> tuple[Tensor, Tensor]:
    i, j = torch.triu_indices(len(x), len(x), 1, device=x.device)
    return i, j


def _pdist_forward(x: Tensor, order: float = 2) -> Tensor:
    i, j = _pairs(x)
    return _vector_norm(x[i] - x[j], order, [-1])


def _pdist_backward(gradient: Tensor, x: Tensor, order: float, distance: Tensor) -> Tensor:
    i, j = _pairs(x)
    parts = _distance_gradient(gradient, x[i] - x[j], distance, order)
    # Each row's gradient is one sum, over the pairs in which it is first or second.
    return torch.zeros_like(x).index_add(0, torch.cat([i, j]), torch.cat([parts, -parts]))


def _shifted(x: Tensor, dim: int) -> Tensor:
    return x - x.amax(dim, keepdim=True) if x.numel() else x  # Exponentials are then at most 1.


def _softmax(x: Tensor, dim: int, to_single: bool) -> Any:
    if to_single:
        return NotImplemented  # from half precision only, which no simulation holds
    exponential = torch.exp(_shifted(x, dim))
    return exponential / exponential.sum(dim, keepdim=True)


def _log_softmax(x: Tensor, dim: int, to_single: bool) -> Any:
    if to_single:
        return NotImplemented
    shifted = _shifted(x, dim)
    return shifted - torch.log(torch.exp(shifted).sum(dim, keepdim=True))


def _safe_softmax(x: Tensor, dim: int, dtype: torch.dtype | None = None) -> Tensor:
    x = x if dtype is None else x.to(dtype)
    nothing = (x == -math.inf).all(dim, keepdim=True)
    result: Tensor = _softmax(x, dim, to_single=False)
    return result.masked_fill(nothing, 0)


def _masked_softmax(x: Tensor, mask: Tensor, dim: int | None = None, kind: int | None = None) -> Any:
    if kind != 2 and mask.shape != x.shape:
        return NotImplemented  # Masks of sources and of pairs have shapes by conventions of nn.Transformer.
    return _safe_softmax(x.masked_fill(mask, -math.inf), -1 if dim is None else dim)


def _logsumexp(x: Tensor, dim: Dims, keepdim: bool = False) -> Any:
    if not (x.is_floating_point() and x.numel()):
        return NotImplemented
    axes = _axes(x, dim)
    largest = x.amax(axes, keepdim=True)
    largest = largest.masked_fill(largest.abs() == math.inf, 0)  # Infinity less itself would be NaN.
    total = torch.exp(x - largest).sum(axes, keepdim)
    return torch.log(total) + (largest if keepdim else largest.squeeze(axes))


def _logcumsumexp(x: Tensor, dim: int) -> Any:
    if not (x.dim() and x.shape[dim] and x.is_floating_point()):
        return NotImplemented
    parts = list(x.unbind(dim))
    for number in range(1, len(parts)):
        parts[number] = torch.logaddexp(parts[number - 1], parts[number])
    return torch.stack(parts, dim)


FORMULAS: dict[Any, Callable[..., Any]] = {
    _aten.mean.default: lambda x, *, dtype=None: _mean_dim(x, None, dtype=dtype),
    _aten.mean.dim: _mean_dim,
    _aten.var.correction: _variance_formula(root=False, with_mean=False),
    _aten.std.correction: _variance_formula(root=True, with_mean=False),
    _aten.var_mean.correction: _variance_formula(root=False, with_mean=True),
    _aten.std_mean.correction: _variance_formula(root=True, with_mean=True),
    _aten.linalg_vector_norm: _vector_norm,
    **dict.fromkeys(
        (_aten.norm.Scalar, _aten.norm.ScalarOpt_dim, _aten.norm.ScalarOpt_dim_dtype, _aten.norm.ScalarOpt_dtype),
        lambda x, order=2, *others, **given: _vector_norm(x, 2 if order is None else order, *others, **given),
    ),
    _aten.dist: lambda x, y, order=2: _vector_norm(x - y, order),
    _aten.renorm: contiguously(_renorm),
    _aten._cdist_forward: lambda x, y, order, _: _vector_norm(x.unsqueeze(-2) - y.unsqueeze(-3), order, [-1]),
    _aten._cdist_backward: lambda gradient, x, y, order, distance: _distance_gradient(
        gradient, x.unsqueeze(-2) - y.unsqueeze(-3), distance, order
    ).sum(-2),
    _aten._pdist_forward: _pdist_forward,
    _aten._pdist_backward: _pdist_backward,
    _aten._softmax: contiguously(_softmax),
    _aten._softmax_backward_data: contiguously(
        lambda gradient, y, dim, _: (gradient - (gradient * y).sum(dim, keepdim=True)) * y
    ),
    _aten._log_softmax: contiguously(_log_softmax),
    _aten._log_softmax_backward_data: contiguously(
        lambda gradient, y, dim, _: gradient - torch.exp(y) * gradient.sum(dim, keepdim=True)
    ),
    _aten._safe_softmax: contiguously(_safe_softmax),
    _aten._masked_softmax: contiguously(_masked_softmax),
    _aten.logsumexp: _logsumexp,
    _aten.logcumsumexp: _logcumsumexp,
}
