"""Compiled loops, by their addresses, and facts about plans, for the C++."""

from __future__ import annotations

from typing import Any, Protocol, final

import torch
from torch._ops import OpOverload

from ...formats import Format, Rounding
from ...formats.base.family import Family, LoopByAddress
from ..aten.moves import Moves
from ..aten.outputs import Outputs
from .library import LoopAddresses


class PlanOfOperation(Protocol):
    """The attributes of a plan that this folder reads; see :class:`.dispatch.plan.OperationPlan`."""

    operation: OpOverload | None
    kernel: Any
    name: str
    arithmetic: Any
    rounds: bool
    outputs: Outputs
    counts: Any
    moves: Moves | None
    decomposition: Any
    role: str
    accumulate: bool
    prepares: bool
    multiplies: bool
    spares: bool
    settles: bool
    passes_on: bool


CARRIERS = (torch.float32, torch.float64)


@final
class Loops:
    """The compiled loops that round values in a simulation, by address; this object keeps them alive."""

    def __init__(self) -> None:
        self._loops: dict[Any, LoopByAddress | None] = {}

    def of(
        self, fmt: Format, rounding: Rounding, *, in_place: bool, strided: bool = False
    ) -> dict[torch.dtype, LoopAddresses | None]:
        """Returns the loops of a format by carrier, None if it cannot round exactly; see :meth:`.Family.addressed`."""
        return {dtype: self._loop(fmt, rounding, dtype, in_place, strided) for dtype in CARRIERS}

    def _loop(
        self, fmt: Format, rounding: Rounding, dtype: torch.dtype, in_place: bool, strided: bool
    ) -> LoopAddresses | None:
        # A format of the user has no loop, and one that needs float64 cannot be rounded to in float32.
        if not isinstance(fmt, Family) or (dtype == torch.float32 and fmt.carrier == torch.float64):
            return None
        key = (fmt, rounding, dtype, strided)
        if key not in self._loops:
            self._loops[key] = fmt.addressed(dtype, rounding, strided=strided)
        loop = self._loops[key]
        if loop is None:
            return None
        draws = rounding is Rounding.STOCHASTIC
        return LoopAddresses(loop.address(in_place=in_place), loop.parameters, int(loop.calling), draws)
