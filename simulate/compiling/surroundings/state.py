"""The surroundings of a step at one moment, and the values that the step leaves there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from roundoff.locks import new_lock

from .arguments import kinds
from .found import Findings

places_lock = new_lock()
"""Held while a step's own tensors are looked for or put in their places, and while others replace them."""


class StepEffects(NamedTuple):
    """The effects of a step on its surroundings, apart from writes into tensors: which new tensor goes where."""

    places: list[int | None]
    """The new tensor, by number, in each place of a tensor; None leaves the old one there. Empty: none is new."""
    gradients: list[tuple[int, int | None]]
    """The new tensor, by number, that becomes the ``grad`` of a tensor, by number; None for none."""
    new_count: int
    """The number of new tensors."""


class SurroundingsState(NamedTuple):
    """The surroundings at one moment."""

    findings: Findings
    arguments: tuple[object, ...]
    token: int
    """A number that is the same at two moments with the same structure and constants."""
    tensors: list[torch.Tensor]
    """The tensors that were found, each once; after them gradients."""
    with_gradient: list[int]
    """The numbers of the tensors that have these gradients."""
    walk: Callable[[tuple[object, ...]], Findings]

    @property
    def without_gradients(self) -> list[torch.Tensor]:
        """The tensors, without the gradients that follow them."""
        return self.tensors[: len(self.tensors) - len(self.with_gradient)]

    def key(self) -> tuple[Any, ...]:
        """Returns a key that is equal for two states that one program serves."""
        return self.token, kinds(self.tensors), tuple(self.with_gradient)

    def numbers(self) -> list[float]:
        """Returns the numbers that may differ in every call."""
        return self.findings.numbers.read()

    def look_again(self) -> Findings:
        """Looks at the same surroundings, which may have changed."""
        return self.walk(self.arguments)

    def put(self, effects: StepEffects, new_tensors: Sequence[torch.Tensor]) -> None:
        """Puts new tensors in the places where the step leaves them."""
        with places_lock:
            for number, new in effects.gradients:
                self.tensors[number].grad = None if new is None else new_tensors[new]
            if effects.places:
                # All places at once: one may be a tuple of several tensors, which is replaced as a whole.
                pairs = zip(self.findings.tensors.read(), effects.places, strict=True)
                self.findings.tensors.put([x if new is None else new_tensors[new] for x, new in pairs])
