"""Launching the kernels: where tensors lie, where random words come from, and what a format is, on the device."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import triton

from ..arithmetic.tail import rule
from ..base.layouts import is_dense
from ..base.modes import WORD_BITS, RandomBits
from ..base.random_words import key_base, words32
from . import blocks as of_blocks
from . import each as of_each
from .places import FIXED, GIVEN, HASHED
from .translation import in_triton

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..base.modes import How, Random, Rounding

_BLOCK = 1024
_WIDEST = 2048
_MOST_DIMENSIONS = 6


def round_each(
    source: torch.Tensor, target: torch.Tensor, how: How, number_of: Any, data: Sequence[torch.Tensor], *,
    by_place: bool = False, **parts: Any,
) -> None:  # fmt: skip
    """Rounds every number by itself.

    Args:
        source: float32 or float64 on a device; any strides, not empty.
        target: same dtype, shape and device, any strides; may be ``source``, may not otherwise overlap it.
        how: the mode, and the random bits of stochastic rounding.
        number_of: what rounds a number; of :mod:`.numbers`.
        data: what it is given of the format.
        by_place: whether it goes by the place of a number in row-major order.
        parts: functions that it calls.

    Raises:
        FormatError: the caller's random tensor has another shape, device or dtype.
    """
    kernel = in_triton(of_each.each, source.dtype, interpreted=source.is_cpu, number_of=number_of, **parts)
    count = source.numel()
    alike = not by_place and how.random is None and source.stride() == target.stride() and is_dense(source)
    layout = _IN_ORDER if alike else _layout(source, target)
    words, base, bits, given = _random(how.random, source)
    kernel[(triton.cdiv(count, _BLOCK),)](
        source, target, tuple(data), given, count, base, bits, *layout, len(layout[0]), words, _BLOCK,
        num_warps=4, enable_fp_fusion=False,
    )  # fmt: skip


def round_blocks(
    source: torch.Tensor,
    target: torch.Tensor,
    axis: int,
    block: int,
    how: How,
    parts: dict[str, Any],
    data: Sequence[torch.Tensor],
) -> None:
    """Rounds blocks of neighbours along an axis, which share a scale.

    Args:
        source: as for :func:`round_each`.
        target: likewise.
        axis: counted from the first.
        block: how many neighbours; the last block along the axis may be shorter.
        how: the mode, and the random bits of stochastic rounding.
        parts: ``key_of``, ``scale_of`` and ``number_of``; of :mod:`.scaled`.
        data: what they are given of the format.
    """
    kernel = in_triton(of_blocks.blocks, source.dtype, interpreted=source.is_cpu, **parts)
    length, inner = (source.shape[axis], source.shape[axis + 1 :].numel()) if source.dim() else (1, 1)
    block = min(block, length)
    count = source.numel() // length * -(-length // block)
    width = min(triton.next_power_of_2(block), _WIDEST)
    rows = min(max(_BLOCK // width, 1), triton.next_power_of_2(count))
    layout = _layout(source, target)
    words, base, bits, given = _random(how.random, source)
    kernel[(triton.cdiv(count, rows),)](
        source, target, tuple(data), given, count, length, inner, block, base, bits, *layout, len(layout[0]), words,
        rows, width, width >= block, num_warps=4, enable_fp_fusion=False,
    )  # fmt: skip


_IN_ORDER: tuple[tuple[int, ...], ...] = ((), (), ())


def _layout(source: torch.Tensor, target: torch.Tensor) -> tuple[tuple[int, ...], ...]:
    """Shape and strides of both, with as few dimensions as can be; none if both lie in row-major order."""
    if source.is_contiguous() and target.is_contiguous():
        return _IN_ORDER
    sizes: list[tuple[int, int, int]] = []
    for size, near, far in zip(source.shape, source.stride(), target.stride(), strict=True):
        if size == 1:
            continue
        if sizes and sizes[-1][1] == size * near and sizes[-1][2] == size * far:
            sizes[-1] = (sizes[-1][0] * size, near, far)
        else:
            sizes.append((size, near, far))
    return tuple(zip(*sizes, strict=True)) if sizes else _IN_ORDER


def _random(random: Random, like: torch.Tensor) -> tuple[int, int, int, torch.Tensor]:
    """Where words come from, the base of their keys, how many bits count, and the caller's words."""
    if random is None:
        return FIXED, 0, WORD_BITS, like
    if isinstance(random, RandomBits):
        base = key_base(random)
        return HASHED, base - (1 << 64) if base >> 63 else base, random.bits, like
    return GIVEN, 0, WORD_BITS, words32(random, like)


@cache
def settings_of(rounding: Rounding, device: torch.device) -> torch.Tensor:
    """The mode's addends, as loops have them: int64."""
    return on_device(np.array(rule(rounding, 64), np.uint64).view(np.int64), device)


def on_device(values: Any, device: torch.device, dtype: torch.dtype | None = None) -> torch.Tensor:
    """Numbers as a tensor on the device; without waiting for it."""
    x = torch.as_tensor(values, dtype=dtype, device="cpu")
    return x.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else x.to(device)
