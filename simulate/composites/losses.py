"""Losses and their derivatives, step by step, with the signatures of the ATen operations in ``FORMULAS``.

A mean is a sum and a division. The negative log-likelihood is a sum of entries; only its division is a separate step.
Left as they are: multi_margin_loss, multilabel_margin_loss, ctc_loss.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .layouts import contiguously

_aten = torch.ops.aten
_NONE, _MEAN, _SUM = 0, 1, 2  # at::Reduction


def _reduced(losses: Tensor, reduction: int) -> Tensor:
    if reduction == _MEAN:
        return losses.mean()
    return losses.sum() if reduction == _SUM else losses


def _element_gradient(gradient: Tensor, x: Tensor, reduction: int) -> Tensor:
    """The gradient that arrives at each element."""
    return gradient * (1 / x.numel()) if reduction == _MEAN and x.numel() else gradient  # 1 / n is a Python number.


def _mse_loss(x: Tensor, target: Tensor, reduction: int = _MEAN) -> Tensor:
    error = x - target
    return _reduced(error * error, reduction)


def _mse_loss_backward(gradient: Tensor, x: Tensor, target: Tensor, reduction: int) -> Tensor:
    factor = 2 / x.numel() if reduction == _MEAN and x.numel() else 2
    return (x - target) * factor * gradient


def _smooth_l1_loss(x: Tensor, target: Tensor, reduction: int = _MEAN, beta: float = 1.0) -> Tensor:
    size = (x - target).abs()
    if beta == 0:
        return _reduced(size, reduction)
    return _reduced(torch.where(size < beta, 0.5 * size * size / beta, size - 0.5 * beta), reduction)


def _smooth_l1_loss_backward(gradient: Tensor, x: Tensor, target: Tensor, reduction: int, beta: float) -> Tensor:
    error = x - target
    share = _element_gradient(gradient, x, reduction)
    outside = torch.sign(error) * share
    if beta == 0:
        return outside
    return torch.where(error.abs() >= beta, outside, error * share / beta)


def _huber_loss(x: Tensor, target: Tensor, reduction: int = _MEAN, delta: float = 1.0) -> Tensor:
    size = (x - target).abs()
    return _reduced(torch.where(size <= delta, 0.5 * size * size, delta * (size - 0.5 * delta)), reduction)


def _huber_loss_backward(gradient: Tensor, x: Tensor, target: Tensor, reduction: int, delta: float) -> Tensor:
    error = x - target
    share = _element_gradient(gradient, x, reduction)
    return torch.where(error.abs() >= delta, torch.sign(error) * share * delta, error * share)


def _soft_margin_loss_backward(gradient: Tensor, x: Tensor, target: Tensor, reduction: int) -> Tensor:
    exponential = torch.exp(-target * x)
    return -target * exponential / (exponential + 1) * _element_gradient(gradient, x, reduction)


def _binary_cross_entropy(x: Tensor, target: Tensor, weight: Tensor | None = None, reduction: int = _MEAN) -> Tensor:
    if x.is_cpu and bool(((x < 0) | (x > 1)).any()):
        message = "all elements of input should be between 0 and 1"
        raise RuntimeError(message)
    # The kernel bounds logarithms at -100, so that 0 log 0 is 0.
    losses = (target - 1) * torch.log1p(-x).clamp(min=-100) - target * torch.log(x).clamp(min=-100)
    return _reduced(losses if weight is None else losses * weight, reduction)


def _binary_cross_entropy_backward(
    gradient: Tensor, x: Tensor, target: Tensor, weight: Tensor | None = None, reduction: int = _MEAN
) -> Tensor:
    result = gradient * (x - target) / ((1 - x) * x).clamp(min=1e-12)
    if weight is not None:
        result = result * weight
    return result / x.numel() if reduction == _MEAN and x.numel() else result


def _binary_cross_entropy_with_logits(
    x: Tensor, target: Tensor, weight: Tensor | None = None, pos_weight: Tensor | None = None, reduction: int = _MEAN
) -> Tensor:
    log_sigmoid = x.clamp(max=0) - torch.log1p(torch.exp(-x.abs()))
    if pos_weight is not None:
        log_sigmoid = ((pos_weight - 1) * target + 1) * log_sigmoid
    losses = (1 - target) * x - log_sigmoid
    return _reduced(losses if weight is None else losses * weight, reduction)


def _nll_loss(operation: Callable[..., tuple[Tensor, Tensor]]) -> Callable[..., Any]:
    def formula(x: Tensor, target: Tensor, weight: Tensor | None, reduction: int, ignore: int) -> Any:
        if reduction != _MEAN:
            return NotImplemented
        total, total_weight = operation(x, target, weight, _SUM, ignore)
        return total / total_weight, total_weight

    return formula


def _nll_loss_backward(operation: Callable[..., Tensor]) -> Callable[..., Any]:
    def formula(
        gradient: Tensor, x: Tensor, target: Tensor, weight: Tensor | None, reduction: int, ignore: int, total: Tensor
    ) -> Any:
        if reduction != _MEAN:
            return NotImplemented
        return operation(gradient / total, x, target, weight, _SUM, ignore, total)

    return formula


FORMULAS: dict[Any, Callable[..., Any]] = {
    _aten.mse_loss: _mse_loss,
    _aten.mse_loss_backward: contiguously(_mse_loss_backward),
    _aten.smooth_l1_loss: _smooth_l1_loss,
    _aten.smooth_l1_loss_backward: contiguously(_smooth_l1_loss_backward),
    _aten.huber_loss: _huber_loss,
    _aten.huber_loss_backward: contiguously(_huber_loss_backward),
    _aten.soft_margin_loss: lambda x, target, reduction=_MEAN: _reduced(torch.log1p(torch.exp(-target * x)), reduction),
    _aten.soft_margin_loss_backward: _soft_margin_loss_backward,
    _aten.binary_cross_entropy: _binary_cross_entropy,
    _aten.binary_cross_entropy_backward: _binary_cross_entropy_backward,
    _aten.binary_cross_entropy_with_logits: _binary_cross_entropy_with_logits,
    _aten.nll_loss_forward: _nll_loss(_aten.nll_loss_forward.default),
    _aten.nll_loss_backward: _nll_loss_backward(_aten.nll_loss_backward.default),
    _aten.nll_loss2d_forward: _nll_loss(_aten.nll_loss2d_forward.default),
    _aten.nll_loss2d_backward: _nll_loss_backward(_aten.nll_loss2d_backward.default),
}
