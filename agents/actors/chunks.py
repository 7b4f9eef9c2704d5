"""The data that an actor sends to the learner."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..environments.parallel import Steps
from ..experience.sampling import Sample

ACTIVITIES = ("environment", "step", "pull", "deserialize", "load")
"""Activities of an actor: the environment, inference, waiting for new weights, unpacking and loading them."""


def pulls_before(steps: int, each: int, every: int) -> bool:
    """Whether an actor pulls after this number of steps, ``each`` at a time: at 0 and whenever ``every`` more."""
    return steps // every != (steps - each) // every


class PolicyChoice(NamedTuple):
    """The states and the policy that an actor chose the actions of a step from."""

    states: NDArray[np.float32]
    """(n, observation)."""
    basis: NDArray[np.float32]
    """(n, number): the actor's policy in these states, from ``Explorer.basis``."""


class Pull(NamedTuple):
    """A change of an actor to new weights, and its later actions with them."""

    at: int
    """The step of its chunk before which the weights changed."""
    version: int
    """The learner's updates when it published them."""
    before: int | None
    """The version of the replaced weights; None: these weights are the first."""
    size: int
    """The size of the weights, in bytes."""
    states: NDArray[np.float32]
    """(n, observation): the states of later choices within the chunk; empty while the actor acts randomly."""
    basis: NDArray[np.float32]
    """(n, number): the actor's policy in these states, from ``Explorer.basis``."""

    def shown(self, choices: Sequence[PolicyChoice | None]) -> Pull:
        """Returns the pull with the choices that followed; random ones are None."""
        by_policy = [choice for choice in choices if choice is not None]
        if not by_policy:
            return self
        states, basis = (np.concatenate(parts) for parts in zip(*by_policy, strict=True))
        return self._replace(states=states, basis=basis)


class Chunk(NamedTuple):
    """Some steps of an actor, one after the other."""

    actions: NDArray[np.floating[Any]]
    """(steps, n, action); if an actor could not act, the last ones are not finite."""
    steps: Steps
    """The transitions; every field has one more dimension, (steps, n, ...)."""
    returns: NDArray[np.float64]
    """(steps, n)."""
    pulls: list[Pull]
    """Old to new."""
    seconds: dict[str, float]
    """The seconds that the actor has spent since its start, by activity."""
    choices: Sequence[PolicyChoice | None] = ()
    """The choice of each step, for importance weights; None for random actions; empty without such weights."""

    @classmethod
    def of(
        cls,
        samples: Sequence[Sample],
        pulls: list[Pull],
        seconds: dict[str, float],
        choices: Sequence[PolicyChoice | None] = (),
    ) -> Chunk:
        """Stacks samples; there is at least one."""
        steps = Steps(*(np.stack(field) for field in zip(*(s.steps for s in samples), strict=True)))
        actions, returns = np.stack([s.actions for s in samples]), np.stack([s.returns for s in samples])
        return cls(actions, steps, returns, pulls, dict(seconds), choices)

    def sample(self, i: int, rank: int) -> Sample:
        """Returns step ``i`` as a sample of group ``rank``."""
        steps = Steps(*(field[i] for field in self.steps))
        return Sample(rank, self.actions[i], steps, self.returns[i], rank * len(self.actions[i]))
