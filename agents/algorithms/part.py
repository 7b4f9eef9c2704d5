"""The parts of an update, and the programs that may compute them instead of a learner."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, final

if TYPE_CHECKING:
    import torch

Metrics: TypeAlias = "dict[str, torch.Tensor]"


@final
@dataclass(frozen=True)
class Part:
    """A part of an update: computed eagerly, as a compiled program, or of a population at once.

    Attributes:
        name: the network that it updates; ``Learner.acting_network``, if that is the network that acts. Its random bits
            belong to the name in ``Learner.draws``.
        compute: a function of the learner and the inputs below, which changes the learner's tensors in place and
            returns tensors with means to log. It does not branch on values in tensors.
        every: the number of updates from one computation of the part to the next.
        batch: whether it takes the batch.
        noise: the index of the update's noise that it takes; None: none.
    """

    name: str
    compute: Callable[..., Metrics]
    every: int = 1
    batch: bool = True
    noise: int | None = None

    def inputs(self, batch: Any, noises: tuple[torch.Tensor, ...]) -> tuple[Any, ...]:
        """Returns the inputs of the part, from a prepared batch and all noises of the update."""
        return (*((batch,) if self.batch else ()), *(() if self.noise is None else (noises[self.noise],)))


class UpdateBackend(Protocol):
    """The programs that compute the updates of a learner: its own, or a population's."""

    @property
    def reason(self) -> str | None:
        """The reason why eager updates are better, in words; None if the programs are better."""

    def compute(self, part: Part, inputs: tuple[Any, ...]) -> Metrics:
        """Runs a part."""

    def write_back(self) -> None:
        """Writes the results back to the learner; waits for the device."""
