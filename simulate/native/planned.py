"""Facts about a plan that the C++ code needs before it runs the operation without Python."""

from __future__ import annotations

from typing import Any, Protocol

from torch._ops import OpOverload

from ..aten.moves import Moves
from ..aten.outputs import Outputs


class PlanOfOperation(Protocol):
    """The attributes that are read of a plan; see :class:`.dispatch.plan.OperationPlan`."""

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
