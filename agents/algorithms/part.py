"""The parts of an update, and what may compute them in a learner's place."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, final

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

Metrics: TypeAlias = "dict[str, torch.Tensor]"


@final
@dataclass(frozen=True)
class Part:
    """A part of an update: computed eagerly, as a compiled program, or of a population at once.

    Attributes:
        name: what it moves; ``Learner.acting_network``, where that is the network that acts. Its random bits are those
            of the name in ``Learner.draws``.
        compute: a function of the learner and the inputs below, which changes the learner's tensors in place and
            returns tensors whose means are worth logging. It has no branches that depend on numbers in tensors.
        every: how many updates there are from one of its turns to the next.
        batch: whether it takes the batch.
        noise: which of the update's noises it takes; None: none.
    """

    name: str
    compute: Callable[..., Metrics]
    every: int = 1
    batch: bool = True
    noise: int | None = None

    def inputs(self, batch: Any, noises: tuple[torch.Tensor, ...]) -> tuple[Any, ...]:
        """Returns the inputs of the part, from a prepared batch and all noises of the update."""
        return (*((batch,) if self.batch else ()), *(() if self.noise is None else (noises[self.noise],)))


class Elsewhere(Protocol):
    """The programs that have taken over the updates of a learner: its own, or those of a population."""

    @property
    def reason(self) -> str | None:
        """Why the way is no better than the learner's own, in words; None if it is."""

    def compute(self, part: Part, inputs: tuple[Any, ...]) -> Metrics:
        """Runs a part."""

    def write_back(self) -> None:
        """Tells the learner what it has become; waits for the device."""
