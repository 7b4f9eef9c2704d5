"""Rounds results in place, or in the graph of a traced program, and values that an optimizer stores."""

from __future__ import annotations

from collections.abc import Container, Sequence
from functools import partial
from typing import Any, final

import torch
from torch._C import _get_dispatch_mode, _TorchDispatchModeKey
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._pytree import tree_leaves

from ...formats import Format, FormatError, RandomBits, Rounding, round
from ...formats.base.memory import is_dense
from ...formats.base.modes import WORD_BITS
from ...formats.rounding import round_list
from ..aten.wrappers import has_memory, is_shape, parts
from ..operands.rounding import Rounder
from ..policy.policy import Policy
from ..policy.rules import OPTIMIZER_STEP, Role
from ..presence.draws import Draws
from ..presence.entering import simulations_off
from ..watching.integers import Integers
from ..watching.metrics import ChangedMeasures
from ..watching.watcher import Call, Watcher
from .graph_writer import GraphWriter
from .narrow_tensors import NARROW, check_held
from .plan import OperationPlan

_WIDE = (torch.float32, torch.float64, torch.complex64, torch.complex128)
_SINGLE = (torch.float32, torch.complex64)
_CARRIERS = (torch.float32, torch.float64)
_FORMATS_OF_DTYPES = {torch.float16: Format.parse("fp16"), torch.bfloat16: Format.parse("bf16")}


@final
class Results:
    """Rounds results, with random bits that follow from the step and the number of the rounding in it.

    Args:
        draws: counts stochastic roundings.
        watchers: objects called for each rounding.
        changes: the record of the effects of rounding on single values; None without one.
        integers: the record of changed values that integers may be computed from; None without one.

    Attributes:
        writer: writes roundings into the graph of a program that is traced; else None.
    """

    def __init__(
        self, draws: Draws, watchers: Sequence[Watcher], changes: ChangedMeasures | None = None,
        integers: Integers | None = None,
    ) -> None:  # fmt: skip
        self._draws = draws
        self._changes, self._integers = changes, integers
        self._watchers = [watcher for watcher in watchers if watcher.sees_roundings]
        self.writer: GraphWriter | None = None

    def round(
        self, plan: OperationPlan, args: Sequence[Any], kwargs: Any, result: Any, call: Call | None,
        spared: Container[int] = (),
    ) -> None:  # fmt: skip
        """Rounds the output of an operation's call: its results, and the arguments that it writes to.

        Args:
            plan: plan of the operation.
            args: its arguments.
            kwargs: its arguments by name.
            result: its return value.
            call: the description for watchers; None without watchers.
            spared: the ``id`` of each tensor that is not rounded.
        """
        # Remembers the exact values, where the effect of rounding is recorded
        changes = None if self.writer else self._changes
        measured = None if changes is None else changes.before(plan.name, result)
        integers = self._integers if plan.counts and plan.counts.noted and not self.writer else None
        source = None if integers is None else integers.before(plan.name, args, result, plan.arithmetic.format)
        # Rounds new results, then arguments that were written to, then data from outside
        produced = plan.outputs
        if produced.results:
            if isinstance(result, torch.Tensor):
                self._round_new(result, plan, call, spared)
            elif isinstance(result, (tuple, list)):
                # A single returned list (foreach operations) has one entry in `viewing` for all its tensors.
                viewing = produced.viewing if len(produced.viewing) == len(result) else (False,) * len(result)
                for value, shares_memory in zip(result, viewing, strict=True):
                    if not shares_memory:
                        self._round_new(value, plan, call, spared)
        for position, name in produced.written:
            value = args[position] if position < len(args) else kwargs.get(name)
            self.round_all(value, plan, call, spared)
        if produced.lifts and args[0].untyped_storage().resizable():
            # torch.tensor(0.1) made new memory; torch.from_numpy(a) shares the caller's, which is not ours to change.
            # A traced step has a copy of both for its result.
            self._round(result, plan, call)
        # Records the effect of rounding
        if changes is not None and measured is not None:
            changes.note(measured, plan.name, plan.arithmetic.format, args)
        if integers is not None and source is not None:
            integers.note(source)

    def round_all(self, value: Any, plan: OperationPlan, call: Call | None, spared: Container[int] = ()) -> None:
        """Rounds a tensor, or every tensor of a list, except for spared ones; other values are unchanged."""
        if isinstance(value, torch.Tensor):
            if not spared or id(value) not in spared:
                self._round(value, plan, call)
        elif isinstance(value, (tuple, list)) and not self._round_list(value, plan, spared):
            for item in value:
                self.round_all(item, plan, call, spared)

    def _round_list(self, values: Sequence[Any], plan: OperationPlan, spared: Container[int]) -> bool:
        """Rounds a list of similar tensors on a GPU by one call; returns False, without rounding, if it cannot."""
        first = values[0] if len(values) > 1 else None
        if not isinstance(first, torch.Tensor) or first.is_cpu or self._watchers or self.writer or not plan.rounds:
            return False
        if not all(_is_similar(x, first) and id(x) not in spared for x in values):
            return False
        _check_carrier(first, plan)
        plan.outcome.rounded += len(values)
        rounding = plan.arithmetic.rounding
        draw = partial(self.draw, rounding) if rounding is Rounding.STOCHASTIC else None
        round_list(values, plan.arithmetic.format, rounding, draw)
        return True

    def _round_new(self, value: Any, plan: OperationPlan, call: Call | None, spared: Container[int]) -> None:
        """Rounds new results; raises FormatError if the kernel has rounded them to a narrow dtype already."""
        for x in value if isinstance(value, (tuple, list)) else [value]:
            if plan.rounds and isinstance(x, torch.Tensor) and x.dtype in NARROW and not plan.passes_on:
                raise FormatError(
                    f"{plan} computed {x.dtype} of no tensor with that dtype, so that it was rounded before the"
                    f" simulation could round it: have the program ask for float32 or float64 there"
                )
        self.round_all(value, plan, call, spared)

    def rounder(self, plan: OperationPlan) -> Rounder:
        """Returns a function that rounds an operand of an operation to a format, by default in the mode of the plan."""
        default = plan.arithmetic.rounding

        def round_operand(x: torch.Tensor, fmt: Format, rounding: Rounding = default) -> torch.Tensor:
            return self.stored(x, fmt, rounding)

        return round_operand

    def stored(self, x: torch.Tensor, fmt: Format, rounding: Rounding) -> torch.Tensor:
        """Returns a tensor rounded to a format, whatever the policy."""
        random = self.draw(rounding)
        if self.writer:
            return self.writer.rounded(x, fmt, rounding, random)
        return round(x, fmt, rounding=rounding, random=random)

    def draw(self, rounding: Rounding) -> RandomBits | None:
        """Draws the random bits of the next rounding; returns None if it is not stochastic."""
        if rounding is not Rounding.STOCHASTIC:
            return None
        if self.writer is None and _get_dispatch_mode(_TorchDispatchModeKey.FAKE) is not None:
            raise FormatError(
                "random bits of a simulation inside a step that is traced would be the same in every call; compile the"
                " step in that simulation, or leave it as it is and compile parts of it"
            )
        return self._draws.bits()

    def draw_for_carrier(self) -> tuple[RandomBits, torch.Tensor | None]:
        """Draws the random bits of the next rounding to the carrier; also returns their place in a traced program.

        An element has always 32 of them, whatever number the policy has for roundings to its formats.
        """
        bits = self.draw(Rounding.STOCHASTIC)
        assert bits is not None
        bits = bits if bits.bits == WORD_BITS else RandomBits(bits.seed, bits.step)
        return bits, self.writer and self.writer.place

    def _round(self, x: torch.Tensor, plan: OperationPlan, call: Call | None) -> None:
        """Rounds ``x`` in place."""
        dtype = x.dtype
        if not (dtype.is_floating_point or dtype.is_complex) or x.is_meta or x._is_zerotensor():  # noqa: SLF001  the only test there is
            return  # a zero tensor (a gradient known to vanish) is all zeros, and has no memory; a meta tensor neither
        if type(x) is FakeTensor and is_shape(x):
            return
        if plan.rounds:
            _check_carrier(x, plan)
        elif x.layout is not torch.strided or not has_memory(x):
            return
        plan.outcome.rounded += 1
        if dtype.is_complex:
            real = torch.view_as_real(x.resolve_conj().clone())  # real and imaginary parts in an additional axis
            self._round_dense(real, plan, call)
            x.copy_(torch.view_as_complex(real))
        elif dtype in NARROW and plan.rounds:
            wide = x.to(torch.float32)
            self._round_dense(wide, plan, call)
            x.copy_(wide)
        elif is_dense(x):
            self._round_dense(x, plan, call)
        else:  # with gaps in memory
            rounded = x.clone(memory_format=torch.contiguous_format)
            self._round_dense(rounded, plan, call)
            x.copy_(rounded)

    def _round_dense(self, x: torch.Tensor, plan: OperationPlan, call: Call | None) -> None:
        sees_exact = self._watchers and x.dtype != torch.float4_e2m1fn_x2  # PyTorch cannot read pairs of values
        exact = x.clone() if sees_exact else None
        if plan.rounds:
            fmt, rounding = plan.arithmetic.format, plan.arithmetic.rounding
            if self.writer:
                self.writer.round_(x, fmt, rounding, self.draw(rounding))
            else:
                fmt.round_into(x, x, rounding, None, self.draw(rounding))
        if exact is not None and call is not None:
            if x.dtype not in _CARRIERS:  # unrounded, in a narrow dtype of the program: exact in float32
                call = call._replace(format=_FORMATS_OF_DTYPES.get(x.dtype, call.format))
                exact = x = x.to(torch.float32)
            for watcher in self._watchers:
                watcher.rounded(call, exact, x)


def _is_similar(x: Any, first: torch.Tensor) -> bool:
    """Whether ``x`` is a plain, dense tensor of a carrier's dtype in memory, like ``first``."""
    if type(x) not in (torch.Tensor, torch.nn.Parameter) or x.layout is not torch.strided or x.is_meta:
        return False
    if x.dtype not in _CARRIERS or x.dtype is not first.dtype or x.device != first.device:
        return False
    return is_dense(x) and not (x.is_neg() or x._is_zerotensor())  # noqa: SLF001  the only test there is


def _check_carrier(x: torch.Tensor, plan: OperationPlan) -> None:
    """Raises FormatError if ``x`` cannot carry the format that it is rounded to."""
    dtype, fmt = x.dtype, plan.arithmetic.format
    if dtype in _SINGLE and fmt.carrier is torch.float64:
        raise FormatError(
            f"{fmt} cannot be simulated exactly in float32 (results would be rounded twice), but"
            f" {plan} computed {dtype}: run the program in float64, for example model.double()"
        )
    if dtype in NARROW:
        check_held(dtype, plan)
    elif dtype not in _WIDE:
        raise FormatError(
            f"inside a simulation tensors must be float32, float64, float16, bfloat16 or complex, but {plan} computed"
            f" {dtype}: the simulation narrows numbers itself; leave them in one of these"
        )
    if x.layout is not torch.strided:
        raise FormatError(
            f"inside a simulation tensors must be dense, but {plan} computed {x.layout}: use dense ones"
            " (sparse=False of an embedding), or have a rule leave what computes with sparse ones in the carrier,"
            f" such as Rule({plan.name!r}, format='fp32'), or Rule(role=['backward', 'optimizer'], format='fp32') for"
            " sparse gradients"
        )
    if type(x) is not torch.Tensor and not has_memory(x):
        raise FormatError(
            f"{plan} computed a {type(x).__name__}, which stands for other tensors, from plain ones: what it"
            " computed for them was not seen, and cannot be rounded; leave the operation out of the simulation"
        )


def names_steps(policy: Policy) -> bool:
    """Whether a rule of the policy is about whole steps of optimizers."""
    return any(rule.matches(OPTIMIZER_STEP, "", Role.OPTIMIZER) for rule in policy.rules)


def round_stored(
    optimizer: torch.optim.Optimizer, plan: OperationPlan, results: Results, watchers: Sequence[Watcher], *, after: bool
) -> None:
    """Rounds in place the gradients of an optimizer before its step, or its parameters and buffers ``after`` it."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    if after:
        states = [optimizer.state.get(p, {}) for p in parameters]
        buffers = [value for state in states for name, value in state.items() if name != "step"]
        stored = [*parameters, *tree_leaves(buffers)]
    else:
        stored = [p.grad for p in parameters if p.grad is not None]
    call = Call(plan.place, plan.arithmetic.format, None, (), {}, ((), {}))
    with simulations_off(), torch.no_grad():
        tensors = [x for x in stored if isinstance(x, torch.Tensor) and not (plan.spares and x.dtype not in NARROW)]
        rounded = [part for tensor in tensors for part in parts(tensor.detach())]  # values inside of wrappers
        results.round_all(rounded, plan, call)
    for watcher in watchers if plan.rounds else ():
        for x in rounded:
            watcher.stored(x, plan.arithmetic.format)
