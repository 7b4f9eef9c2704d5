"""The axes along which operations contract operands, and rounding operands in the blocks of a format along them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

import torch

from ...formats import Format

Rounded = Callable[[torch.Tensor, Format], torch.Tensor]


class Contraction(NamedTuple):
    """The description of an operand's contraction, which determines its blocks."""

    axis: int
    groups: int = 1
    """Parts of the axis that are contracted on their own; no block crosses them."""
    ends: Sequence[int] = ()
    """The ends of such parts, if they differ in length."""
    over_all_others: bool = False
    """Only ``axis`` is left: the batch with all positions is contracted, as one axis."""

    @property
    def is_plain(self) -> bool:
        """Whether one whole axis is contracted, and nothing else."""
        return self.groups == 1 and not self.ends and not self.over_all_others


LAST = Contraction(-1)
_COLUMNS = Contraction(-2)

# By operation and argument; other operands are contracted along their last axis, or not at all.
_PRODUCTS: dict[str, dict[str, Contraction]] = {
    "mm": {"mat2": _COLUMNS},
    "_int_mm": {"mat2": _COLUMNS},
    "_scaled_mm": {"mat2": _COLUMNS},
    "matmul": {"other": _COLUMNS},
    "addmm": {"mat2": _COLUMNS},
    "_addmm_activation": {"mat2": _COLUMNS},
    "bmm": {"mat2": _COLUMNS},
    "baddbmm": {"batch2": _COLUMNS},
    "addbmm": {"batch2": _COLUMNS},
    "_grouped_mm": {"mat2": _COLUMNS},
    "_scaled_grouped_mm": {"mat2": _COLUMNS},
}


def contractions(name: str, named: Mapping[str, Any]) -> dict[str, Contraction]:
    """Returns the contractions of an operation's operands by argument name; those left out use the last axis.

    Args:
        name: name of the operation, without overload.
        named: its arguments by name, without omitted ones.
    """
    plain = name.removesuffix("_")
    if plain in ("_grouped_mm", "_scaled_grouped_mm"):
        return _group_contractions(named)
    if plain == "matmul" and named["other"].dim() == 1:  # A vector has only its last axis.
        return {}
    if "scaled_dot_product" in name and not name.endswith("_backward"):
        return {"value": _COLUMNS}
    if plain in ("convolution", "convolution_overrideable", "_convolution"):
        return of_convolution(transposed=bool(named["transposed"]), groups=int(named["groups"]))
    if plain == "_trilinear":
        return {f"i{i}": _of_trilinear(named[f"i{i}"], named[f"expand{i}"], named["sumdim"]) for i in (1, 2, 3)}
    return _PRODUCTS.get(plain, {})


def fixed_contractions(name: str) -> set[str] | None:
    """The operands with the last axis but one contracted by an operation; None if that depends on its arguments.

    All others are contracted along the last axis. ``name`` is without overload.
    """
    plain = name.removesuffix("_")
    depends = ("_grouped_mm", "_scaled_grouped_mm", "matmul", "_trilinear")
    if plain in depends or "convolution" in plain or "attention" in plain:
        return None
    return {argument for argument, contraction in _PRODUCTS.get(plain, {}).items() if contraction == _COLUMNS}


def is_operand(name: str, argument: str) -> bool:
    """Whether a tensor argument of an operation is one of its operands: attention adds a mask, and keeps statistics."""
    return "attention" not in name or argument not in _NOT_CONTRACTED


def is_multiplied(name: str, argument: str) -> bool:
    """Whether a tensor argument of a product or convolution is multiplied: a bias is added."""
    added = argument == "bias" or (argument == "self" and name.lstrip("_").startswith(("add", "badd")))
    return not added and is_operand(name, argument)


_NOT_CONTRACTED = ("attn_mask", "attn_bias", "out", "logsumexp", "philox_seed", "philox_offset")


def of_convolution(*, transposed: bool, groups: int) -> dict[str, Contraction]:
    """A convolution sums over the channels of its input, group by group, at each tap of the kernel."""
    weight = Contraction(0, groups) if transposed else Contraction(1)  # (C, O/g, ...) and (O, C/g, ...)
    return {"input": Contraction(1, groups), "weight": weight}


def of_input_gradient(*, transposed: bool, groups: int) -> dict[str, Contraction]:
    """The gradient of a convolution's input sums over the channels of the output."""
    weight = Contraction(1) if transposed else Contraction(0, groups)
    return {"grad_output": Contraction(1, groups), "weight": weight}


OVER_POSITIONS = Contraction(1, over_all_others=True)
"""The gradient of a convolution's weight sums over the batch and all positions, for each channel."""


def of_forward(name: str, argument: str, contraction: Contraction, named: Mapping[str, Any]) -> Contraction:
    """Returns the forward product's contraction of an operand of its backward product, which sums over another axis.

    Args:
        name: name of the backward operation, without overload.
        argument: name of its argument: an activation or a weight.
        contraction: the contraction of the argument in the operation itself.
        named: the arguments by name.
    """
    if name.startswith("convolution"):
        return of_convolution(transposed=bool(named["transposed"]), groups=int(named["groups"]))[argument]
    matrix = name in _PRODUCTS and named[argument].dim() > 1
    return Contraction(-3 - contraction.axis) if matrix else contraction  # Exchanges -1 and -2.


def _group_contractions(named: Mapping[str, Any]) -> dict[str, Contraction]:
    """Products of groups of rows, or of columns, with a matrix each; or with two matrices, of parts of the sum."""
    ends = named.get("offs")
    if named["self"].dim() == 2 and named["mat2"].dim() == 2 and ends is not None:
        parts = tuple(ends.tolist())
        return {"self": Contraction(-1, ends=parts), "mat2": Contraction(-2, ends=parts)}
    return {"mat2": _COLUMNS}


def _of_trilinear(x: torch.Tensor, expanded: Sequence[int], summed: Sequence[int]) -> Contraction:
    """Returns the last axis of ``x`` that is summed over; ``expanded`` names the axes that ``x`` lacks."""
    total = x.dim() + len(expanded)
    axes = [axis for axis in range(total) if axis not in expanded]  # The product's axes that x has.
    positions = [number for number, axis in enumerate(axes) if axis in summed]
    return Contraction(positions[-1] if positions else -1)


def has_blocks(fmt: Format | None) -> bool:
    """Whether a format has blocks along an axis that its name does not choose."""
    return fmt is not None and fmt.open_block is not None


def round_along(x: torch.Tensor, fmt: Format, contraction: Contraction, rounded: Rounded) -> torch.Tensor:
    """``x`` rounded to ``fmt``, with blocks along the contracted axis; other formats unchanged.

    Args:
        x: an operand.
        fmt: a format.
        contraction: the axis along which the product contracts the operand.
        rounded: gives a tensor rounded to a format.

    Returns:
        A new tensor, with the memory layout of ``x`` where ``x`` is dense.
    """
    if not has_blocks(fmt) or contraction == LAST:
        return rounded(x, fmt)
    if contraction.over_all_others:
        rows = x.movedim(contraction.axis, 0)
        flat = rounded(rows.reshape(len(rows), -1), fmt)  # A row for each channel.
        return torch.empty_like(x).copy_(flat.view(rows.shape).movedim(0, contraction.axis))
    axis = contraction.axis % x.dim()
    if contraction.ends:
        return _round_parts(x, fmt, axis, contraction.ends, rounded)
    if contraction.groups == 1:
        return rounded(x, _along(fmt, axis))
    # The groups become an axis of their own, so that no block crosses their borders.
    grouped = x.view(*x.shape[:axis], contraction.groups, -1, *x.shape[axis + 1 :])
    parts = rounded(grouped, _along(fmt, axis + 1))
    return torch.empty_like(x).copy_(parts.flatten(axis, axis + 1))


def _round_parts(x: torch.Tensor, fmt: Format, axis: int, ends: Sequence[int], rounded: Rounded) -> torch.Tensor:
    """Rounds with blocks that restart in every part: zeros fill the last block of each."""
    last = x.shape[axis]
    parts = x.tensor_split([min(end, last) for end in ends], axis)
    lengths = [part.shape[axis] for part in parts]
    assert fmt.open_block is not None
    block = min(fmt.open_block, max(lengths))  # a row is one part
    if not block:
        return rounded(x, fmt)
    filled = [_pad_axis(part, axis, -length % block) for part, length in zip(parts, lengths, strict=True)]
    blocks = torch.cat(filled, axis).view(*x.shape[:axis], -1, block, *x.shape[axis + 1 :])
    rounded_blocks = rounded(blocks, _along(fmt, axis + 1)).flatten(axis, axis + 1)
    pieces = torch.split(rounded_blocks, [part.shape[axis] for part in filled], axis)
    trimmed = [piece.narrow(axis, 0, length) for piece, length in zip(pieces, lengths, strict=True)]
    return torch.empty_like(x).copy_(torch.cat(trimmed, axis))


def _pad_axis(x: torch.Tensor, axis: int, missing: int) -> torch.Tensor:
    shape = [missing if number == axis else size for number, size in enumerate(x.shape)]
    return torch.cat([x, x.new_zeros(shape)], axis)


@cache
def _along(fmt: Format, axis: int) -> Format:
    return replace(fmt, axis=axis)  # type: ignore[type-var]
