"""The plan of one operation at one place: decided once from the policy, then looked up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, cast, final

import torch
from torch._ops import HigherOrderOperator, OpOverload

from ...formats import Rounding
from ...formats.base.modes import NEAREST
from ...formats.families.floats import FP32
from ..accumulation.description import Accumulation
from ..accumulation.fused_sum import FusedSum
from ..accumulation.run import accumulates
from ..aten import products
from ..aten.collectives import communicates
from ..aten.kernels import formula, steps
from ..aten.moves import Moves, is_exact_in_carrier, moves_of
from ..aten.outputs import Outputs, outputs
from ..aten.sums import are_floats, steps_inside, sums_inside
from ..aten.tables import EMPTY, FUSED_CONTRACTIONS, LAYER_KERNELS, PARTS_OF_LAYERS, is_contraction, is_other_product
from ..composites.primitives import decomposition
from ..policy.policy import Policy
from ..policy.rules import OPTIMIZER_STEP, Granularity, Islands, Role, Scalars, Whole
from ..rounded_once import operations as exact_operations
from ..rounded_once.carrier_rounding import CarrierRounding
from ..rounded_once.conversions import conversion
from ..rounded_once.format_kernels import Adapted, Rounder, compares_with_results, of_the_format
from ..rounded_once.operators import DrawAt
from ..watching.integers import Integers
from ..watching.last_read import LastRead, noting
from ..watching.metrics import ChangedMeasures, reading
from ..watching.watcher import Place
from .whole import WholeNumberUse

Operation = OpOverload | HigherOrderOperator

UNSIMULATED = Policy("fp32")
_READ_NUMBER = "_local_scalar_dense"  # ``.item()``, ``float()``, ``if``


_OPTIMIZER_OUTPUTS = Outputs(results=False, viewing=(), written=((0, "self"),), lifts=False)
_NO_OUTPUTS = Outputs(results=False, viewing=(), written=(), lifts=False)


@final
class OperationOutcome:
    """The counters of an operation's outcomes at one place.

    Attributes:
        calls: how often it ran.
        rounded: how many tensors of its results were rounded.
        moved: how often it was an exact move.
        left_whole: how often its results were integers, and left as they were.
        taken_apart: how often its decomposition ran instead.
        accumulated: how often the policy's accumulator took its sums.
        unaccumulated: how often it summed in the carrier, though the policy has an accumulator, or took several steps
            there, though each primitive step is to be rounded.
        widened: how often its float16 and bfloat16 tensors were converted to float32.
        seen: how often it took rounded operands, by product, role (or argument) and format.
        unrounded: how often an operand that a rule may be about was not rounded, by its kind: complex, or sparse.
        missed: how often a rule about weights found none among the factors, though some came from outside.
    """

    __slots__ = (
        "accumulated", "calls", "left_whole", "missed", "moved", "rounded", "seen", "taken_apart", "unaccumulated",
        "unrounded", "widened",
    )  # fmt: skip

    def __init__(self) -> None:
        self.accumulated = self.calls = self.left_whole = self.moved = self.rounded = self.taken_apart = 0
        self.missed = self.unaccumulated = self.widened = 0
        self.unrounded: Counter[str] = Counter()
        self.seen: Counter[tuple[str, str, str]] = Counter()


def _zeroing(operation: OpOverload) -> Callable[..., torch.Tensor]:
    """Returns a kernel that fills new memory with zeros, where formats share scales among neighbours.

    PyTorch writes to such memory part by part (circular padding): rounding the first part would take its scale from
    old values in the rest.
    """

    def allocate_zeros(*args: Any, **kwargs: Any) -> torch.Tensor:
        x: torch.Tensor = operation(*args, **kwargs)
        return x.zero_() if x.is_floating_point() or x.is_complex() else x

    return allocate_zeros


class OperationPlan:
    """The plan for one operation at one place: decided once and never changed; only its outcomes are counted.

    Attributes:
        operation: the ATen operation, or one with function arguments; None for the whole step of an optimizer.
        name: its name without overload.
        role: its :class:`Role`; empty if the policy does not depend on places.
        module: path of the module it runs in; empty if the policy does not depend on places.
        place: role, module and name.
        arithmetic: the arithmetic that the policy gives it.
        rules: the rules of the policy that apply to it.
        outputs: the tensors that it computes.
        rounds: whether its floating-point results are rounded.
        widens: whether its float16 and bfloat16 tensors are converted to float32.
        spares: whether it is unrounded without such a tensor (``islands: exact``).
        is_island: whether this is the plan for calls without such a tensor.
        passes_on: whether it only returns existing results, such as the results of other processes.
        kernel: its implementation: the operation itself, another library's matrix product, or exact arithmetic.
        exact: whether rounding its carrier results equals rounding the exact results once.
        decomposition: runs instead of it; None if it runs itself.
        accumulate: whether its sums are accumulated by the policy's accumulator.
        prepares: whether its operands are rounded or recorded before it runs.
        multiplies: whether its weights, activations and gradients are distinguished.
        narrows: whether tensor cores may compute it, from operands that were rounded to narrow formats.
        moves: the calls that are exact moves; None if no call is.
        contracts: whether it is a product, which a GPU is to compute without TF32.
        settles: whether it returns before it has ended, so that the simulation waits for it.
        takes_nested: whether the decomposition accepts nested tensors.
        counts: its use of counts and other integer values; None if the policy rounds these.
        outcome: the counters of its outcomes so far.
    """

    __slots__ = (
        "accumulate", "arithmetic", "contracts", "counts", "decomposition", "exact", "is_island",
        "kernel", "module", "moves", "multiplies", "name", "narrows", "operation", "outcome", "outputs",
        "passes_on", "place", "prepares", "role", "rounds", "rules", "settles", "spares", "takes_nested",
        "widens",
    )  # fmt: skip

    def __init__(
        self, policy: Policy, operation: Operation | None, role: str, module: str, draw: DrawAt, *, stored: Rounder,
        changes: ChangedMeasures | None = None, integers: Integers | None = None,
        readers: Callable[[], Sequence[LastRead]] = tuple, fast_products: bool = False, narrow_products: bool = False,
        is_island: bool = False,
    ) -> None:  # fmt: skip
        self.is_island = is_island
        self.outcome = OperationOutcome()
        notes = changes, integers, readers, stored
        self._decide(policy, operation, role, module, draw, notes, fast_products, narrow_products)
        self.__class__ = _DecidedPlan  # noqa: PLE0237  __class__ needs no slot

    def _decide(
        self, policy: Policy, operation: Operation | None, role: str, module: str, draw: DrawAt,
        notes: tuple[ChangedMeasures | None, Integers | None, Callable[[], Sequence[LastRead]], Rounder],
        fast_products: bool, narrow_products: bool,
    ) -> None:  # fmt: skip
        changes, integers, readers, stored = notes
        # Identity and arithmetic
        name = _name_of(operation)
        self.operation = cast("OpOverload | None", operation)  # higher-order operators are always decomposed
        self.name, self.role, self.module = name, role, module
        self.place = Place(role, module, name)
        self.arithmetic, self.rules = policy.arithmetic(name, module, role)
        self.rounds = self.arithmetic.format != FP32
        self.accumulate = self.exact = self.multiplies = self.prepares = self.settles = self.takes_nested = False
        self.narrows = self.passes_on = self.widens = False
        self.spares = self.arithmetic.islands == Islands.EXACT
        self.contracts = is_contraction(name) and policy != UNSIMULATED
        self.moves: Moves | None = None
        self.counts: WholeNumberUse | None = None
        self.decomposition: Callable[..., Any] | None = None
        self.kernel: Callable[..., Any] | None = self.operation
        # Outputs, and exact moves and integers among them
        if isinstance(operation, HigherOrderOperator):
            self.outputs = _NO_OUTPUTS
            self.decomposition = steps(operation)
            return
        self.outputs = _OPTIMIZER_OUTPUTS if operation is None else outputs(operation)
        self.moves = None if operation is None else moves_of(operation)
        if self.operation is not None and policy.whole == Whole.EXACT:
            self.counts = WholeNumberUse.by(self.operation, rounds=self.rounds)
            auxiliary = (*self.outputs.auxiliary, *self.counts.auxiliary)
            self.outputs = self.outputs._replace(written=self.counts.written, auxiliary=auxiliary)
        # Operations that read or allocate, and compute nothing
        if operation is not None and name == _READ_NUMBER:
            self.widens = self.rounds
            if changes is not None:
                self.kernel = reading(operation, changes)
            self.kernel = noting(self.kernel or operation, name, readers)
            return
        if operation is not None and operation.overloadpacket in EMPTY and policy.shares_scales:
            self.kernel = _zeroing(operation)
        if operation is None or not (self.outputs.results or self.outputs.written):
            return
        self.settles = communicates(operation) and operation.namespace == "c10d"
        # The kernel, or the decomposition
        a = self.arithmetic
        self.accumulate = a.accumulate is not None and accumulates(operation, a.accumulate)
        # Attention and recurrent layers as one kernel are taken apart where a rule or accumulator is about their parts.
        fused = a.accumulate is not None and any(part in name for part in FUSED_CONTRACTIONS)
        layer = name in LAYER_KERNELS and policy.reaches(PARTS_OF_LAYERS, module, role)
        if fused or layer or (a.granularity == Granularity.PRIMITIVE and self.rounds):
            self.decomposition = decomposition(operation)
            self.takes_nested = name in LAYER_KERNELS
        else:
            self.decomposition = formula(operation)
        if fast_products and self.rounds and not self.accumulate and a.granularity == Granularity.KERNEL:
            self.kernel = products.kernel(operation)
        # Each of the following wraps or replaces the kernel of the previous one: the order matters.
        self._compute_exactly(operation, draw)
        if not accumulates(operation):
            self._count_steps(operation)
        self._adapt_to_format(policy, operation, integers, stored)
        self.kernel = noting(self.kernel or operation, name, readers)
        self._prepare(policy, operation, narrow_products=narrow_products)

    def _compute_exactly(self, operation: OpOverload, draw: DrawAt) -> None:
        """Replaces the kernel by exact arithmetic, where rounding the results of the kernel would round twice."""
        a = self.arithmetic
        if not self.rounds:
            return
        target = a.format, a.rounding, draw
        numbers_once = a.scalars == Scalars.ONCE
        exact = exact_operations.kernel(operation, *target, numbers_once=numbers_once) or conversion(operation, *target)
        if exact is not None:
            self.kernel, self.exact = exact, True

    def _count_steps(self, operation: OpOverload) -> None:
        """Makes the kernel count calls with inner sums that no accumulator reaches, or with unrounded inner steps."""
        a = self.arithmetic
        has_inner = steps_inside(operation) if a.accumulate is None else sums_inside(operation)
        is_primitive = a.granularity == Granularity.PRIMITIVE and self.rounds
        on_matrix_unit = isinstance(a.accumulate, FusedSum)  # which computes only products
        if has_inner is None or (a.accumulate is None and not is_primitive):
            return
        if on_matrix_unit and not (self.contracts or is_other_product(self.name)):
            return
        kernel = self.kernel or operation

        def counting(*args: Any, **kwargs: Any) -> Any:
            self.outcome.unaccumulated += has_inner(args, kwargs) and are_floats(args)
            return kernel(*args, **kwargs)

        self.kernel = counting

    def _adapt_to_format(
        self, policy: Policy, operation: OpOverload, integers: Integers | None, stored: Rounder
    ) -> None:
        """Adapts kernels that depend on the format, and makes them warn of integers computed from rounded values."""
        assert self.kernel is not None
        compares = policy.rounds_results and compares_with_results(operation)
        # Comparisons use the format of the forward pass, which has rounded the compared values.
        a = policy.arithmetic("amax", self.module, Role.FORWARD)[0] if compares else self.arithmetic
        if compares or self.rounds:
            self.kernel = of_the_format(Adapted(operation, self.kernel, a.format, a.rounding, stored))
        if integers is not None:
            self.kernel = integers.warning(self.kernel, self.name, self.arithmetic.format)

    def _prepare(self, policy: Policy, operation: OpOverload, *, narrow_products: bool) -> None:
        """Decides about the operands: whether they are rounded, distinguished, narrowed or widened."""
        a = self.arithmetic
        self.multiplies = policy.tells_products_apart and self.role != Role.OPTIMIZER and is_contraction(self.name)
        rounds_scalars = a.scalars == Scalars.ROUNDED and self.rounds
        self.prepares = any((a.operands, a.of_operands, rounds_scalars, self.multiplies))
        by_kernel = a.granularity == Granularity.KERNEL  # else products are taken apart
        self.narrows = narrow_products and by_kernel and not self.accumulate and operation in products.MATRIX_PRODUCTS
        self.passes_on = communicates(operation) and not self.settles  # such operations only wait for results
        self.widens = (self.rounds or self.prepares or self.accumulate) and not self.passes_on

    def __str__(self) -> str:
        return str(self.operation or self.name)

    def sum_rounding(self, dtype: torch.dtype) -> CarrierRounding:
        """Returns the rounding of exact sums to ``dtype``, before they are rounded to the format."""
        a = self.arithmetic
        return exact_operations.sum_rounding(a.format, dtype, a.rounding, rounds=self.rounds)

    def describe_operands(self) -> str:
        """Describes the formats of its operands, by product for an operation with a weight."""
        texts: dict[str, list[str]] = {}
        for product, role, fmt in sorted(self.outcome.seen):
            texts.setdefault(product, []).append(f"{role} {fmt}")
        for kind in sorted(self.outcome.unrounded):
            texts.setdefault("", []).append(f"{kind} unrounded")
        return "; ".join(f"{product}: {', '.join(x)}" if product else ", ".join(x) for product, x in texts.items())

    @property
    def rounds_sums(self) -> bool:
        """Whether the accumulator rounds its sums, always to nearest-even."""
        return isinstance(self.arithmetic.accumulate, Accumulation) and not self.arithmetic.accumulate.is_exact

    def kind(self) -> str:
        """Describes the treatment of its results, in words."""
        if self.outcome.taken_apart:
            return "decomposed; rounded where its arguments make it primitive" if self.outcome.rounded else "decomposed"
        # Reasons for unrounded results, then the kind of rounding
        outputs = self.outputs
        if not outputs.results and not outputs.written and not outputs.lifts:
            return "unrounded: a view" if outputs.viewing else "unrounded: memory without values, or zeros"
        if not self.rounds and self.outcome.accumulated:
            return f"left in the carrier, with sums by {self.arithmetic.accumulate}"
        if not self.rounds:
            reason = "float32 of the program's own" if self.is_island else "the policy says fp32"
            return f"left in the carrier: {reason}"
        if not self.outcome.rounded:
            return self._reason_unrounded()
        text = self._describe_rounding()
        if self.outcome.accumulated:
            other_mode = self.rounds_sums and self.arithmetic.rounding != Rounding.NEAREST_EVEN
            text = "rounded, and accumulated to nearest-even" if other_mode else "rounded, and accumulated"
        unreached = "steps" if self.arithmetic.accumulate is None else "sums"
        return f"{text}; {unreached} in the carrier" if self.outcome.unaccumulated else text

    def _reason_unrounded(self) -> str:
        if self.outcome.left_whole:
            return "unrounded: integer values"
        return "unrounded: data from outside" if self.outputs.lifts else "unrounded: no floating-point results"

    def _describe_rounding(self) -> str:
        if self.outcome.calls == self.outcome.moved:
            return "exact move"
        is_nearest = self.arithmetic.rounding in NEAREST
        is_once = is_nearest or self.exact or is_exact_in_carrier(self.operation)
        text = "rounded" if is_once else "rounded twice: its kernel rounds to the carrier first"
        text += "; unrounded where its values are integers" if self.outcome.left_whole else ""
        return f"{text}; exact move where its arguments make it one" if self.outcome.moved else text


@final
class _DecidedPlan(OperationPlan):
    """A finished plan, which refuses assignments; a separate class, since checking them slows down the decisions."""

    __slots__ = ()

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a plan never changes: {name} was decided when it was made")


def _name_of(operation: Operation | None) -> str:
    if operation is None:
        return OPTIMIZER_STEP
    return str(operation) if isinstance(operation, HigherOrderOperator) else operation.overloadpacket.__name__
