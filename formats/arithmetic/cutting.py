"""Cutting a tensor into blocks along an axis, and joining it again."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from ..base.errors import FormatError
from ..base.format import Format
from ..base.modes import RoundingOptions
from ..base.random_words import random_words


def check_axis(fmt: Format, axis: int, x: torch.Tensor) -> int:
    """``axis`` counted from the first one; 0 for a zero-dimensional tensor, which is one block.

    Raises:
        FormatError: ``x`` lacks the axis.
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
    missing = -rows.shape[-1] % block  # Elements that the last block lacks.
    if missing:
        rows = torch.nn.functional.pad(rows, (0, missing))
    return rows.reshape(*rows.shape[:-1], rows.shape[-1] // block, block)


def blocks_in(shape: Sequence[int], axis: int, block: int, *, square: bool = False) -> tuple[int, int]:
    """Returns the number of blocks that a tensor of this shape is cut into, and their elements, padding included.

    Args:
        shape: the shape of the tensor; one without axes is a block.
        axis: the axis of the blocks; the last one if the tensor lacks it.
        block: the length of a block, at most the length of the axis.
        square: whether blocks are squares, which also extend along the :func:`neighbour` axis, if any.
    """
    sizes = list(shape) or [1]
    if math.prod(sizes) == 0:  # No elements, no blocks.
        return 0, 0
    along = axis % len(sizes) if -len(sizes) <= axis < len(sizes) else len(sizes) - 1
    square = square and len(sizes) > 1
    axes = [along, neighbour(along, len(sizes))] if square else [along]
    blocks = numbers = 1
    for number, size in enumerate(sizes):
        length = (block if square else min(block, size)) if number in axes else 1
        blocks *= -(-size // length)
        numbers *= length
    return blocks, blocks * numbers


def neighbour(axis: int, dimensions: int) -> int:
    """The second axis of squares that extend along ``axis``: the other axis of a matrix, also in a batch of matrices.

    For a weight of a convolution, (outputs, inputs, ...), the axes of outputs and inputs belong together.
    """
    if axis == dimensions - 1:
        return axis - 1
    return axis + 1 if axis in (0, dimensions - 2) else axis - 1


def cut_squares(x: torch.Tensor, axis: int, side: int) -> torch.Tensor:
    """``x`` with ``axis`` and its partner (:func:`neighbour`) moved to the end and cut into squares.

    Returns:
        Shape (..., rows of squares, squares, side^2), zeros where the last are smaller. A vector is one row.
    """
    rows = x.reshape(1, -1) if x.dim() < 2 else x.movedim((neighbour(axis, x.dim()), axis), (-2, -1))
    low, wide = rows.shape[-2:]
    rows = torch.nn.functional.pad(rows, (0, -wide % side, 0, -low % side))
    squares = rows.reshape(*rows.shape[:-2], -(-low // side), side, -(-wide // side), side).transpose(-3, -2)
    return squares.flatten(-2)  # A square is a row of side^2 elements.


def in_squares(x: torch.Tensor, axis: int, side: int, options: RoundingOptions) -> tuple[torch.Tensor, RoundingOptions]:
    """Returns the blocks of :func:`cut_squares` contiguously, and ``options`` with the random words cut alike."""
    if options.random is not None:
        words = cut_squares(random_words(options.random, x), axis, side)
        options = options._replace(random=words.contiguous())
    return cut_squares(x, axis, side).contiguous(), options  # padding has copied it


def joined_squares(squares: torch.Tensor, like: torch.Tensor, axis: int, side: int) -> torch.Tensor:
    """Undoes :func:`cut_squares`: returns the elements in the shape of ``like``."""
    parts = squares.reshape(*squares.shape[:-1], side, side).transpose(-3, -2)
    rows = parts.flatten(-2).flatten(-3, -2)
    if like.dim() < 2:
        return rows[0, : like.numel()].reshape(like.shape)
    other = neighbour(axis, like.dim())
    return rows[..., : like.shape[other], : like.shape[axis]].movedim((-2, -1), (other, axis))


def joined(blocks: torch.Tensor, like: torch.Tensor, axis: int) -> torch.Tensor:
    """Undoes :func:`cut`: returns the elements in the shape of ``like``."""
    if like.dim() == 0:
        return blocks.flatten()[0]
    return blocks.flatten(-2)[..., : like.shape[axis]].movedim(-1, axis)
