"""Roles of the operands of products: weights, activations and gradients, told apart by their memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

import torch
from torch._ops import OpOverload

from ..aten.contracted_axes import is_multiplied
from ..aten.outputs import Outputs
from ..marks.table import Mark, Marks
from ..policy.rules import Arithmetic, Product, Role
from .weights import Certainty


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


class KnownOperands(NamedTuple):
    """The known facts about the operands of one call."""

    roles: Mapping[str, Role]
    """The role of each operand that is multiplied, by argument."""
    product: Product | None
    """The product that the call is; for the gradients of input and weight at once, the input's."""
    rotates: bool = False
    """Whether both operands take a Hadamard transform."""


NOTHING = KnownOperands({}, None)


class MultipliedOperands:
    """Remembers the operands of forward products; any other operand of a backward product is a gradient.

    A checkpoint computes activations again in the backward pass, and is known by its gradient mode, which is on. It
    stops before its last product; so an activation that no product has multiplied yet, known since it needs a
    gradient, is taken as the input of a product with a weight. In a backward pass with ``create_graph=True`` the mode
    is also on: its gradients count as activations.

    Args:
        sure: Returns how sure it is that a tensor is a weight; None if it is data.
        marks: Table of marks of the simulation.
    """

    def __init__(self, sure: Callable[[torch.Tensor], Certainty | None], marks: Marks) -> None:
        self._sure, self._marks = sure, marks

    def tell(self, plan: PlannedOperation, named: Mapping[str, Any]) -> KnownOperands:
        """The roles of the operands of a call.

        Args:
            plan: plan of the operation.
            named: its arguments by name.
        """
        operands = {name: x for name, x in named.items() if is_number(x) and is_multiplied(plan.name, name)}
        if not is_backward(plan.role):
            weights = self._weights(operands)
            for name, x in operands.items():
                if name not in weights:
                    self._marks.add(x, Mark.ACTIVATION | (Mark.WEIGHTED if weights else 0))
            roles = {name: Role.WEIGHTS if name in weights else Role.ACTIVATIONS for name in operands}
            return KnownOperands(roles, Product.OUTPUT if weights else None)
        roles = {name: self._role_in_backward(x) for name, x in operands.items()}
        if Role.WEIGHTS in roles.values():
            return KnownOperands(roles, Product.GRAD_INPUT)
        activations = [x for name, x in operands.items() if roles[name] == Role.ACTIVATIONS]
        known = [self._marks.of(x) for x in activations]
        weighted = any(bits & Mark.WEIGHTED or not bits & Mark.ACTIVATION for bits in known)
        return KnownOperands(roles, Product.GRAD_WEIGHT if weighted else None)

    def _weights(self, operands: Mapping[str, torch.Tensor]) -> list[str]:
        """The names of those operands of one product that are its weights: the surest of them."""
        sure = {name: rank for name, x in operands.items() if (rank := self._sure(x)) is not None}
        if not sure:
            return []
        surest = [name for name, rank in sure.items() if rank == min(sure.values())]
        if sure[surest[0]] == Certainty.PERHAPS and len(surest) == len(operands):
            return []
        # Of a network's parameter and a tensor whose gradient is asked for, the parameter is the weight.
        registered = [name for name in surest if isinstance(_base(operands[name]), torch.nn.Parameter)]
        return registered or surest

    def _role_in_backward(self, x: torch.Tensor) -> Role:
        if self._marks.of(x) & Mark.ACTIVATION:
            return Role.ACTIVATIONS
        if self._sure(x) is not None:
            return Role.WEIGHTS
        return Role.ACTIVATIONS if x.requires_grad else Role.GRADIENTS


def _base(x: torch.Tensor) -> torch.Tensor:
    return x if x._base is None else x._base  # noqa: SLF001  the only access there is


def is_backward(role: str) -> bool:
    """Whether an operation with this role computes gradients, and not activations again."""
    return role == Role.BACKWARD and not torch.is_grad_enabled()


def is_number(x: object) -> bool:
    """Whether ``x`` is a tensor of numbers that operands are rounded in."""
    return (
        isinstance(x, torch.Tensor)
        and x.dtype in (torch.float32, torch.float64)
        and x.layout is torch.strided
        and not x.is_nested
    )
