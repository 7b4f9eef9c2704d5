"""Roles of the operands of products: weights, activations and gradients, distinguished by marks on their memory."""

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
    """The counters of an operation, as ``OperationOutcome`` describes them."""

    missed: int
    unrounded: Counter[str]
    seen: Counter[tuple[str, str, str]]


class PlannedOperation(Protocol):
    """An operation at one place, with attributes as ``OperationPlan`` describes them."""

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
    """The roles of the operands of one call, and its product."""

    roles: Mapping[str, Role]
    """The role of each multiplied operand, by argument."""
    product: Product | None
    """The product of the call; for the gradients of input and weight at once, the input's."""
    rotates: bool = False
    """Whether both operands take a Hadamard transform."""


NOTHING = KnownOperands({}, None)


class MultipliedOperands:
    """Remembers the operands of forward products; any other operand of a backward product is a gradient.

    A checkpoint recomputes activations in the backward pass, where its gradient mode, which is on, reveals it. It
    stops before its last product; so an activation that no product has multiplied yet, which requires a gradient,
    counts as the input of a product with a weight. In a backward pass with ``create_graph=True`` the mode
    is also on: its gradients count as activations.

    Args:
        certainty: returns the certainty that a tensor is a weight; None if it is data.
        marks: the table of marks of the simulation.
    """

    def __init__(self, certainty: Callable[[torch.Tensor], Certainty | None], marks: Marks) -> None:
        self._certainty, self._marks = certainty, marks

    def classify(self, plan: PlannedOperation, named: Mapping[str, Any]) -> KnownOperands:
        """Determines the roles of the operands of a call, and remembers the operands of the forward pass.

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
        # Without a weight among its operands, it is the gradient of one if the activation was multiplied with one.
        activations = [x for name, x in operands.items() if roles[name] == Role.ACTIVATIONS]
        marks = [self._marks.of(x) for x in activations]
        weighted = any(bits & Mark.WEIGHTED or not bits & Mark.ACTIVATION for bits in marks)
        return KnownOperands(roles, Product.GRAD_WEIGHT if weighted else None)

    def _weights(self, operands: Mapping[str, torch.Tensor]) -> list[str]:
        """Returns the names of the operands that are a product's weights: the ones with the highest certainty."""
        certainties = {name: certainty for name, x in operands.items() if (certainty := self._certainty(x)) is not None}
        if not certainties:
            return []
        surest = [name for name, certainty in certainties.items() if certainty == min(certainties.values())]
        if certainties[surest[0]] == Certainty.PERHAPS and len(surest) == len(operands):  # none is surer than another
            return []
        # Of a network's parameter and another tensor that requires a gradient, the parameter is the weight.
        registered = [name for name in surest if isinstance(_base(operands[name]), torch.nn.Parameter)]
        return registered or surest

    def _role_in_backward(self, x: torch.Tensor) -> Role:
        if self._marks.of(x) & Mark.ACTIVATION:
            return Role.ACTIVATIONS
        if self._certainty(x) is not None:
            return Role.WEIGHTS
        return Role.ACTIVATIONS if x.requires_grad else Role.GRADIENTS


def _base(x: torch.Tensor) -> torch.Tensor:
    return x if x._base is None else x._base  # noqa: SLF001  the only access there is


def is_backward(role: str) -> bool:
    """Whether an operation with this role computes gradients, and does not recompute activations."""
    return role == Role.BACKWARD and not torch.is_grad_enabled()


def is_number(x: object) -> bool:
    """Whether ``x`` is a tensor that operands can be rounded in: dense, float32 or float64."""
    return (
        isinstance(x, torch.Tensor)
        and x.dtype in (torch.float32, torch.float64)
        and x.layout is torch.strided
        and not x.is_nested
    )
