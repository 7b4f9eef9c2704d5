"""Absorbed additions: a + b == a although b is not zero, the way in which small updates get lost."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch._ops import OpOverload


def _moved(name: str, args: Sequence[Any]) -> Any:
    """Where the operation adds something other than zero to its first operand; None if it adds no tensor."""
    match name, args:
        case "add" | "sub", (_, torch.Tensor() as other, *_):
            return other != 0
        case "addcmul", (_, factor, other, *_):
            return (factor != 0) & (other != 0)
        case "addcdiv", (_, numerator, _, *_):
            return numerator != 0
        case "lerp", (start, end, *_):
            return start != end
    return None


class Additions:
    """The first operands of additions as they were before, and where something was added to them."""

    def __init__(self, cases: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
        self._cases = cases

    def count(self, results: Sequence[torch.Tensor]) -> tuple[int, int]:
        """How many elements something other than zero was added to, and how many of them kept their value."""
        added = absorbed = 0
        for (before, moved), result in zip(self._cases, results, strict=True):
            here = moved.expand_as(result)
            added += int(here.sum())
            absorbed += int(((result == before) & here).sum())
        return added, absorbed


def additions(operation: OpOverload, args: Sequence[Any]) -> Additions | None:
    """What is needed to tell afterwards which additions ``operation`` will absorb; None if it adds no tensors."""
    name = operation.overloadpacket.__name__
    in_place = name.endswith("_")
    foreach = name.startswith("_foreach_")
    name = name.removeprefix("_foreach_").removesuffix("_")
    if name not in {"add", "sub", "addcmul", "addcdiv", "lerp"}:
        return None
    if foreach:
        lists = [argument if isinstance(argument, (list, tuple)) else None for argument in args]
        calls = [[column[i] if column else None for column in lists] for i in range(len(args[0]))]
    else:
        calls = [list(args)]
    cases = []
    for call in calls:
        start = call[0]
        if not isinstance(start, torch.Tensor) or not start.is_floating_point():
            return None
        moved = _moved(name, call)
        if moved is None:
            return None
        cases.append((start.clone() if in_place else start, moved))
    return Additions(cases)
