"""What the simulation does with one operation at one place: resolved once from the policy, then looked up."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from roundoff.formats import Rounding
from roundoff.simulate import exact_operations, products
from roundoff.simulate.accumulation import accumulates
from roundoff.simulate.policy import OPTIMIZER_STEP, Granularity, Policy, Rule, Scalars
from roundoff.simulate.primitives import decomposition
from roundoff.simulate.treatment import Treatment, is_exact_in_carrier, is_move, treatment

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch._ops import OpOverload

    from roundoff.simulate.exact_operators import DrawAt
    from roundoff.simulate.exact_results import CarrierRounding

_CARRIER = "fp32"  # the name under which a policy leaves results in their carrier

# Kernels that contract and do more inside; a rounded accumulator needs them taken apart.
_FUSED_CONTRACTIONS = ("scaled_dot_product", "lstm", "gru", "rnn_")

_WHOLE_STEP = Treatment(results=False, viewing=(), written=((0, "self"),), lifts=False)


class Handling:
    """How one operation at one place is run, and what came of it so far.

    Attributes:
        operation: the ATen operation; None for the whole step of an optimizer.
        name: its name without overload.
        role: where it runs, as in :class:`Role`; empty where the policy does not ask.
        module: likewise.
        arithmetic: what the policy says.
        rules: those of the policy that had a say.
        treatment: which tensors it computes.
        rounds: whether its floating-point results are rounded.
        kernel: what computes it: the operation itself; or another library's matrix product; or exact arithmetic.
        exact: whether its results are exact ones, rounded to the carrier so that rounding them again is right.
        decomposition: runs instead of it; None if it runs itself.
        accumulate: whether its sums are accumulated by the policy's accumulator.
        prepares: whether operands must be looked at before it runs.
        calls: how often it ran.
        rounded: how many tensors of its results were rounded.
        taken_apart: how often the decomposition ran instead.
    """

    __slots__ = (
        "accumulate", "arithmetic", "calls", "decomposition", "exact", "kernel", "module", "name", "operation",
        "prepares", "role", "rounded", "rounds", "rules", "taken_apart", "treatment",
    )  # fmt: skip

    def __init__(
        self,
        policy: Policy,
        operation: OpOverload | None,
        role: str,
        module: str,
        draw: DrawAt,
        *,
        fast_products: bool = False,
    ) -> None:
        name = OPTIMIZER_STEP if operation is None else operation.overloadpacket.__name__
        self.operation, self.name, self.role, self.module = operation, name, role, module
        self.arithmetic, self.rules = policy.arithmetic(name, module, role)
        self.rounds = str(self.arithmetic.format) != _CARRIER
        self.treatment = _WHOLE_STEP if operation is None else treatment(operation)
        self.calls = self.rounded = self.taken_apart = 0
        self.accumulate = self.exact = self.prepares = False
        self.decomposition: Callable[..., Any] | None = None
        self.kernel: Callable[..., Any] | None = operation
        if operation is None or not (self.treatment.results or self.treatment.written):
            return
        a = self.arithmetic
        self.accumulate = a.accumulate is not None and accumulates(operation)
        fused = a.accumulate is not None and any(part in name for part in _FUSED_CONTRACTIONS)
        if fused or (a.granularity == Granularity.PRIMITIVE and self.rounds):
            self.decomposition = decomposition(operation)
        elif _is_a_formula(operation):
            self.decomposition = operation.decompose
        if fast_products and self.rounds and not self.accumulate and a.granularity == Granularity.KERNEL:
            self.kernel = products.kernel(operation)
        exact = exact_operations.kernel(operation, a.format, a.rounding, draw) if self.rounds else None
        if exact is not None:
            self.kernel, self.exact = exact, True
        self.prepares = any((a.operands, a.parameters, a.inputs, a.scalars == Scalars.ROUNDED and self.rounds))

    def __str__(self) -> str:
        return str(self.operation or self.name)

    def sum_rounding(self, dtype: torch.dtype) -> CarrierRounding:
        """How exact sums become numbers of ``dtype``, before they are rounded."""
        a = self.arithmetic
        return exact_operations.sum_rounding(a.format, dtype, a.rounding, rounds=self.rounds)

    def kind(self) -> str:
        """What happened to its results, in words."""
        if self.taken_apart:
            return "decomposed; rounded where its arguments make it primitive" if self.rounded else "decomposed"
        how = self.treatment
        if not how.results and not how.written and not how.lifts:
            return "left alone: a view" if how.viewing else "left alone: memory without numbers, or zeros"
        if not self.rounds:
            return "left in the carrier: the policy says fp32"
        if not self.rounded:
            return "left alone: data from outside" if how.lifts else "left alone: no floating-point results"
        if self.accumulate:
            return "rounded, and accumulated"
        return "exact move" if is_move(self.name) else self._how_often()

    def _how_often(self) -> str:
        nearest = self.arithmetic.rounding in (Rounding.NEAREST_EVEN, Rounding.NEAREST_AWAY)
        if nearest or self.exact or is_exact_in_carrier(self.name):
            return "rounded"
        return "rounded twice: its kernel rounds to the carrier first"


def _is_a_formula(operation: OpOverload) -> bool:
    """Whether PyTorch has no kernel of it, but other operations, which is what autograd sees: as in inference mode."""
    name: str = operation.name()  # type: ignore[no-untyped-call]
    if operation.namespace == "prim":  # questions about a tensor that stands for one while a program is traced
        return False
    return torch._C._dispatch_has_kernel_for_dispatch_key(name, "CompositeImplicitAutograd")  # noqa: SLF001


def scalar_names(operation: OpOverload) -> tuple[str, ...]:
    """Arguments of an operation that can be numbers to compute with (not sizes, axes or probabilities)."""
    return tuple(
        argument.name
        for argument in operation._schema.arguments  # noqa: SLF001  the only access there is
        if isinstance(argument.type, (torch.NumberType, torch.TensorType))
    )


def unused(rules: tuple[Rule, ...], used: set[int]) -> list[Rule]:
    """The rules that name an operation or a module, and matched nothing; optimizer steps need not happen."""
    return [
        rule
        for number, rule in enumerate(rules)
        if number not in used and (rule.operation not in (("*",), (OPTIMIZER_STEP,)) or rule.module != ("*",))
    ]
