"""What an ATen operation does to memory, read from its schema: which of its tensors hold newly computed numbers."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, NamedTuple

import torch

from .collectives import brings_results, communicates

if TYPE_CHECKING:
    from torch._ops import OpOverload

_aten = torch.ops.aten

# Their results hold no numbers yet, or exact zeros.
_NOTHING_TO_ROUND = {
    _aten.empty, _aten.empty_like, _aten.empty_strided, _aten.empty_permuted, _aten.new_empty, _aten.new_empty_strided,
    _aten.zeros, _aten.zeros_like, _aten.new_zeros, _aten.zero, _aten.zero_, _aten._foreach_zero_,
    _aten.resize_, _aten.resize_as_, _aten.set_,
}  # fmt: skip

# These write into arguments (positions) that their schema does not mark as written: the running statistics.
_UNMARKED_WRITES = {
    _aten.native_batch_norm: (3, 4),
    _aten.cudnn_batch_norm: (3, 4),
    _aten.miopen_batch_norm: (3, 4),
}


class Outputs(NamedTuple):
    """Where an operation leaves newly computed numbers."""

    results: bool
    """Its results are new memory (at least one of them)."""
    viewing: tuple[bool, ...]
    """For each result in turn: it shares memory with an argument, so it is not rounded as a result."""
    written: tuple[tuple[int, str], ...]
    """Arguments that are overwritten (in-place, ``out=``): position and name."""
    lifts: bool
    """It hands over a tensor made from Python or numpy data."""


@cache
def outputs(operation: OpOverload) -> Outputs:
    """How the results of ``operation`` are to be rounded."""
    schema = operation._schema  # noqa: SLF001  the only access there is
    packet = operation.overloadpacket
    if packet in (_aten.lift_fresh, _aten.lift):
        return Outputs(results=False, viewing=(True,), written=(), lifts=True)
    if packet in _NOTHING_TO_ROUND or (communicates(operation) and not brings_results(operation)):
        return Outputs(results=False, viewing=(), written=(), lifts=False)
    viewing = tuple(value.alias_info is not None for value in schema.returns)
    written = [
        (position, argument.name)
        for position, argument in enumerate(schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    ]
    written += [(position, schema.arguments[position].name) for position in _UNMARKED_WRITES.get(packet, ())]
    return Outputs(results=not all(viewing), viewing=viewing, written=tuple(written), lifts=False)
