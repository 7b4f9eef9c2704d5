"""Rounding the tensors of a list, as optimizers have them: on a GPU by one launch for all."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from .base.format import Format
from .base.memory import has_kernels
from .base.modes import RandomBits, Rounding
from .base.on_device import is_captured
from .families.floats import FloatFormat


def round_list(
    tensors: Sequence[torch.Tensor],
    fmt: Format,
    rounding: Rounding = Rounding.NEAREST_EVEN,
    draw: Callable[[], RandomBits | None] | None = None,
) -> None:
    """Rounds every tensor in place; the same bits as one by one.

    To a float format, tensors on a device that has kernels are rounded by one launch. Those that are empty or not
    contiguous, all of other formats, and all while a CUDA graph is captured, are rounded one by one.

    Args:
        tensors: tensors of one dtype and device, each as :meth:`.Format.round_into` takes it.
        fmt: the format.
        rounding: the mode.
        draw: called for each tensor, in order: the random bits of stochastic rounding; None for the other modes.
    """
    randoms = [draw() if draw else None for _ in tensors]
    together = []
    one_launch = isinstance(fmt, FloatFormat) and not fmt.native and not is_captured()
    for i, x in enumerate(tensors):
        if one_launch and has_kernels(x) and x.is_contiguous() and x.numel():
            together.append(i)
        else:
            fmt.round_into(x, x, rounding, None, randoms[i])
    if together and isinstance(fmt, FloatFormat):
        fmt.round_list_on_device([tensors[i] for i in together], rounding, [randoms[i] for i in together])
