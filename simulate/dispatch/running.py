"""Runs one operation of a simulated program as its plan says, and rounds its results."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, final

import torch
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode, _pop_mode, _push_mode

from roundoff.locks import new_lock

from ...formats import Format, FormatError, Rounding
from ..accumulation.fused_sums import UnfitOperandsError
from ..accumulation.run import accumulate as run_accumulated
from ..aten.collectives import settle
from ..aten.sums import are_floats
from ..aten.tables import LAYER_KERNELS
from ..aten.tensor_cores import in_float32, is_on_gpu
from ..marks.table import Marks
from ..native.library import computed, hold_thread
from ..native.plain import Notes
from ..native.shortcut import Shortcut
from ..numbers.host_numbers import recognized
from ..operands.rounding import Operands
from ..operands.weights import draws
from ..policy.places import ModuleTracker
from ..policy.policy import Policy
from ..policy.rules import Role
from ..presence.draws import Draws
from ..presence.entering import this_thread
from ..watching.integers import (
    ALWAYS_NOTED,
    NOTED_OF_COUNTS,
    Integers,
    count_before_addition,
    warn_if_absorbed,
    warn_if_beyond,
)
from ..watching.last_read import LastRead
from ..watching.metrics import ChangedMeasures, is_measure
from ..watching.watcher import NO_OPERANDS, Call, Watcher
from .narrow_tensors import NARROW, NarrowCall
from .plan import OperationPlan
from .results import Results
from .whole import WholeNumbers

_CARRIER = Policy("fp32")


@final
class Runner:
    """Runs the operations of one simulation, each by its plan.

    Args:
        mode: the simulation, which also runs the operations of a decomposition.
        policy: the arithmetic of each operation.
        draws: counts stochastic roundings.
        watchers: objects called for every operation.
        readers: returns the objects that record which values are read.
        fast_products: whether large matrix products take the faster library of this machine.
        narrow_products: whether products of operands in narrow formats take the tensor cores of a GPU.
        leave_moves: whether exact moves pass values on unchanged.

    Attributes:
        plans: the treatment of every operation that ran, by the operation and its place.
        results: rounds the results of operations.
        operands: handles operands that are rounded before an operation runs.
        watchers: objects called for every operation.
        whole: remembers which memory holds integers; None if none would be rounded, or the policy rounds them.
    """

    def __init__(
        self, mode: TorchDispatchMode, policy: Policy, draws: Draws, watchers: Sequence[Watcher], *,
        readers: Callable[[], Sequence[LastRead]], fast_products: bool, narrow_products: bool, leave_moves: bool,
    ) -> None:  # fmt: skip
        self._mode = mode
        self._policy, self._draws = policy, draws
        self._products: dict[str, Any] = {"fast_products": fast_products, "narrow_products": narrow_products}
        self._leaves_moves = leave_moves
        self._marks = Marks()
        self.operands = Operands(policy, self._marks)
        self.watchers = list(watchers)
        self._sees_roundings = any(watcher.sees_roundings for watcher in watchers)
        self.whole = WholeNumbers.under(policy, self._marks)
        self._changes = ChangedMeasures.in_formats(policy.formats(), self._marks) if policy.rounds_results else None
        self._integers = None if self.whole is None else Integers(self.whole.__contains__, self._marks)
        self._notes: dict[str, Any] = {"changes": self._changes, "integers": self._integers, "readers": readers}
        self.results = Results(draws, watchers, self._changes, self._integers)
        self._notes["stored"] = self.results.stored
        self.plans: dict[Any, OperationPlan] = {}
        self._shortcut: Shortcut | None = None
        self._dtypes: dict[Any, list[torch.dtype | None]] = {}
        self._lock = new_lock()

    def take_shortcut(self, places: ModuleTracker | None) -> None:
        """Makes plain operations run in C++ only from now on, unless a watcher must see each operation.

        Args:
            places: follows modules and optimizers, not entered yet; None if the policy does not depend on them.
        """
        if self._shortcut is not None or self.watchers or self._leaves_moves:
            return
        if places is not None and places.is_entered():  # C++ would not know the modules that a thread is in
            return
        integers, whole = self._integers, self.whole
        never = frozenset[str]()
        always_noted, noted_of_counts = (never, never) if integers is None else (ALWAYS_NOTED, NOTED_OF_COUNTS)
        with self._lock:
            notes_single = None if self._changes is None else is_measure
            notes = Notes(whole is not None, notes_single, always_noted, noted_of_counts, self.operands.follows, draws)
            arithmetic = self._policy, *self._products.values()
            self._shortcut = Shortcut.of(self._mode, notes, arithmetic, self._draws, follows=places is not None)
            if self._shortcut is not None:
                self._marks.move_to(self._shortcut)
                if places is not None:
                    places.set_follower(self._shortcut)
                for plan in self.plans.values():
                    self._describe(plan)

    def _describe(self, plan: OperationPlan) -> None:
        if self._shortcut is not None and not plan.is_island:
            self._shortcut.describe(plan)

    def without_shortcut(self) -> AbstractContextManager[None]:
        """Runs every operation of the block through Python."""
        return self._shortcut.held() if self._shortcut else nullcontext()

    def counted_plans(self) -> tuple[OperationPlan, ...]:
        """Returns all plans, with their outcomes up to now, also those that the C++ part has counted."""
        if self._shortcut is not None:
            self._shortcut.count(self._resolve_plain)
        return tuple(self.plans.values())

    def resolve(self, key: Any, operation: OpOverload | None, role: str, module: str) -> OperationPlan:
        """Returns the plan of an operation at a place, made at the first call and kept under ``key``."""
        with self._lock:
            if key not in self.plans:  # another thread may have made it meanwhile
                self.plans[key] = plan = self.plan(operation, role, module)
                self._describe(plan)
            return self.plans[key]

    def _resolve_plain(self, operation: OpOverload, role: str, module: str) -> None:
        """Makes the plan of an operation that ran without one, from the description of an earlier simulation."""
        self.resolve((operation, role, module) if role else operation, operation, role, module)

    def plan(self, operation: OpOverload | None, role: str, module: str) -> OperationPlan:
        """Makes the plan of an operation at a place, without keeping it."""
        draw = self.results.draw_for_carrier
        return OperationPlan(self._policy, operation, role, module, draw, **self._notes, **self._products)

    def island_plan(self, plan: OperationPlan) -> OperationPlan:
        """Returns the plan for an operation that the program itself computes in full precision."""
        with self._lock:
            if plan not in self.plans:
                place = plan.operation, plan.role, plan.module
                notes = {name: self._notes[name] for name in ("readers", "stored")}
                self.plans[plan] = OperationPlan(
                    _CARRIER, *place, self.results.draw_for_carrier, **notes, is_island=True
                )
            return self.plans[plan]

    def run(
        self, plan: OperationPlan, args: Sequence[Any], kwargs: Mapping[str, Any], narrow: NarrowCall | None = None
    ) -> Any:
        """Runs an operation, or the operations of its decomposition.

        Args:
            plan: plan of the operation.
            args: its arguments.
            kwargs: its arguments by name.
            narrow: the program's call, if ``args`` are float32 copies of its narrow tensors, and float32 results stay
                unrounded; else None.
        """
        plan.outcome.calls += 1
        if plan.decomposition is not None:
            result = self._run_decomposed(plan, args, kwargs)
            if result is not NotImplemented:  # with these arguments the operation is primitive
                plan.outcome.taken_apart += 1
                return result
        this_thread.rounding = True
        try:
            return self._run_primitive(plan, args, kwargs, narrow)
        finally:
            this_thread.rounding = False

    def run_detach(self, plan: OperationPlan, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Runs autograd's detach, with the C++ part off, which would count it for outer simulations."""
        hold_thread(1)
        try:
            return self.run(plan, args, kwargs)
        finally:
            hold_thread(-1)

    def run_widened(self, plan: OperationPlan, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Runs an operation on float32 copies of its float16 or bfloat16 tensors."""
        if self.results.writer is not None:
            raise FormatError(
                f"a compiled step computes in float32 or float64, but {plan} has tensors of the program's own float16"
                " or bfloat16: leave out .half(), .bfloat16() and autocast, or run the step without roundoff.compile"
            )
        carried = self._report_copy if self.watchers or self.operands.follows else None
        was_carrying = this_thread.carrying
        this_thread.rounding = True
        try:
            # The copies are made with rounding off; the operation itself runs with it on, on float32 tensors.
            call = NarrowCall(plan, args, kwargs, self._dtypes)
            # Kernels of whole layers may return float32 gradients of results in half precision.
            is_island = plan.spares and call.computes.isdisjoint(NARROW) and plan.name not in LAYER_KERNELS
            new_arguments = (args, kwargs) if is_island else call.widened(carried)
            this_thread.rounding = False
            if is_island:
                return self.run(self.island_plan(plan), *new_arguments)
            plan.outcome.widened += 1
            this_thread.carrying = True
            result = self.run(plan, *new_arguments, call if plan.spares else None)
            this_thread.rounding = True
            return call.narrowed(result, carried)
        finally:
            this_thread.rounding, this_thread.carrying = False, was_carrying

    def _report_copy(self, source: torch.Tensor, target: torch.Tensor) -> None:
        """Informs the watchers and the operands of a copy in another dtype."""
        for watcher in self.watchers:
            watcher.carried(source, target)
        if self.operands.follows:
            self.operands.carried(source, target)

    def _run_decomposed(self, plan: OperationPlan, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Runs the decomposition; each of its operations calls the mode."""
        assert plan.decomposition is not None
        if not plan.takes_nested and any(isinstance(x, torch.Tensor) and x.is_nested for x in args):
            return NotImplemented
        _push_mode(self._mode)  # PyTorch takes a mode off the stack while it handles an operation
        try:
            return plan.decomposition(*args, **kwargs)
        finally:
            _pop_mode()

    def _run_primitive(
        self, plan: OperationPlan, args: Sequence[Any], kwargs: Mapping[str, Any], narrow: NarrowCall | None
    ) -> Any:
        """Runs an operation that is not decomposed, rounds its results and informs the watchers."""
        assert plan.operation is not None
        # Rounds the operands
        original_arguments, separate = (args, kwargs), None
        operand_formats: dict[tuple[str, str], Format] | None = {} if self.watchers and plan.prepares else None
        if plan.prepares:
            args, kwargs, separate = self.operands.ready(
                plan, args, kwargs, self.results.rounder(plan), operand_formats
            )
        whole = self.whole is not None and self.whole.are_made(plan.counts, args, kwargs)
        # Informs the watchers before the operation
        call, tokens = None, []
        if self.watchers:
            arithmetic = plan.arithmetic
            call = Call(
                plan.place, arithmetic.format, plan.operation, args, kwargs, original_arguments, arithmetic.rounding,
                arithmetic.accumulate if plan.accumulate and not whole else None,
                NO_OPERANDS if operand_formats is None else operand_formats, whole,
                plan.moves is not None and plan.moves.these(args, kwargs),
            )  # fmt: skip
            tokens = [watcher.before(call) for watcher in self.watchers]
        count = self._count_to_check(plan, args, whole=whole)
        result = self._compute(plan, args, kwargs, separate, whole=whole)
        # Marks integers, which are not rounded
        is_move = plan.moves is not None and plan.moves.these(args, kwargs)
        plan.outcome.moved += is_move
        if self.whole is not None and plan.counts is not None and (whole or plan.counts.writes):
            self.whole.note(plan.counts, args, kwargs, result, whole=whole)
            plan.outcome.left_whole += whole
            if whole and plan.rounds and plan.role != Role.OPTIMIZER:
                warn_if_beyond(result, plan.arithmetic.format)
        # Rounds the results, and informs the watchers after the operation
        if (plan.rounds or self._sees_roundings) and not (whole or (is_move and self._leaves_moves)):
            self.results.round(plan, args, kwargs, result, call, _unrounded_ids(plan, narrow, result))
            if count is not None:
                warn_if_absorbed(count, args, result, plan.arithmetic.format)
        if self.operands.follows:
            self.operands.note(plan, *original_arguments, result)
        if call is not None:
            for watcher, token in zip(self.watchers, tokens, strict=True):
                watcher.after(call, token, result)
        return result

    def _count_to_check(self, plan: OperationPlan, args: Sequence[Any], *, whole: bool) -> torch.Tensor | None:
        """Returns the value of a possible count before the operation adds to it; None if there is none to check."""
        if whole or self.whole is None or plan.counts is None or not plan.counts.adds or self.results.writer:
            return None
        return count_before_addition(plan.name, args)

    def _compute(
        self, plan: OperationPlan, args: Sequence[Any], kwargs: Mapping[str, Any],
        separate: Callable[[Callable[..., Any]], Any] | None, *, whole: bool,
    ) -> Any:  # fmt: skip
        """Computes the results of the operation, before they are rounded."""
        assert plan.kernel is not None
        if computed.waits and computed.is_readable():  # C++ ran it; only what follows is left to Python
            result = computed.take()
            # The operands of each product are still rounded, since their roundings draw random bits and are counted.
            return result if separate is None else separate(lambda _: result)
        if plan.contracts and is_on_gpu(args):
            with in_float32(plan.name):
                result = separate(partial(self._run_kernel, plan)) if separate else self._run_kernel(plan, args, kwargs)
        elif separate is not None:
            result = separate(partial(self._run_kernel, plan))
        elif (plan.accumulate and not whole) or self.results.writer:
            result = self._run_kernel(plan, args, kwargs, whole=whole)
        else:
            result = plan.kernel(*args, **kwargs) if kwargs else plan.kernel(*args)
        if plan.settles:
            settle(result)
        return result

    def _run_kernel(
        self, plan: OperationPlan, args: Sequence[Any], kwargs: Mapping[str, Any] | None = None, *, whole: bool = False
    ) -> Any:
        """Runs the kernel, or the sums of the policy's accumulator, except for sums of integers."""
        assert plan.operation is not None
        assert plan.kernel is not None
        if plan.accumulate and not whole:
            assert plan.arithmetic.accumulate is not None
            rounding = plan.arithmetic.rounding if plan.rounds else Rounding.NEAREST_EVEN
            accumulation = plan.arithmetic.accumulate, plan.sum_rounding, partial(self.results.draw, rounding)
            try:
                result = run_accumulated(plan.operation, args, kwargs or {}, *accumulation)
            except UnfitOperandsError:
                if not plan.arithmetic.of_operands:
                    raise
                result = NotImplemented  # recipes do not round the operands of some products
            if result is not NotImplemented:
                plan.outcome.accumulated += 1
                return result
            plan.outcome.unaccumulated += are_floats(args)
        if self.results.writer and plan.exact:  # exact kernels compute with numbers in Python
            args, kwargs = recognized(args, kwargs or {})
        return plan.kernel(*args, **(kwargs or {}))


def _unrounded_ids(plan: OperationPlan, narrow: NarrowCall | None, result: Any) -> Container[int]:
    """Returns the ``id`` of each tensor that is not rounded."""
    ids = () if narrow is None else narrow.wide_results(result)
    if not plan.outputs.auxiliary:
        return ids
    return {*ids, *(id(result[i]) for i in plan.outputs.auxiliary)}
