"""Averages over windows, as sums over windows and a division by the number of positions in each window.

Interpolation is a contraction with fixed weights, and stays one operation.
"""

# ruff: noqa: SLF001  many ATen operations have names that begin with an underscore

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from .layouts import as_images

_aten = torch.ops.aten


def _positions(x: Tensor, shape: Sequence[int], window: tuple[Sequence[int], ...], padded: bool) -> Tensor:
    """Counts the positions in each window, by the rule of the average-pooling kernels."""
    kernel, stride, padding = window
    rank = len(kernel)
    counts = torch.ones((), dtype=x.dtype, device=x.device)
    for axis in range(rank):
        size, pad = x.shape[axis - rank], padding[axis]
        starts = [position * stride[axis] - pad for position in range(shape[axis - rank])]
        ends = [min(start + kernel[axis], size + pad) for start in starts]
        if not padded:
            starts, ends = [max(start, 0) for start in starts], [min(end, size) for end in ends]
        line = [float(end - start) for start, end in zip(starts, ends, strict=True)]
        counts = counts.unsqueeze(-1) * torch.tensor(line, dtype=x.dtype, device=x.device)
    return counts


def _windows(rank: int, *settings: Sequence[int]) -> tuple[Sequence[int], ...]:
    """Kernel, stride and padding, each with a number for every axis."""
    kernel, stride, padding = settings
    return tuple(list(x) * rank if len(x) == 1 else x for x in (kernel, stride or kernel, padding))


def _average_pool(operation: Callable[..., Tensor], rank: int) -> Callable[..., Any]:
    """Sums over windows, divided by the number of positions in each."""

    def formula(
        x: Tensor, kernel: Sequence[int], stride: Sequence[int] = (), padding: Sequence[int] = (0,), ceil: bool = False,
        padded: bool = True, divisor: int | None = None,
    ) -> Any:  # fmt: skip
        if divisor == 1:
            return NotImplemented
        window = _windows(rank, kernel, stride, padding)
        total = operation(x, *window, ceil, padded, 1)  # With divisor 1 the kernel sums.
        return total / (divisor or _positions(x, total.shape, window, padded))

    return formula


def _average_pool_backward(operation: Callable[..., Tensor], rank: int) -> Callable[..., Any]:
    def formula(
        gradient: Tensor, x: Tensor, kernel: Sequence[int], stride: Sequence[int], padding: Sequence[int], ceil: bool,
        padded: bool, divisor: int | None,
    ) -> Any:  # fmt: skip
        if divisor == 1:
            return NotImplemented
        window = _windows(rank, kernel, stride, padding)
        shares = gradient / (divisor or _positions(x, gradient.shape, window, padded))
        return operation(shares, x, *window, ceil, padded, 1)

    return formula


def _adaptive_cells(x: Tensor, shape: Sequence[int]) -> list[tuple[Any, ...]]:
    """The windows, the last dimension fastest."""
    sizes = x.shape[x.dim() - len(shape) :]
    # Window k of n begins at floor(k size / n) and ends at ceil((k + 1) size / n).
    lines = [
        [slice(k * size // parts, -(-(k + 1) * size // parts)) for k in range(parts)]
        for size, parts in zip(sizes, shape, strict=True)
    ]
    return [(..., *cell) for cell in itertools.product(*lines)]


def _adaptive_average_pool(x: Tensor, shape: Sequence[int]) -> Any:
    if x.numel() == 0 or 0 in shape:
        return NotImplemented
    axes = list(range(-len(shape), 0))
    averages = [x[cell].mean(axes) for cell in _adaptive_cells(x, shape)]
    result = torch.stack(averages, -1).reshape(*x.shape[: -len(shape)], *shape)
    return as_images(result, x) if len(shape) == 2 else result


def _adaptive_average_pool_backward(rank: int) -> Callable[..., Any]:
    def formula(gradient: Tensor, x: Tensor) -> Any:
        if x.numel() == 0 or gradient.numel() == 0:
            return NotImplemented
        shape = gradient.shape[-rank:]
        result = torch.zeros_like(x, memory_format=torch.contiguous_format)
        places: list[tuple[Any, ...]] = [(..., *place) for place in itertools.product(*map(range, shape))]
        broadcast: tuple[Any, ...] = (..., *[None] * rank)
        for cell, place in zip(_adaptive_cells(x, shape), places, strict=True):
            window = result[cell]
            share = gradient[place] / math.prod(window.shape[-rank:])
            window += share[broadcast]
        return as_images(result, x) if rank == 2 else result

    return formula


FORMULAS: dict[Any, Callable[..., Any]] = {
    _aten.avg_pool2d: _average_pool(_aten.avg_pool2d.default, 2),
    _aten.avg_pool2d_backward: _average_pool_backward(_aten.avg_pool2d_backward.default, 2),
    _aten.avg_pool3d: _average_pool(_aten.avg_pool3d.default, 3),
    _aten.avg_pool3d_backward: _average_pool_backward(_aten.avg_pool3d_backward.default, 3),
    _aten._adaptive_avg_pool2d: _adaptive_average_pool,
    _aten._adaptive_avg_pool2d_backward: _adaptive_average_pool_backward(2),
    _aten._adaptive_avg_pool3d: _adaptive_average_pool,
    _aten._adaptive_avg_pool3d_backward: _adaptive_average_pool_backward(3),
}
