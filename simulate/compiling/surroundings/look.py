"""Find the modules, optimizers and tensors that a step uses and that are not among its arguments.

They are found by looking where the step's own code looks: in variables around it, in globals and attributes that it
names, in containers, and in all of a module or an optimizer. Where nothing was replaced since the last call, a look
takes some microseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, final

import torch

from ....formats import FormatError
from .found import Findings, check_hooks
from .state import SurroundingsState, places_lock
from .walk import Libraries, Walk

_MOST_ARGUMENTS = 8


@final
class Surroundings:
    """The places where a step keeps the objects that it uses.

    Args:
        step: the function.
        named: Modules and optimizers that it uses, if its code does not show where it gets them from.
    """

    def __init__(self, step: Callable[..., Any], named: Sequence[object] = ()) -> None:
        self._roots = (step, *named)
        self._libraries = Libraries(_module_of(step))
        self._names: set[str] = set()
        self._varying = {"lr"}
        self._settings: dict[str, tuple[str, tuple[float, ...]]] = {}
        self._tokens: dict[Any, int] = {}
        self._latest: dict[tuple[int, ...], SurroundingsState] = {}
        self._parts: list[tuple[str, Any]] = []
        self.changed: str | None = None
        """The place of the latest difference between two inspections; None if there is none."""

    def look(self, arguments: tuple[object, ...]) -> SurroundingsState:
        """Returns the current state of the surroundings.

        Args:
            arguments: modules and optimizers among the arguments of the step.
        """
        ids = tuple(map(id, arguments))  # the state holds the arguments, so no id is given to a new object
        with places_lock:
            state = self._latest.get(ids)
            if state is None or not (state.findings.watch.unchanged() and state.findings.numbers.is_complete()):
                if len(self._latest) > _MOST_ARGUMENTS:
                    self._latest.clear()
                state = self._latest[ids] = self._look_anew(arguments)
            check_hooks(state.tensors)
            with_gradient = [i for i, x in enumerate(state.tensors) if x.is_leaf and x.grad is not None]
            gradients: list[Any] = [state.tensors[i].grad for i in with_gradient]
        return state._replace(tensors=state.tensors + gradients, with_gradient=with_gradient)

    def forget(self) -> None:
        """Discards the known state, which was changed on purpose: the next look starts over."""
        self._latest.clear()

    def take_numbers_for_constants(self) -> None:
        """Compiles a separate program for each value of a learning rate from now on."""
        self._varying.clear()
        self._latest.clear()

    def _look_anew(self, arguments: tuple[object, ...]) -> SurroundingsState:
        findings = self._walk(arguments)
        # A setting of an optimizer that has changed once, such as a scheduled momentum, is an input from now on.
        before, self._settings = self._settings, self._settings | findings.settings
        changed = {
            key for path, (key, values) in findings.settings.items() if before.get(path, (key, values))[1] != values
        }
        if changed and self._varying:
            self._varying |= changed
            findings = self._walk(arguments)
        # Each tensor once: the numbers of the tensors in all places are part of the structure.
        numbers: dict[int, int] = {}
        tensors: list[torch.Tensor] = []
        places = []
        for path, x in findings.tensors:
            if x.requires_grad and not x.is_leaf:
                raise FormatError(f"{path} is part of a graph of autograd, which a program cannot continue")
            if id(x) not in numbers:
                numbers[id(x)] = len(tensors)
                tensors.append(x)
            places.append(numbers[id(x)])
        key = (tuple([part for _, part in findings.parts]), tuple(places))
        if self._parts and key not in self._tokens:
            pairs = zip(self._parts, findings.parts, strict=False)
            self.changed = next((path for (_, old), (path, new) in pairs if old != new), self.changed)
        self._parts = findings.parts
        return SurroundingsState(
            findings, arguments, self._tokens.setdefault(key, len(self._tokens)), tensors, [], self._walk
        )

    def _walk(self, arguments: tuple[object, ...]) -> Findings:
        while True:  # until a walk meets no function that uses further names of attributes
            count = len(self._names)
            walk = Walk(self._names, self._libraries, self._varying)
            for number, root in enumerate((*self._roots, *arguments)):
                walk.visit(root, "the step" if number == 0 else f"the {type(root).__name__}")
            if len(self._names) == count:
                return walk.findings


def _module_of(step: Any) -> str | None:
    """Returns the module that has the code of a step."""
    while isinstance(step, partial):
        step = step.func
    module: str | None = getattr(getattr(step, "__func__", step), "__module__", None)
    return module
