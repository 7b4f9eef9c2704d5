"""Integer-valued floating-point tensors, which are left unrounded: counts, steps, positions, sizes, scales.

No hardware with a narrow format keeps them in it, and PyTorch's own half-precision programs keep them in float32. A
mark on memory says that integers were computed into it. Programs can also write unseen by a simulation: through NumPy,
``roundoff.exact()``, another thread. So a mark only counts where the memory holds integers when it is used. A result is
left unrounded if the operation makes integers of integers, and all its operands are marked, or Python integers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, final

import torch
from torch._ops import OpOverload

from ...formats.base.memory import is_traced, is_virtual
from ...formats.families.floats import FP32
from ..aten.outputs import outputs, writes_of
from ..aten.tables import plain_name
from ..aten.whole_numbers import AUXILIARY, MAKING, STEPS, MakesWholeNumbers, making_of
from ..marks.table import Mark, Marks
from ..policy.policy import Policy
from ..policy.rules import Whole
from ..presence.entering import this_thread
from ..watching.integers import NOTED, computes_gradients

_CARRIERS = (torch.float32, torch.float64)


class WholeNumberUse(NamedTuple):
    """The use of counts and other integer values by an operation."""

    making: MakesWholeNumbers | None
    """The calls that make integers; None if none does."""
    writes: tuple[tuple[int, str], ...]
    """The arguments that it writes to, also only zeros: position and name."""
    written: tuple[tuple[int, str], ...]
    """The arguments that it writes to and that are rounded: position and name."""
    auxiliary: tuple[int, ...]
    """The positions of results that are not rounded, since only its derivative uses them."""
    noted: bool
    """Whether changes of its results by rounding are recorded, since integers may be computed from them."""
    adds: bool
    """Whether it may add to a count that rounding would stop, which is worth a warning."""

    @classmethod
    def by(cls, operation: OpOverload, *, rounds: bool) -> WholeNumberUse:
        """Returns the use of integers by an ATen operation; ``rounds``: whether its results are rounded."""
        name = operation.overloadpacket.__name__
        return cls(
            making_of(operation),
            tuple(place for place in writes_of(operation) if place[1] != STEPS),
            tuple(place for place in outputs(operation).written if place[1] != STEPS),
            AUXILIARY.get(name, ()),
            rounds and name in NOTED,
            rounds and plain_name(name) in ("add", "sub"),
        )


@final
class WholeNumbers:
    """Remembers which memory holds integers.

    Args:
        marks: the table of marks of the simulation.
    """

    def __init__(self, marks: Marks) -> None:
        self._marks = marks

    @staticmethod
    def under(policy: Policy, marks: Marks) -> WholeNumbers | None:
        """Makes the record for a simulation with this policy; None if it rounds no integers, or all of them."""
        rules = [rule for rule in policy.rules if rule.format is not None and not rule.about_operands]
        # A rule about results of an operation that makes integers would round them, even in a policy of fp32.
        rounds = policy.format != FP32 or any(rule.matches_operation(name) for rule in rules for name in MAKING)
        return WholeNumbers(marks) if rounds and policy.whole == Whole.EXACT else None

    def __contains__(self, x: torch.Tensor) -> bool:
        """Whether a floating-point tensor is marked and holds only integers now: never if it requires a gradient."""
        if not self._marks.of(x) & Mark.INTEGERS or x.dtype not in _CARRIERS or x.requires_grad:
            return False
        if holds_integers(x):
            return True
        # A write that the simulation did not see has made the mark wrong.
        self._marks.remove(x, Mark.INTEGERS)
        return False

    def __bool__(self) -> bool:
        return self._marks.may_have(Mark.INTEGERS)

    def mark(self, x: torch.Tensor, *, whole: bool = True) -> None:
        """Notes that the memory of ``x`` holds only integers, or that it does not."""
        if not whole:
            self._marks.remove(x, Mark.INTEGERS)
        elif x.dtype in _CARRIERS:
            self._marks.add(x, Mark.INTEGERS)

    def are_made(self, counts: WholeNumberUse | None, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
        """Whether a call computes integers from integers; to be called before it runs, since it may overwrite them."""
        making = counts and counts.making
        if making is None:
            return False
        # A program's own float16 rounds its counts, except for zeros and ones.
        other_dtype = (kwargs or {}).get("dtype") not in (None, *_CARRIERS)
        if other_dtype or (this_thread.carrying and not making.of_units):
            return False
        if not making.are_made(args, kwargs, self.__contains__):
            return False
        # Gradients are data, also a sum of ones. A checkpoint, which recomputes positions, has its gradient mode on.
        return not computes_gradients()

    def note(
        self, counts: WholeNumberUse, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any, *, whole: bool
    ) -> None:
        """Marks the results of a call if they are integers (``whole``); else unmarks the tensors that it wrote to."""
        if whole and not counts.writes:
            for x in _nested_tensors(result):
                self.mark(x)
            return
        for position, name in counts.writes if whole or self else ():
            written = args[position] if position < len(args) else kwargs.get(name)
            for x in _nested_tensors(written):
                if not whole:
                    self.mark(x, whole=False)
                elif x.numel() * x.element_size() == x.untyped_storage().nbytes():  # the rest may hold other values
                    self.mark(x)

    def note_steps(self, optimizer: torch.optim.Optimizer) -> None:
        """Marks the counts of steps that an optimizer keeps in tensors."""
        for state in optimizer.state.values():
            step = state.get("step") if isinstance(state, dict) else None
            if isinstance(step, torch.Tensor) and not self._marks.of(step) & Mark.INTEGERS:
                self.mark(step)


def holds_integers(x: torch.Tensor) -> bool:
    """Whether every element of a floating-point tensor is an integer; NaN and infinities are not.

    Values outside of the CPU's memory are not read, and count as integers: a traced program has none, and reading from
    a GPU would wait for it. NumPy cannot write there; ``roundoff.exact()`` and other threads can.
    """
    if is_virtual(x) or is_traced() or not x.is_cpu:
        return True
    if x.numel() == 1:
        return float(x).is_integer()
    return not torch.frac(x).any()  # the fraction of an infinity is NaN, which counts as true


def _nested_tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _nested_tensors(item)
