"""Batch normalisation in its many variants, and its derivative, step by step (see :mod:`.normalisation`)."""

# ruff: noqa: SLF001  many ATen operations have names that begin with an underscore

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from .layouts import as_images
from .normalisation import affine, columns, gradient_through, moments

_aten = torch.ops.aten


def _batch_norm(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, running: tuple[Tensor | None, Tensor | None], training: bool,
    momentum: float, eps: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]:  # fmt: skip
    """The result, the values for the derivative (mean and 1 / sigma), and the running statistics after this step."""
    shape = [1, x.shape[1], *[1] * (x.dim() - 2)]
    x = as_images(x, x)
    mean_running, var_running = running
    if not training:
        assert mean_running is not None
        assert var_running is not None
        y = (x - mean_running.reshape(shape)) * torch.rsqrt(var_running + eps).reshape(shape)
        result = affine(y, columns(weight, shape), columns(bias, shape))
        return result, x.new_empty(0), x.new_empty(0), mean_running, var_running
    mean, variance, rstd = moments(x, [axis for axis in range(x.dim()) if axis != 1], eps)
    result = affine((x - mean) * rstd, columns(weight, shape), columns(bias, shape))
    mean, variance, rstd = mean.reshape(-1), variance.reshape(-1), rstd.reshape(-1)
    if mean_running is not None:
        mean_running = mean_running * (1 - momentum) + mean * momentum
    if var_running is not None:
        count = x.numel() // x.shape[1]
        unbiased = variance * (count / max(count - 1, 1))  # Only the running variance is unbiased.
        var_running = var_running * (1 - momentum) + unbiased * momentum
    return result, mean, rstd, mean_running, var_running


def _native_batch_norm(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, running_mean: Tensor | None, running_var: Tensor | None,
    training: bool, momentum: float, eps: float,
) -> Any:  # fmt: skip
    if x.numel() == 0:
        return NotImplemented
    running = (running_mean, running_var)
    result, mean, rstd, *updated = _batch_norm(x, weight, bias, running, training, momentum, eps)
    if training:
        for old, new in zip(running, updated, strict=True):  # In place, as the kernel does.
            if old is not None and new is not None:
                old.copy_(new)
    return result, mean, rstd


def _native_batch_norm_legit_functional(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor, var: Tensor, training: bool, *settings: float
) -> Any:
    if x.numel() == 0:
        return NotImplemented
    results = _batch_norm(x, weight, bias, (mean, var), training, *settings)
    return results if training else (*results[:3], mean.clone(), var.clone())


def _in_mode(training: bool) -> Callable[..., Any]:
    """The operation that trains, or does not, as its name says."""

    def formula(x: Tensor, weight: Any, bias: Any, mean: Any, var: Any, *settings: Any) -> Any:
        return _native_batch_norm(x, weight, bias, mean, var, training, *settings)

    return formula


def _reserving(formula: Callable[..., Any]) -> Callable[..., Any]:
    """Makes a formula with one result more: a kernel's reserve for its derivative, here empty."""

    def with_reserve(x: Tensor, *args: Any) -> Any:
        results = formula(x, *args)
        return results if results is NotImplemented else (*results, x.new_empty(0, dtype=torch.uint8))

    return with_reserve


def _native_batch_norm_backward(
    gradient: Tensor, x: Tensor, weight: Tensor | None, running_mean: Tensor | None, running_var: Tensor | None,
    mean: Tensor | None, rstd: Tensor | None, training: bool, eps: float, mask: Sequence[bool],
) -> Any:  # fmt: skip
    if x.numel() == 0:
        return NotImplemented
    if not training:
        assert running_var is not None
        mean, rstd = running_mean, torch.rsqrt(running_var + eps)
    assert mean is not None
    assert rstd is not None
    shape = [1, x.shape[1], *[1] * (x.dim() - 2)]
    axes = [axis for axis in range(x.dim()) if axis != 1]
    x, gradient = as_images(x, x), as_images(gradient, x)
    y = (x - mean.reshape(shape)) * rstd.reshape(shape)
    result = None
    if mask[0]:
        inner = gradient if weight is None else gradient * weight.reshape(shape)
        result = gradient_through(inner, y, rstd.reshape(shape), axes) if training else inner * rstd.reshape(shape)
    return (result, (gradient * y).sum(axes) if mask[1] else None, gradient.sum(axes) if mask[2] else None)


def _cudnn_batch_norm_backward(x: Tensor, gradient: Tensor, *args: Any) -> Any:
    weight, running_mean, running_var, mean, rstd, eps = args[:6]
    mask = True, True, True
    return _native_batch_norm_backward(gradient, x, weight, running_mean, running_var, mean, rstd, True, eps, mask)


FORMULAS: dict[Any, Callable[..., Any]] = {
    _aten.native_batch_norm: _native_batch_norm,
    _aten.native_batch_norm_backward: _native_batch_norm_backward,
    _aten._native_batch_norm_legit.default: _native_batch_norm,
    _aten._native_batch_norm_legit.no_stats: lambda x, weight, bias, *settings: _native_batch_norm(
        x, weight, bias, None, None, *settings
    ),
    _aten._native_batch_norm_legit_no_training: _in_mode(training=False),
    _aten._native_batch_norm_legit_functional: _native_batch_norm_legit_functional,
    _aten._batch_norm_with_update: _reserving(_in_mode(training=True)),
    _aten._batch_norm_no_update: _reserving(_in_mode(training=False)),
    # Without the forward pass's reserve.
    _aten.batch_norm_backward: lambda *args: _native_batch_norm_backward(*args[:-1]),
    _aten.cudnn_batch_norm: _reserving(_native_batch_norm),
    _aten.cudnn_batch_norm_backward: _cudnn_batch_norm_backward,
    _aten.miopen_batch_norm: _native_batch_norm,
    _aten.miopen_batch_norm_backward: _cudnn_batch_norm_backward,
}
