"""Activation functions and their derivatives, step by step.

Each function here has the name and the signature of the ATen operation that it computes, and the intermediate values
of PyTorch's kernel. Not here, because one arithmetic operation and a selection is all they do:
relu, leaky_relu, prelu, rrelu, threshold, hardtanh, hardshrink, softshrink, their derivatives, hardsigmoid_backward.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ...formats import where

_aten = torch.ops.aten

_SQRT_HALF = 0.70710678118654752440
_SQRT_2_OVER_PI = 0.79788456080286535588
_GELU_CUBE = 0.044715


def _softplus(x: Tensor, beta: float = 1, threshold: float = 20) -> Tensor:
    z = x if beta == 1 else x * beta
    soft = torch.log1p(torch.exp(z))
    return where(z > threshold, x, soft if beta == 1 else soft / beta)


def _softplus_backward(gradient: Tensor, x: Tensor, beta: float, threshold: float) -> Tensor:
    z = x if beta == 1 else x * beta
    exponential = torch.exp(z)
    return where(z > threshold, gradient, gradient * exponential / (exponential + 1))


def _log_sigmoid_forward(x: Tensor) -> tuple[Tensor, Tensor]:
    exponential = torch.exp(-x.abs())
    # Only the CPU kernel hands the exponential to its derivative.
    buffer = exponential if x.device.type == "cpu" else x.new_empty(0)
    return x.clamp(max=0) - torch.log1p(exponential), buffer


def _log_sigmoid_backward(gradient: Tensor, x: Tensor, buffer: Tensor) -> Tensor:
    exponential = buffer if buffer.numel() else torch.exp(-x.abs())
    part = exponential / (1 + exponential)
    return gradient * where(x < 0, 1 - part, part)


def _silu_backward(gradient: Tensor, x: Tensor) -> Tensor:
    y = torch.sigmoid(x)
    return gradient * y * (1 + x * (1 - y))


def _mish_backward(gradient: Tensor, x: Tensor) -> Tensor:
    y = torch.tanh(torch.log1p(torch.exp(x)))
    return gradient * (y + x * torch.sigmoid(x) * (1 - y * y))


def _gelu(x: Tensor, *, approximate: str = "none") -> Tensor:
    if approximate == "tanh":
        return 0.5 * x * (1 + torch.tanh(_SQRT_2_OVER_PI * (x + _GELU_CUBE * (x * x * x))))
    return 0.5 * x * (1 + torch.erf(x * _SQRT_HALF))


def _gelu_backward(gradient: Tensor, x: Tensor, *, approximate: str = "none") -> Tensor:
    if approximate == "tanh":
        square = x * x
        y = torch.tanh(_SQRT_2_OVER_PI * (x + _GELU_CUBE * (square * x)))
        slope = _SQRT_2_OVER_PI * (1 + 3 * _GELU_CUBE * square)
        return gradient * (0.5 * (1 + y) + 0.5 * x * (1 - y * y) * slope)
    distribution = 0.5 * (1 + torch.erf(x * _SQRT_HALF))
    density = torch.exp(x * x * -0.5) * (0.5 * _SQRT_2_OVER_PI)
    return gradient * (distribution + x * density)


def _hardswish_backward(gradient: Tensor, x: Tensor) -> Tensor:
    inside = gradient * (x / 3 + 0.5)
    return where(x < 3, inside.masked_fill(x <= -3, 0), gradient)


def _elu(x: Tensor, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> Tensor:
    inner = x if input_scale == 1 else x * input_scale
    return where(x > 0, x if scale == 1 else x * scale, torch.expm1(inner) * (alpha * scale))


def _elu_backward(
    gradient: Tensor, alpha: float, scale: float, input_scale: float, is_result: bool, x: Tensor
) -> Tensor:
    if is_result:
        negative = gradient * input_scale * (x + alpha * scale)
    else:
        negative = gradient * (input_scale * alpha * scale) * torch.exp(x if input_scale == 1 else x * input_scale)
    return where(x <= 0, negative, gradient if scale == 1 else gradient * scale)


def _glu(x: Tensor, dim: int = -1) -> Tensor:
    first, second = x.chunk(2, dim)
    return first * torch.sigmoid(second)


def _glu_backward(gradient: Tensor, x: Tensor, dim: int) -> Tensor:
    first, second = x.chunk(2, dim)
    y = torch.sigmoid(second)
    return torch.cat([y * gradient, (1 - y) * y * gradient * first], dim)


def _logit(x: Tensor, eps: float | None = None) -> Tensor:
    if eps is None:
        z = x
    elif eps <= 1 - eps:
        z = x.clamp(eps, 1 - eps)
    else:  # the kernel looks at the lower bound first, and clamp at the upper one
        z = where(x < eps, eps, where(x > 1 - eps, 1 - eps, x))
    return torch.log(z / (1 - z))


def _logit_backward(gradient: Tensor, x: Tensor, eps: float | None = None) -> Tensor:
    inside = gradient / (x * (1 - x))
    if eps is None:
        return where((x < 0) | (x > 1), float("nan"), inside)
    return where((x < eps) | (x > 1 - eps), 0.0, inside)


def _native_dropout(x: Tensor, p: float, train: bool | None) -> tuple[Tensor, Tensor]:
    if train is False or p == 0:
        return x.clone(), torch.ones_like(x, dtype=torch.bool)
    mask = torch.empty_like(x, dtype=torch.bool).bernoulli_(1 - p)
    return x * mask * (0 if p == 1 else 1 / (1 - p)), mask


FORMULAS: dict[Any, Callable[..., Any]] = {
    _aten.sigmoid_backward: lambda gradient, y: gradient * ((1 - y) * y).conj(),
    _aten.tanh_backward: lambda gradient, y: gradient * (1 - y * y).conj(),
    _aten.silu: lambda x: x * torch.sigmoid(x),
    _aten.mish: lambda x: x * torch.tanh(torch.log1p(torch.exp(x))),
    _aten.hardsigmoid: lambda x: (x + 3).clamp(0, 6) / 6,
    _aten.hardswish: lambda x: x * (x + 3).clamp(0, 6) / 6,
    _aten.celu: lambda x, alpha=1.0: where(x > 0, x, torch.expm1(x / alpha) * alpha),
} | {
    getattr(_aten, formula.__name__.removeprefix("_")): formula
    for formula in (
        _softplus, _softplus_backward, _log_sigmoid_forward, _log_sigmoid_backward, _silu_backward, _mish_backward,
        _gelu, _gelu_backward, _hardswish_backward, _elu, _elu_backward, _glu, _glu_backward, _logit, _logit_backward,
        _native_dropout,
    )
}  # fmt: skip
