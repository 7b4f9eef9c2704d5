"""The result of an environment's step, and the seeds of episodes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray


class Transition(NamedTuple):
    """The result of a step of the environment."""

    observation: NDArray[Any]
    """The observation after the step: flat, float64; or the bytes of images, or planes of 0 and 1."""
    reward: float
    """Summed over the repeats of the action."""
    discount: float
    """0 at a terminal state; 1 otherwise, also at a time limit, which is not a property of the state."""
    last: bool
    """Whether the episode is over."""


class SeededEpisodes:
    """An environment that begins every episode with a different seed.

    The seed is derived from the sequence of :meth:`seed` and the number of the episode; these are the random state.
    """

    def __init__(self) -> None:
        self._entropy: list[int] = [0]
        self._episode = 0

    def seed(self, sequence: np.random.SeedSequence) -> None:
        """Seeds the coming episodes."""
        self._entropy = [int(word) for word in sequence.generate_state(4)]
        self._episode = 0

    def random_state(self) -> dict[str, Any]:
        """Returns the seed and the number of the next episode; meaningful between episodes."""
        return {"entropy": list(self._entropy), "episode": self._episode}

    def set_random_state(self, state: Mapping[str, Any]) -> None:
        """Restores the state that :meth:`random_state` returned."""
        self._entropy, self._episode = list(state["entropy"]), state["episode"]

    def _next_seed(self) -> int:
        """Returns the seed of the episode that begins now: 32 bits."""
        seed = int(np.random.SeedSequence([*self._entropy, self._episode]).generate_state(1)[0])
        self._episode += 1
        return seed
