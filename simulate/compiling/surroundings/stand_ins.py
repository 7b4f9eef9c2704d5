"""Other tensors in the places where a step keeps its own, while it is traced, and the values that it leaves there."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from threading import get_ident
from typing import Any, final
from unittest.mock import patch
from weakref import WeakSet

import torch
from torch.nn.modules.module import register_module_forward_pre_hook

from ....formats import FormatError
from ...numbers.host_numbers import TracedNumber
from .found import Findings
from .state import StepEffects, SurroundingsState, places_lock
from .walk import HOW

_NOT_AGAIN = "which a program would not repeat in later calls; do it outside of the step"


class NewStateError(Exception):
    """The step makes state that was not there before, as an optimizer's first step does."""


@final
class StandIns:
    """Stands other tensors in for those around a step.

    Args:
        state: Current state of the surroundings.
        tensors: The replacements of its tensors.
        give: Makes a number without a value, for numbers that differ in every call.
    """

    def __init__(
        self, state: SurroundingsState, tensors: Sequence[torch.Tensor], give: Callable[[float], TracedNumber]
    ) -> None:
        self._state, self._give = state, give
        count = len(state.without_gradients)
        self._replacements = tensors[:count]
        self._gradients = dict(zip(state.with_gradient, tensors[count:], strict=True))  # by the number of their tensor
        self._replacement_of = {id(x): y for x, y in zip(state.without_gradients, self._replacements, strict=True)}
        self._in_places: list[torch.Tensor] = []
        self._numbers: list[TracedNumber] = []

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Puts the other tensors in their places for the block, and restores the previous content after it."""
        findings = self._state.findings
        states = _states(findings)
        self._numbers = [self._give(x) for x in findings.numbers.read()]
        with places_lock:
            try:
                with findings.numbers.holding(self._numbers), _only_modules(findings.modules):
                    self._put()
                    yield
            except Exception as error:
                if _states(findings) != states:  # the new state has no values in a trace: an eager call must make it
                    raise NewStateError from error
                raise
            finally:
                findings.watch.restore()

    def _put(self) -> None:
        findings = self._state.findings
        for x, y in zip(self._state.without_gradients, self._replacements, strict=True):
            y.__dict__.update(vars(x))  # attributes that a program has set, which modules and optimizers read
            if isinstance(x, torch.nn.Parameter):
                y._is_param = True  # noqa: SLF001  what isinstance goes by
        for number, gradient in self._gradients.items():
            self._replacements[number].grad = gradient
        self._in_places = [self._replacement_of[id(x)] for x in findings.tensors.read()]
        findings.tensors.put(self._in_places)
        for slot in findings.keyed:
            replaced = slot.value.copy()  # of the same class, such as an optimizer's defaultdict
            replaced.clear()
            replaced.update({self._replacement_of.get(id(key), key): value for key, value in slot.value.items()})
            slot.put(replaced)

    def effects(self) -> tuple[StepEffects, list[torch.Tensor]]:
        """Returns, at the end of the block, the values that the step has left, and the tensors made for them.

        Raises:
            NewStateError: an optimizer has made itself new state.
            FormatError: the step has changed something else than tensors.
        """
        after = self._state.look_again()
        _check_constants(self._state.findings, after)
        for (path, x), before in zip(after.numbers, self._numbers, strict=True):
            if x is not before:
                raise FormatError(f"the step changes {path}, {_NOT_AGAIN}")
        new_tensors: list[torch.Tensor] = []
        pairs = zip(after.tensors, self._in_places, strict=True)
        places = [None if x is before else _number_among(new_tensors, x, path) for (path, x), before in pairs]
        gradients: list[tuple[int, int | None]] = []
        for number, x in enumerate(self._replacements):
            if x.requires_grad != self._state.without_gradients[number].requires_grad:
                raise FormatError(f"the step changes whether a tensor requires gradients, {_NOT_AGAIN}")
            if not x.is_leaf:
                continue
            if x.grad is not self._gradients.get(number):
                new = None if x.grad is None else _number_among(new_tensors, x.grad, "a gradient")
                gradients.append((number, new))
            x.grad = None  # recorded above; `check_kept` refuses the remaining ones, of arguments
        places = places if any(new is not None for new in places) else []
        return StepEffects(places, gradients, len(new_tensors)), new_tensors


def _states(findings: Findings) -> list[int]:
    """Counts the state entries of each optimizer."""
    return [sum(1 + len(state) for state in optimizer.state.values()) for optimizer in findings.optimizers]


def _number_among(new_tensors: list[torch.Tensor], x: torch.Tensor, path: str) -> int:
    if x.requires_grad:
        raise FormatError(f"the step leaves a part of autograd's graph in {path}; leave it there with .detach()")
    for number, other in enumerate(new_tensors):
        if other is x:
            return number
    new_tensors.append(x)
    return len(new_tensors) - 1


def _check_constants(before: Findings, after: Findings) -> None:
    """Refuses steps that change something else than tensors."""
    pairs = zip(before.parts, after.parts, strict=False)
    place = next((i for i, (x, y) in enumerate(pairs) if x != y), min(len(before.parts), len(after.parts)))
    if place == len(before.parts) == len(after.parts):
        return
    left, right = (parts[min(place, len(parts) - 1)] for parts in (before.parts, after.parts))
    if any(path.startswith(state) for state in after.states for path in (left[0], right[0])):
        raise NewStateError
    # Constants that are numbers or text are named.
    both = [x for x in (left[1], right[1]) if isinstance(x, tuple) and isinstance(x[0], type) and isinstance(x[1], str)]
    change = f" from {both[0][1]} to {both[1][1]}" if len(both) > 1 else ""
    raise FormatError(f"the step changes {left[0]}{change}, {_NOT_AGAIN}")


@contextmanager
def _only_modules(modules: Sequence[torch.nn.Module]) -> Iterator[None]:
    """For the block, this thread may call only the modules that were found, and modules that the step makes itself."""
    allowed = {id(module) for module in modules}
    created: WeakSet[torch.nn.Module] = WeakSet()
    make, thread = torch.nn.Module.__init__, get_ident()

    def note(module: torch.nn.Module, *args: Any, **kwargs: Any) -> None:
        make(module, *args, **kwargs)
        if get_ident() == thread:
            created.add(module)

    def check(module: torch.nn.Module, _: Any) -> None:
        if get_ident() == thread and id(module) not in allowed and module not in created:
            raise FormatError(f"the step calls a {type(module).__name__} that was not found around it; {HOW}")

    handle = register_module_forward_pre_hook(check)
    try:
        with patch.object(torch.nn.Module, "__init__", note):
            yield
    finally:
        handle.remove()
