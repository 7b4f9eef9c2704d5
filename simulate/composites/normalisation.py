"""Layer, group, RMS and weight normalisation and their derivatives, step by step.

Forward: mean, deviation, its square, their mean, 1 / sqrt(. + eps), products. Backward, with y the normalised values
and g the gradient that arrives at them: (g - mean(g) - y mean(g y)) / sigma. A mean is a sum and a division.
"""

# ruff: noqa: SLF001  many ATen operations have names that begin with an underscore

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, finfo

from .layouts import as_images, contiguously

Three = tuple[Tensor, Tensor, Tensor]

_aten = torch.ops.aten


def moments(x: Tensor, axes: list[int], eps: float) -> Three:
    """Mean, variance and 1 / sqrt(variance + eps), each with the dimensions it was taken over."""
    mean = x.mean(axes, keepdim=True)
    deviation = x - mean
    variance = (deviation * deviation).mean(axes, keepdim=True)
    return mean, variance, torch.rsqrt(variance + eps)


def affine(y: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    """``y weight + bias``; None leaves out the product or the sum."""
    if weight is not None:
        y = y * weight
    return y if bias is None else y + bias


def gradient_through(gradient: Tensor, y: Tensor, rstd: Tensor, axes: list[int]) -> Tensor:
    """The gradient of the input that was normalised to ``y``, from the gradient of ``y``."""
    centred = gradient - gradient.mean(axes, keepdim=True)
    return (centred - y * (gradient * y).mean(axes, keepdim=True)) * rstd


def _native_layer_norm(x: Tensor, shape: Sequence[int], weight: Tensor | None, bias: Tensor | None, eps: float) -> Any:
    if x.numel() == 0:  # Nothing to compute: the kernel gives the shapes.
        return NotImplemented
    axes = list(range(x.dim() - len(shape), x.dim()))
    mean, _, rstd = moments(x, axes, eps)
    return affine((x - mean) * rstd, weight, bias), mean, rstd


def _native_layer_norm_backward(
    gradient: Tensor, x: Tensor, shape: Sequence[int], mean: Tensor, rstd: Tensor, weight: Tensor | None,
    bias: Tensor | None, mask: Sequence[bool],
) -> Any:  # fmt: skip
    if x.numel() == 0:
        return NotImplemented
    outer = x.dim() - len(shape)
    others = list(range(outer))
    y = (x - mean) * rstd  # The forward pass does not keep it.
    inner = gradient if weight is None else gradient * weight
    return (
        gradient_through(inner, y, rstd, list(range(outer, x.dim()))) if mask[0] else None,
        _summed(gradient * y, others) if mask[1] and weight is not None else None,
        _summed(gradient.clone(), others) if mask[2] and bias is not None else None,  # Never the gradient itself.
    )


def _summed(x: Tensor, axes: list[int]) -> Tensor:
    return x.sum(axes) if axes else x  # sum(()) would be the sum over everything


def columns(values: Tensor | None, shape: Sequence[int]) -> Tensor | None:
    """``values``, one for each channel, in a shape to broadcast."""
    return None if values is None else values.reshape(shape)


def _native_group_norm(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, n: int, c: int, size: int, groups: int, eps: float
) -> Any:
    if x.numel() == 0:
        return NotImplemented
    grouped = x.reshape(n, groups, -1)
    mean, _, rstd = moments(grouped, [2], eps)
    y = ((grouped - mean) * rstd).reshape(n, c, size)
    y = affine(y, columns(weight, (c, 1)), columns(bias, (c, 1))).reshape(x.shape)
    return as_images(y, x), mean.reshape(n, groups), rstd.reshape(n, groups)


def _native_group_norm_backward(
    gradient: Tensor, x: Tensor, mean: Tensor, rstd: Tensor, weight: Tensor | None, n: int, c: int, size: int,
    groups: int, mask: Sequence[bool],
) -> Any:  # fmt: skip
    if x.numel() == 0:
        return NotImplemented
    mean, rstd = mean.reshape(n, groups, 1), rstd.reshape(n, groups, 1)
    y = (x.reshape(n, groups, -1) - mean) * rstd
    by_channel = gradient.reshape(n, c, size)
    inner = by_channel if weight is None else by_channel * weight.reshape(c, 1)
    result = None
    if mask[0]:
        result = as_images(gradient_through(inner.reshape(n, groups, -1), y, rstd, [2]).reshape(x.shape), x)
    return (
        result,
        (by_channel * y.reshape(n, c, size)).sum((0, 2)) if mask[1] and weight is not None else None,
        by_channel.sum((0, 2)) if mask[2] else None,
    )


def _fused_rms_norm(x: Tensor, shape: Sequence[int], weight: Tensor | None, eps: float | None) -> tuple[Tensor, Tensor]:
    axes = list(range(x.dim() - len(shape), x.dim()))
    mean_square = (x * x).mean(axes, keepdim=True)
    rstd = torch.rsqrt(mean_square + (finfo(x.dtype).eps if eps is None else eps))
    return affine(x * rstd, weight, None), rstd


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
    product = (gradient * v).sum(axes, keepdim=True)  # Normalisation removes the part of the gradient along v.
    return (g / norm) * (gradient - v * (product / (norm * norm))), product / norm


FORMULAS: dict[Any, Callable[..., Any]] = {
    _aten.native_layer_norm: contiguously(_native_layer_norm),
    _aten.native_layer_norm_backward: contiguously(_native_layer_norm_backward),
    _aten.native_group_norm: _native_group_norm,
    _aten.native_group_norm_backward: _native_group_norm_backward,
    _aten._fused_rms_norm: contiguously(_fused_rms_norm),
    _aten._weight_norm_interface: _weight_norm,
    _aten._weight_norm_interface_backward: _weight_norm_backward,
}
if hasattr(_aten, "_fused_rms_norm_backward"):  # PyTorch 2.8 has none
    FORMULAS[_aten._fused_rms_norm_backward] = contiguously(_fused_rms_norm_backward)
