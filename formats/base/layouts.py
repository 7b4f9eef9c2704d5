"""Memory layouts of CPU tensors, for loops that visit elements in memory order."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch


def is_dense(x: torch.Tensor) -> bool:
    """Whether the elements of ``x`` fill one piece of memory without gaps or overlaps, in any order."""
    if x.is_contiguous():
        return True
    expected = 1
    for stride, size in sorted((s, n) for s, n in zip(x.stride(), x.shape, strict=True) if n != 1):
        if stride != expected:
            return False
        expected *= size
    return True


def in_place_of(
    work: Callable[..., None], source: torch.Tensor, target: torch.Tensor, *rest: Any, in_order: bool
) -> None:
    """Calls ``work(source, target, *rest)``, by way of one copy if their memory is not as loops need it.

    Args:
        work: takes two tensors of the same strides, whose elements fill one gapless piece of memory each.
        source: any strides.
        target: any strides, the same shape; may be ``source``.
        rest: further arguments.
        in_order: whether memory's order must be the row-major one; an element's random bits follow from that.
    """
    alike = not in_order and source.stride() == target.stride() and is_dense(source)
    if alike or (source.is_contiguous() and target.is_contiguous()):
        work(source, target, *rest)
    else:
        rows = source.clone(memory_format=torch.contiguous_format)
        work(rows, rows, *rest)
        target.copy_(rows)


def in_order_of_memory(x: torch.Tensor) -> torch.Tensor:
    """The elements of gapless memory in its order, one-dimensional."""
    return x.view(-1) if x.is_contiguous() else x.as_strided((x.numel(),), (1,))


def along(x: torch.Tensor, axis: int) -> tuple[int, int]:
    """(length, inner) of an axis of gapless memory, (outer, length, inner) numbers; ``inner`` is its stride."""
    if x.dim() == 0:
        return 1, 1
    length = x.shape[axis]
    if x.is_contiguous():
        return length, math.prod(x.shape[axis + 1 :])
    return length, x.stride(axis) if length > 1 else 1
