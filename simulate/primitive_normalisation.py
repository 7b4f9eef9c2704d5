"""Layer, group, batch and weight normalisation and their derivatives, step by step.

Forward: mean, deviation, its square, their mean, 1 / sqrt(. + eps), products. Backward, with y the normalised values
and g the gradient that arrives at them: (g - mean(g) - y mean(g y)) / sigma. A mean is a sum and a division.
"""

# ruff: noqa: SLF001  many ATen operations have names that begin with an underscore

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from torch import Tensor

    Three = tuple[Tensor, Tensor, Tensor]

_aten = torch.ops.aten


def _moments(x: Tensor, axes: list[int], eps: float) -> Three:
    """Mean, variance and 1 / sqrt(variance + eps), each with the dimensions it was taken over."""
    mean = x.mean(axes, keepdim=True)
    deviation = x - mean
    variance = (deviation * deviation).mean(axes, keepdim=True)
    return mean, variance, torch.rsqrt(variance + eps)


def _affine(y: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    if weight is not None:
        y = y * weight
    return y if bias is None else y + bias


def _back(gradient: Tensor, y: Tensor, rstd: Tensor, axes: list[int]) -> Tensor:
    centred = gradient - gradient.mean(axes, keepdim=True)
    return (centred - y * (gradient * y).mean(axes, keepdim=True)) * rstd


def _native_layer_norm(x: Tensor, shape: Sequence[int], weight: Tensor | None, bias: Tensor | None, eps: float) -> Any:
    if x.numel() == 0:
        return NotImplemented
    axes = list(range(x.dim() - len(shape), x.dim()))
    x = x.contiguous()
    mean, _, rstd = _moments(x, axes, eps)
    return _affine((x - mean) * rstd, weight, bias), mean, rstd


def _native_layer_norm_backward(
    gradient: Tensor,
    x: Tensor,
    shape: Sequence[int],
    mean: Tensor,
    rstd: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mask: Sequence[bool],
) -> Any:
    if x.numel() == 0:
        return NotImplemented
    outer = x.dim() - len(shape)
    others = list(range(outer))
    y = (x.contiguous() - mean) * rstd
    inner = gradient if weight is None else gradient * weight
    return (
        _back(inner, y, rstd, list(range(outer, x.dim()))) if mask[0] else None,
        _summed(gradient * y, others) if mask[1] and weight is not None else None,
        _summed(gradient.clone(), others) if mask[2] and bias is not None else None,
    )


def _summed(x: Tensor, axes: list[int]) -> Tensor:
    return x.sum(axes) if axes else x  # sum(()) would be the sum over everything


def _columns(values: Tensor | None, shape: Sequence[int]) -> Tensor | None:
    return None if values is None else values.view(shape)


def _native_group_norm(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, n: int, c: int, size: int, groups: int, eps: float
) -> Any:
    if x.numel() == 0:
        return NotImplemented
    grouped = x.reshape(n, groups, -1)
    mean, _, rstd = _moments(grouped, [2], eps)
    y = ((grouped - mean) * rstd).view(n, c, size)
    y = _affine(y, _columns(weight, (c, 1)), _columns(bias, (c, 1))).view(x.shape)
    return _like(y, x), mean.view(n, groups), rstd.view(n, groups)


def _like(y: Tensor, x: Tensor) -> Tensor:
    """``y`` in the memory format of images that ``x`` has."""
    for layout, dimensions in ((torch.channels_last, 4), (torch.channels_last_3d, 5)):
        if x.dim() == dimensions and not x.is_contiguous() and x.is_contiguous(memory_format=layout):
            return y.contiguous(memory_format=layout)
    return y


def _native_group_norm_backward(
    gradient: Tensor,
    x: Tensor,
    mean: Tensor,
    rstd: Tensor,
    weight: Tensor | None,
    n: int,
    c: int,
    size: int,
    groups: int,
    mask: Sequence[bool],
) -> Any:
    if x.numel() == 0:
        return NotImplemented
    mean, rstd = mean.view(n, groups, 1), rstd.view(n, groups, 1)
    y = (x.reshape(n, groups, -1) - mean) * rstd
    by_channel = gradient.reshape(n, c, size)
    inner = by_channel if weight is None else by_channel * weight.view(c, 1)
    result = None
    if mask[0]:
        result = _like(_back(inner.view(n, groups, -1), y, rstd, [2]).view(x.shape), x)
    return (
        result,
        (by_channel * y.view(n, c, size)).sum((0, 2)) if mask[1] and weight is not None else None,
        by_channel.sum((0, 2)) if mask[2] else None,
    )


def _batch_norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running: tuple[Tensor | None, Tensor | None],
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]:
    """The result, what the derivative needs (mean and 1 / sigma), and the running statistics after this step."""
    shape = [1, x.shape[1], *[1] * (x.dim() - 2)]
    mean_running, var_running = running
    if not training:
        assert mean_running is not None
        assert var_running is not None
        y = (x - mean_running.view(shape)) * torch.rsqrt(var_running + eps).view(shape)
        result = _affine(y, _columns(weight, shape), _columns(bias, shape))
        return result, x.new_empty(0), x.new_empty(0), mean_running, var_running
    mean, variance, rstd = _moments(x, [axis for axis in range(x.dim()) if axis != 1], eps)
    result = _affine((x - mean) * rstd, _columns(weight, shape), _columns(bias, shape))
    mean, variance, rstd = mean.view(-1), variance.view(-1), rstd.view(-1)
    if mean_running is not None:
        mean_running = mean_running * (1 - momentum) + mean * momentum
    if var_running is not None:
        count = x.numel() // x.shape[1]
        unbiased = variance * (count / max(count - 1, 1))
        var_running = var_running * (1 - momentum) + unbiased * momentum
    return result, mean, rstd, mean_running, var_running


def _native_batch_norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
) -> Any:
    if x.numel() == 0:
        return NotImplemented
    running = (running_mean, running_var)
    result, mean, rstd, *updated = _batch_norm(x, weight, bias, running, training, momentum, eps)
    if training:
        for old, new in zip(running, updated, strict=True):
            if old is not None and new is not None:
                old.copy_(new)
    return result, mean, rstd


def _native_batch_norm_legit_no_stats(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, training: bool, momentum: float, eps: float
) -> Any:
    return _native_batch_norm(x, weight, bias, None, None, training, momentum, eps)


def _native_batch_norm_legit_no_training(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor,
    running_var: Tensor,
    momentum: float,
    eps: float,
) -> Any:
    return _native_batch_norm(x, weight, bias, running_mean, running_var, False, momentum, eps)


def _native_batch_norm_legit_functional(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor,
    running_var: Tensor,
    training: bool,
    momentum: float,
    eps: float,
) -> Any:
    if x.numel() == 0:
        return NotImplemented
    results = _batch_norm(x, weight, bias, (running_mean, running_var), training, momentum, eps)
    return results if training else (*results[:3], running_mean.clone(), running_var.clone())


def _batch_norm_with_update(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor,
    running_var: Tensor,
    momentum: float,
    eps: float,
) -> Any:
    results = _native_batch_norm(x, weight, bias, running_mean, running_var, True, momentum, eps)
    return results if results is NotImplemented else (*results, x.new_empty(0, dtype=torch.uint8))


def _batch_norm_no_update(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    momentum: float,
    eps: float,
) -> Any:
    results = _native_batch_norm(x, weight, bias, running_mean, running_var, False, momentum, eps)
    return results if results is NotImplemented else (*results, x.new_empty(0, dtype=torch.uint8))


def _cudnn_batch_norm(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
) -> Any:
    results = _native_batch_norm(x, weight, bias, running_mean, running_var, training, momentum, eps)
    return results if results is NotImplemented else (*results, x.new_empty(0, dtype=torch.uint8))


def _native_batch_norm_backward(
    gradient: Tensor,
    x: Tensor,
    weight: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    mean: Tensor | None,
    rstd: Tensor | None,
    training: bool,
    eps: float,
    mask: Sequence[bool],
) -> Any:
    if x.numel() == 0:
        return NotImplemented
    if not training:
        assert running_var is not None
        mean, rstd = running_mean, torch.rsqrt(running_var + eps)
    assert mean is not None
    assert rstd is not None
    shape = [1, x.shape[1], *[1] * (x.dim() - 2)]
    axes = [axis for axis in range(x.dim()) if axis != 1]
    y = (x - mean.view(shape)) * rstd.view(shape)
    result = None
    if mask[0]:
        inner = gradient if weight is None else gradient * weight.view(shape)
        result = _back(inner, y, rstd.view(shape), axes) if training else inner * rstd.view(shape)
    return (
        result,
        (gradient * y).sum(axes) if mask[1] else None,
        gradient.sum(axes) if mask[2] else None,
    )


def _batch_norm_backward(
    gradient: Tensor,
    x: Tensor,
    weight: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    mean: Tensor | None,
    rstd: Tensor | None,
    update: bool,
    eps: float,
    mask: Sequence[bool],
    _reserve: Tensor,
) -> Any:
    return _native_batch_norm_backward(gradient, x, weight, running_mean, running_var, mean, rstd, update, eps, mask)


def _cudnn_batch_norm_backward(
    x: Tensor,
    gradient: Tensor,
    weight: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    mean: Tensor | None,
    rstd: Tensor | None,
    eps: float,
    _reserve: Tensor | None = None,
) -> Any:
    return _native_batch_norm_backward(
        gradient, x, weight, running_mean, running_var, mean, rstd, True, eps, (True, True, True)
    )


def _fused_rms_norm(x: Tensor, shape: Sequence[int], weight: Tensor | None, eps: float | None) -> tuple[Tensor, Tensor]:
    axes = list(range(x.dim() - len(shape), x.dim()))
    mean_square = (x * x).mean(axes, keepdim=True)
    rstd = torch.rsqrt(mean_square + (torch.finfo(x.dtype).eps if eps is None else eps))
    return _affine(x * rstd, weight, None), rstd


def _fused_rms_norm_backward(
    gradient: Tensor, x: Tensor, shape: Sequence[int], rstd: Tensor, weight: Tensor | None, mask: Sequence[bool]
) -> tuple[Tensor | None, Tensor | None]:
    outer = x.dim() - len(shape)
    axes = list(range(outer, x.dim()))
    y = x * rstd
    inner = gradient if weight is None else gradient * weight
    return (
        (inner - y * (inner * y).mean(axes, keepdim=True)) * rstd if mask[0] else None,
        _summed(gradient * y, list(range(outer))) if mask[1] and weight is not None else None,
    )


def _weight_norm(v: Tensor, g: Tensor, dim: int = 0) -> tuple[Tensor, Tensor]:
    norm = torch.linalg.vector_norm(v, 2, [axis for axis in range(v.dim()) if axis != dim], keepdim=True)
    return v * (g / norm), norm


def _weight_norm_backward(gradient: Tensor, v: Tensor, g: Tensor, norm: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    axes = [axis for axis in range(v.dim()) if axis != dim]
    product = (gradient * v).sum(axes, keepdim=True)
    return (g / norm) * (gradient - v * (product / (norm * norm))), product / norm


FORMULAS: dict[Any, Callable[..., Any]] = {
    _aten.native_layer_norm: _native_layer_norm,
    _aten.native_layer_norm_backward: _native_layer_norm_backward,
    _aten.native_group_norm: _native_group_norm,
    _aten.native_group_norm_backward: _native_group_norm_backward,
    _aten.native_batch_norm: _native_batch_norm,
    _aten.native_batch_norm_backward: _native_batch_norm_backward,
    _aten._native_batch_norm_legit.default: _native_batch_norm,
    _aten._native_batch_norm_legit.no_stats: _native_batch_norm_legit_no_stats,
    _aten._native_batch_norm_legit_no_training: _native_batch_norm_legit_no_training,
    _aten._native_batch_norm_legit_functional: _native_batch_norm_legit_functional,
    _aten._batch_norm_with_update: _batch_norm_with_update,
    _aten._batch_norm_no_update: _batch_norm_no_update,
    _aten.batch_norm_backward: _batch_norm_backward,
    _aten.cudnn_batch_norm: _cudnn_batch_norm,
    _aten.cudnn_batch_norm_backward: _cudnn_batch_norm_backward,
    _aten.miopen_batch_norm: _native_batch_norm,
    _aten.miopen_batch_norm_backward: _cudnn_batch_norm_backward,
    _aten._fused_rms_norm: _fused_rms_norm,
    _aten._fused_rms_norm_backward: _fused_rms_norm_backward,
    _aten._weight_norm_interface: _weight_norm,
    _aten._weight_norm_interface_backward: _weight_norm_backward,
}
