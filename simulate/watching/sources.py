"""Values that an operation was given and that are not finite, or beyond the range of the format."""

from __future__ import annotations

import cmath
import math
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from ..aten.outputs import outputs, writes_of
from .watcher import Call

OPERANDS = "among its operands"

Supplied = tuple[str, bool | torch.Tensor]
"""A value that a program may have supplied, in words, and whether it did: a tensor on a device, without waiting."""


def brought(call: Call, *, over_others: bool | torch.Tensor) -> tuple[str, bool | torch.Tensor]:
    """Describes the part of a call that may have brought non-finite values, and returns whether it did.

    Args:
        call: the operation.
        over_others: whether some value that it has overwritten was not finite.

    Returns:
        The second is a tensor on the device of the operands, since nothing waits for it.
    """
    if call.operation is None:  # the step of an optimizer rounds what is there, and computes nothing
        return OPERANDS, True
    given = tree_leaves((call.args, call.kwargs))
    numbers = [number for number in given if isinstance(number, float | complex) and not cmath.isfinite(number)]
    if numbers:
        return str(numbers[0]), True
    overwritten = {id(x) for x in tree_leaves(written(call))}  # operations on lists write each tensor
    read = some_not_finite([x for x in given if id(x) not in overwritten])
    if isinstance(read, torch.Tensor) and isinstance(over_others, torch.Tensor):  # a copy between two devices
        read = read.to(over_others.device, non_blocking=True)
    return OPERANDS, over_others | read


def written(call: Call) -> list[Any]:
    """The arguments that a call writes to."""
    assert call.operation is not None
    return [call.args[i] if i < len(call.args) else call.kwargs.get(name) for i, name in writes_of(call.operation)]


def supplied_constant(call: Call, exact: torch.Tensor, x: torch.Tensor) -> tuple[str, bool | torch.Tensor]:
    """The constant of a program that is beyond the range of the format, in words, and whether only it has overflowed.

    Args:
        call: the operation.
        exact: its result before rounding.
        x: its result.

    Returns:
        The first is empty if none is found. The second is a tensor on the device of the result: whether all values that
        overflow are Python numbers of the call, as in a mask.
    """
    if call.moves or (call.operation is not None and outputs(call.operation).lifts):  # a value that was not rounded yet
        return OPERANDS, True
    largest = call.format.max
    given = [number for number in tree_leaves((call.args, call.kwargs)) if isinstance(number, int | float)]
    beyond = [number for number in given if largest is not None and math.isfinite(number) and abs(number) > largest]
    if not beyond:
        return "", False
    constant = ~exact.isfinite() | x.isfinite()
    for number in beyond:
        constant |= exact == number
    return str(beyond[0]), constant.all()


def floating(values: Any) -> list[torch.Tensor]:
    """The tensors in some values that can hold infinities or NaN."""
    return [
        x for x in tree_leaves(values)
        if isinstance(x, torch.Tensor) and (x.is_floating_point() or x.is_complex())
        and x.layout is torch.strided and not x.is_meta
        and x.dtype != torch.float4_e2m1fn_x2  # has finite numbers alone
    ]  # fmt: skip


def some_not_finite(values: list[Any]) -> bool | torch.Tensor:
    """Whether some number of tensors is not finite; a tensor on the device of the tensors outside the CPU."""
    tensors = floating(values)
    if not all(bool(are_finite(x)) for x in tensors if x.is_cpu):
        return True
    there = [are_finite(x) for x in tensors if not x.is_cpu]
    return ~torch.stack([one.to(there[0].device, non_blocking=True) for one in there]).all() if there else False


def are_finite(x: torch.Tensor) -> torch.Tensor:
    """Whether all values of a tensor are finite, on its device."""
    return (x.float() if x.element_size() == 1 else x).isfinite().all()  # PyTorch does not ask this of eight bits
