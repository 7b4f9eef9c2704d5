"""A compiled program of a step, for arguments of certain shapes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.utils._pytree import tree_unflatten

from roundoff.simulate.step_memory import check_lazy, check_shared

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from roundoff.simulate.graphs import Traced
    from roundoff.simulate.stand_ins import Effects


class Program(NamedTuple):
    """What inductor has made of a step, and what it does not know of it."""

    call: Callable[[list[torch.Tensor]], Any]
    traced: Traced
    perhaps_lazy: list[int]
    """The tensors that may be negatives or conjugates in name only."""
    effects: Effects | None = None
    """What it leaves around the step: its first results are for that."""

    def check(self, tensors: list[torch.Tensor]) -> None:
        """Refuses arguments that the program would take for others than they are."""
        if self.perhaps_lazy:
            check_lazy(tensors, self.perhaps_lazy)
        if self.traced.written and len({x.untyped_storage().data_ptr() for x in tensors}) < len(tensors):
            check_shared(tensors, self.traced.written)

    def run(self, inputs: list[torch.Tensor]) -> Any:
        """What the program computes; kernels that it calls record no graph of autograd."""
        with torch.no_grad():
            return self.call(inputs)

    def results(self, computed: Any, tensors: list[torch.Tensor]) -> Any:
        """What the step returns."""
        if self.traced.results is None:
            return None
        rest = iter(computed or ())
        leaves = [next(rest) if alias is None else alias.of(tensors) for alias in self.traced.aliases]
        return tree_unflatten(leaves, self.traced.results)


def first_for(
    programs: Sequence[Program], inputs: list[torch.Tensor], numbers: list[float]
) -> tuple[Program, list[torch.Tensor]] | None:
    """The program that is made for such numbers, and all its inputs.

    Args:
        programs: to choose from, which differ in what they decide by numbers.
        inputs: in front of those that are made for each call.
        numbers: that are found around the step.
    """
    for program in programs:
        further = program.traced.further_inputs(inputs, numbers)
        if further is not None:
            return program, [*inputs, *further]
    return None
