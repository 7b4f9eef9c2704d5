"""Facts about an operation that rounding its operands needs, stored in a plan of the dispatch mode."""

from __future__ import annotations

from collections import Counter
from typing import Protocol

from torch._ops import OpOverload

from ..aten.outputs import Outputs
from ..policy.rules import Arithmetic


class PlannedOutcome(Protocol):
    """Counters, which are also described there."""

    missed: int
    unrounded: Counter[str]
    seen: Counter[tuple[str, str, str]]


class PlannedOperation(Protocol):
    """An operation at one place: it has the attributes of ``OperationPlan``, which describes them."""

    operation: OpOverload | None
    name: str
    role: str
    arithmetic: Arithmetic
    outputs: Outputs
    rounds: bool
    multiplies: bool
    narrows: bool

    @property
    def outcome(self) -> PlannedOutcome:
        """The counters of its outcomes so far."""
