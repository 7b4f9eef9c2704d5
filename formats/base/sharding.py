"""How a DTensor is rounded: each device its own part, where the format rounds every number by itself."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import torch
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.experimental import register_sharding

from .names import format_called

_ARGUMENTS = 8


@cache
def register() -> None:
    """Tells torch.distributed.tensor the placements in which the operator ``roundoff::round`` may find its tensors.

    Shards are rounded where they are if numbers do not depend on each other: not where they share a scale, nor for
    random bits, which belong to the places of elements in the whole tensor. Those, and sums that are still to be
    made, are gathered first.
    """
    operator = torch.ops.roundoff.round.default
    register_sharding(operator)(_placements)
    # Placements are remembered by the arguments from the first integer on; here they depend on the format before it.
    known = DTensor._op_dispatcher.sharding_propagator.op_to_schema_info  # noqa: SLF001  the interface has no way to say so
    known[operator] = replace(known[operator], static_argnum=1)


def _placements(
    x: Any, format: str, rounding: str, overflow: str | None, seed: int | None, step: int, bits: int, given: Any
) -> list[tuple[list[Any], list[Any]]]:
    del rounding, overflow, step, bits
    rest = [None] * (_ARGUMENTS - 2)

    def alike(placement: Any) -> tuple[list[Any], list[Any]]:
        return [placement], [placement, *rest, None if given is None else placement]

    shards = range(x.ndim) if seed is None and format_called(format).elementwise else ()
    return [alike(Replicate()), *(alike(Shard(dim)) for dim in shards)]
