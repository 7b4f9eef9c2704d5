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


def _moved(name: str, args: Sequence[Any]) -> Any:
    """Returns a tensor that is not zero where the operation changes its first operand; None if it adds nothing.

    The second operand itself represents its nonzero positions.
    """
    match name, args:
        case "add" | "sub", (_, torch.Tensor() as other, *_):
            return other
        case "add" | "sub", (start, int() | float() as number, *_) if number:
            return torch.ones((), dtype=start.dtype, device=start.device)
        case "addcmul", (_, factor, other, *_):
            return (factor != 0) & (other != 0)
        case "addcdiv", (_, numerator, _, *_):
            return numerator
        case "lerp", (start, end, *_):
            return start != end
    return None


class Additions:
    """The first operands of additions as they were before, and where something was added to them.

    Attributes:
        in_place: whether the results are written to the first operands.
    """

    def __init__(self, cases: list[tuple[torch.Tensor, torch.Tensor]], *, in_place: bool) -> None:
        self._cases = cases
        self.in_place = in_place

    def counts(self, results: Sequence[torch.Tensor]) -> list[tuple[Any, Any]]:
        """For each result, to how many elements something other than zero was added, and how many of them stayed.

        Integers; tensors of one, where results lie on a device.
        """
        pairs = zip(self._cases, results, strict=True)
        return [_count_one(before, moved, result) for (before, moved), result in pairs]


def additions(operation: OpOverload, args: Sequence[Any]) -> Additions | None:
    """Returns a record for counting which additions ``operation`` will absorb; None if it adds no tensors."""
    name = operation.overloadpacket.__name__
    plain = plain_name(name)
    if plain not in ADDING:
        return None
    in_place = name.endswith("_")
    if name.startswith("_foreach_"):
        calls = [[x[i] if isinstance(x, (list, tuple)) else x for x in args] for i in range(len(args[0]))]
    else:
        calls = [list(args)]
    cases = []
    for call in calls:
        start = call[0]
        tensors = [x for x in call if isinstance(x, torch.Tensor)]
        if any(x.layout is not torch.strided or x.is_meta or x.is_nested for x in tensors):
            return None  # they have no numbers that can be compared one by one
        if not isinstance(start, torch.Tensor) or not start.is_floating_point():
            return None
        moved = _moved(plain, call)
        if moved is None:
            return None
        cases.append((start.clone() if in_place else start, moved))
    return Additions(cases, in_place=in_place)


def _count_one(before: torch.Tensor, moved: torch.Tensor, result: torch.Tensor) -> tuple[Any, Any]:
    alike = before.dtype == moved.dtype == result.dtype and before.shape == moved.shape == result.shape
    plain = all(x.is_cpu and type(x) in _PLAIN and x.is_contiguous() for x in (before, moved, result))
    if alike and plain and result.dtype in _CARRIERS:
        counts = np.zeros(2, dtype=np.int64)
        loop = _compiled(result.dtype)
        loop(before.data_ptr(), moved.data_ptr(), result.data_ptr(), result.numel(), counts.ctypes.data)
        return int(counts[0]), int(counts[1])
    here = (moved if moved.dtype == torch.bool else moved != 0).expand_as(result)
    added, absorbed = here.sum(), ((result == before) & here & before.isfinite()).sum()
    return (int(added), int(absorbed)) if result.is_cpu else (added, absorbed)


@cache
def _compiled(dtype: torch.dtype) -> Callable[..., None]:
    """:func:`_count_absorbed` as a C function; two passes of tensor operations would cost more than small additions."""
    return c_function(_count_absorbed, c_types(_count_absorbed, dtype))


def _count_absorbed(before: Numbers, moved: Numbers, result: Numbers, n: Int, counts: Integers) -> None:
    added = absorbed = 0
    for i in range(n):
        here = moved[i] != 0
        added += here
        absorbed += here & (result[i] == before[i]) & (before[i] - before[i] == 0)  # no infinity moves, exactly
    count = carray(counts, 2)
    count[0], count[1] = added, absorbed
