"""Finds arguments of an operation that are not finite, or beyond the range of the format."""

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
"""A value that a program may have supplied, in words, and whether it did: on a device a tensor, to avoid waiting."""


def find_source(call: Call, *, old_nonfinite: bool | torch.Tensor) -> tuple[str, bool | torch.Tensor]:
    """Describes the part of a call that may have supplied non-finite values, and returns whether it did.

    Args:
        call: the operation.
        old_nonfinite: whether some value that it has overwritten was not finite.

    Returns:
        The second is a tensor on the device of the operands, to avoid waiting for it.
    """
    if call.operation is None:  # an optimizer's step: its stored tensors are rounded, and no operation is known
        return OPERANDS, True
    arguments = tree_leaves((call.args, call.kwargs))
    numbers = [number for number in arguments if isinstance(number, float | complex) and not cmath.isfinite(number)]
    if numbers:
        return str(numbers[0]), True
    overwritten_ids = {id(x) for x in tree_leaves(overwritten(call))}  # operations on lists write each tensor
    has_nonfinite = any_nonfinite([x for x in arguments if id(x) not in overwritten_ids])
    if isinstance(has_nonfinite, torch.Tensor) and isinstance(old_nonfinite, torch.Tensor):  # a copy to another device
        has_nonfinite = has_nonfinite.to(old_nonfinite.device, non_blocking=True)
    return OPERANDS, old_nonfinite | has_nonfinite


def overwritten(call: Call) -> list[Any]:
    """Returns the arguments that a call writes to."""
    assert call.operation is not None
    return [call.args[i] if i < len(call.args) else call.kwargs.get(name) for i, name in writes_of(call.operation)]


def find_constant(call: Call, exact: torch.Tensor, x: torch.Tensor) -> tuple[str, bool | torch.Tensor]:
    """Describes a constant argument beyond the range of the format, and returns whether only constants overflowed.

    Args:
        call: the operation.
        exact: its result before rounding.
        x: its result.

    Returns:
        The first is empty if none is found. The second is a tensor on the device of the result: whether all values that
        overflow are Python numbers of the call, as in a mask.
    """
    if call.moves or (call.operation is not None and outputs(call.operation).lifts):  # copied values, not rounded yet
        return OPERANDS, True
    largest = call.format.max
    numbers = [number for number in tree_leaves((call.args, call.kwargs)) if isinstance(number, int | float)]
    beyond = [number for number in numbers if largest is not None and math.isfinite(number) and abs(number) > largest]
    if not beyond:
        return "", False
    is_from_constant = ~exact.isfinite() | x.isfinite()
    for number in beyond:
        is_from_constant |= exact == number
    return str(beyond[0]), is_from_constant.all()


def float_tensors(values: Any) -> list[torch.Tensor]:
    """Lists the tensors in nested values that can hold infinities or NaN."""
    return [
        x for x in tree_leaves(values)
        if isinstance(x, torch.Tensor) and (x.is_floating_point() or x.is_complex())
        and x.layout is torch.strided and not x.is_meta
        and x.dtype != torch.float4_e2m1fn_x2  # has only finite numbers
    ]  # fmt: skip


def any_nonfinite(values: list[Any]) -> bool | torch.Tensor:
    """Whether an element of the tensors in ``values`` is not finite; for tensors outside the CPU a tensor there."""
    tensors = float_tensors(values)
    if not all(bool(all_finite(x)) for x in tensors if x.is_cpu):
        return True
    tests = [all_finite(x) for x in tensors if not x.is_cpu]
    return ~torch.stack([finite.to(tests[0].device, non_blocking=True) for finite in tests]).all() if tests else False


def all_finite(x: torch.Tensor) -> torch.Tensor:
    """Whether all values of a tensor are finite, as a tensor on its device."""
    return (x.float() if x.element_size() == 1 else x).isfinite().all()  # isfinite lacks 8-bit dtypes
