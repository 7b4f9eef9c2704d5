"""Absorbed additions: a + b == a although a is finite and b is not zero, the way that small updates get lost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
import torch
from numba import carray
from torch._ops import OpOverload

from ...formats.cpu.arguments import Int, Integers, Numbers, c_types
from ...formats.cpu.c_functions import c_function
from ..aten.tables import ADDING, plain_name

_PLAIN = (torch.Tensor, torch.nn.Parameter)
_CARRIERS = (torch.float32, torch.float64)


def _find_addend(name: str, args: Sequence[Any]) -> Any:
    """Returns a tensor that is not zero where the operation adds to its first operand; None for other operations."""
    match name, args:
        case "add" | "sub", (_, torch.Tensor() as second, *_):
            return second
        case "add" | "sub", (augend, int() | float() as value, *_) if value:
            return torch.ones((), dtype=augend.dtype, device=augend.device)
        case "addcmul", (_, first, second, *_):
            return (first != 0) & (second != 0)
        case "addcdiv", (_, numerator, _, *_):
            return numerator
        case "lerp", (augend, end, *_):
            return augend != end
    return None


class Additions:
    """The first operands of additions before the operation, and the positions where something is added.

    Attributes:
        in_place: whether the results are written to the first operands.
    """

    def __init__(self, cases: list[tuple[torch.Tensor, torch.Tensor]], *, in_place: bool) -> None:
        self._cases = cases
        self.in_place = in_place

    def counts(self, results: Sequence[torch.Tensor]) -> list[tuple[Any, Any]]:
        """Counts, for each result, additions of nonzero values to its elements, and additions that changed nothing.

        The counts are integers, or tensors of one element for results on another device.
        """
        pairs = zip(self._cases, results, strict=True)
        return [_count_additions(before, addend, result) for (before, addend), result in pairs]


def additions(operation: OpOverload, args: Sequence[Any]) -> Additions | None:
    """Returns the additions of ``operation``, to be counted when it has run; None if it adds no tensors."""
    name = operation.overloadpacket.__name__
    plain_operation = plain_name(name)
    if plain_operation not in ADDING:
        return None
    in_place = name.endswith("_")
    if name.startswith("_foreach_"):
        calls = [[x[i] if isinstance(x, (list, tuple)) else x for x in args] for i in range(len(args[0]))]
    else:
        calls = [list(args)]
    cases = []
    for call in calls:
        augend = call[0]
        tensors = [x for x in call if isinstance(x, torch.Tensor)]
        if any(x.layout is not torch.strided or x.is_meta or x.is_nested for x in tensors):
            return None  # their elements cannot be compared one by one
        if not isinstance(augend, torch.Tensor) or not augend.is_floating_point():
            return None
        addend = _find_addend(plain_operation, call)
        if addend is None:
            return None
        cases.append((augend.clone() if in_place else augend, addend))
    return Additions(cases, in_place=in_place)


def _count_additions(before: torch.Tensor, addend: torch.Tensor, result: torch.Tensor) -> tuple[Any, Any]:
    same_layout = before.dtype == addend.dtype == result.dtype and before.shape == addend.shape == result.shape
    plain = all(x.is_cpu and type(x) in _PLAIN and x.is_contiguous() for x in (before, addend, result))
    if same_layout and plain and result.dtype in _CARRIERS:
        counts = np.zeros(2, dtype=np.int64)
        loop = _compiled(result.dtype)
        loop(before.data_ptr(), addend.data_ptr(), result.data_ptr(), result.numel(), counts.ctypes.data)
        return int(counts[0]), int(counts[1])
    is_added = (addend if addend.dtype == torch.bool else addend != 0).expand_as(result)
    added, absorbed = is_added.sum(), ((result == before) & is_added & before.isfinite()).sum()
    return (int(added), int(absorbed)) if result.is_cpu else (added, absorbed)


@cache
def _compiled(dtype: torch.dtype) -> Callable[..., None]:
    """Compiles :func:`_count_absorbed` to a C function; tensor operations would cost more than small additions."""
    return c_function(_count_absorbed, c_types(_count_absorbed, dtype))


def _count_absorbed(before: Numbers, moved: Numbers, result: Numbers, n: Int, counts: Integers) -> None:
    added = absorbed = 0
    for i in range(n):
        is_added = moved[i] != 0
        added += is_added
        absorbed += is_added & (result[i] == before[i]) & (before[i] - before[i] == 0)  # no infinity moves, exactly
    count = carray(counts, 2)
    count[0], count[1] = added, absorbed
