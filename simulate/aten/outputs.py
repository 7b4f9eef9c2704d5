"""Outputs of an ATen operation, from its schema: the tensors that receive newly computed values."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import torch
from torch._ops import OpOverload

from .collectives import brings_results, communicates, overwrites
from .schemas import schema_of, written_arguments
from .tables import PARTLY_WRITTEN, UNMARKED_VIEWS, UNMARKED_WRITES, WITHOUT_NUMBERS

_aten = torch.ops.aten


class Outputs(NamedTuple):
    """The places where an operation stores newly computed values."""

    results: bool
    """Whether the results are new memory (at least one of them)."""
    viewing: tuple[bool, ...]
    """For each result in turn: it shares memory with an argument, so it is not rounded as a result."""
    written: tuple[tuple[int, str], ...]
    """Arguments that are overwritten (in-place, ``out=``): position and name."""
    lifts: bool
    """Whether the operation hands over a tensor made from Python or numpy data."""
    auxiliary: tuple[int, ...] = ()
    """The positions of results that are not rounded, since they are only for the derivative."""


@cache
def outputs(operation: OpOverload) -> Outputs:
    """Returns the description of the results of ``operation`` to be rounded."""
    packet = operation.overloadpacket
    if packet in (_aten.lift_fresh, _aten.lift):
        return Outputs(results=False, viewing=(True,), written=(), lifts=True)
    if packet in WITHOUT_NUMBERS or (communicates(operation) and not brings_results(operation)):
        return Outputs(results=False, viewing=(), written=(), lifts=False)
    if overwrites(operation):  # Some of them return the tensors that they write to.
        return Outputs(results=False, viewing=(), written=writes_of(operation), lifts=False)
    viewing = views_among(operation)
    return Outputs(
        not all(viewing), viewing, writes_of(operation), lifts=False, auxiliary=PARTLY_WRITTEN.get(packet, ())
    )


@cache
def views_among(operation: OpOverload) -> tuple[bool, ...]:
    """Whether each of the results is in the memory of an argument."""
    unmarked = operation.overloadpacket in UNMARKED_VIEWS
    return tuple(unmarked or value.alias_info is not None for value in schema_of(operation).returns)


@cache
def writes_of(operation: OpOverload) -> tuple[tuple[int, str], ...]:
    """The arguments that the operation writes to, be it zeros: position and name."""
    names = [argument.name for argument in schema_of(operation).arguments]
    unmarked = (0,) if overwrites(operation) else UNMARKED_WRITES.get(operation.overloadpacket, ())
    return *written_arguments(operation), *((position, names[position]) for position in unmarked)
