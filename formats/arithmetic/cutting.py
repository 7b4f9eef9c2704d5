"""Cutting a tensor into blocks along an axis, and joining it again."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ..base.errors import FormatError

if TYPE_CHECKING:
    from ..base.format import Format


def check_axis(fmt: Format, axis: int, x: torch.Tensor) -> int:
    """``axis`` counted from the first one; 0 for a zero-dimensional tensor, which is one block.

    Raises:
        FormatError: ``x`` has no such axis.
    """
    dimensions = max(x.dim(), 1)
    if not -dimensions <= axis < dimensions:
        raise FormatError(
            f"{fmt} has its blocks along axis {axis}, and a tensor of shape {tuple(x.shape)} has no such axis"
        )
    return axis % dimensions


def cut(x: torch.Tensor, axis: int, block: int) -> torch.Tensor:
    """``x`` with ``axis`` moved to the end and cut: shape (..., blocks, block), zeros where the last is shorter.

    A block that is longer than the axis is cut to its length.
    """
    rows = x.reshape(1) if x.dim() == 0 else x.movedim(axis, -1)
    block = min(block, max(rows.shape[-1], 1))
    missing = -rows.shape[-1] % block
    if missing:
        rows = torch.nn.functional.pad(rows, (0, missing))
    return rows.reshape(*rows.shape[:-1], rows.shape[-1] // block, block)


def joined(blocks: torch.Tensor, like: torch.Tensor, axis: int) -> torch.Tensor:
    """What :func:`cut` cut, in the shape of ``like``."""
    if like.dim() == 0:
        return blocks.flatten()[0]
    return blocks.flatten(-2)[..., : like.shape[axis]].movedim(-1, axis)
