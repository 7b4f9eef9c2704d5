"""Give the results of decompositions the memory layout of PyTorch's kernels, since programs may view them."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch import Tensor

_IMAGES = ((torch.channels_last, 4), (torch.channels_last_3d, 5))


def contiguously(formula: Callable[..., Any]) -> Callable[..., Any]:
    """``formula`` on contiguous operands: for kernels with contiguous results, whatever their operands are."""

    @wraps(formula)
    def contiguous(*args: Any, **kwargs: Any) -> Any:
        operands = [x.contiguous() if isinstance(x, torch.Tensor) else x for x in args]
        return formula(*operands, **kwargs)

    return contiguous


def as_images(y: Tensor, x: Tensor) -> Tensor:
    """``y`` in the memory format of images that ``x`` has: channels last, else contiguous."""
    for layout, dimensions in _IMAGES:
        if x.dim() == dimensions and not x.is_contiguous() and x.is_contiguous(memory_format=layout):
            return y.contiguous(memory_format=layout)
    return y.contiguous()
