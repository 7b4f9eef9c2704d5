"""Evaluation: the mean return of a few episodes with the deterministic policy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

import numpy as np

from roundoff.agents.streams import Stream, sequence

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from roundoff.agents.environment import Environment
    from roundoff.agents.pixel_environment import PixelEnvironment


@final
@dataclass(frozen=True)
class Evaluation:
    """The outcome of an evaluation.

    Attributes:
        returns: undiscounted return of each episode.
        crashed: whether the policy took a non-finite action; ``returns`` is empty then.
    """

    returns: tuple[float, ...]
    crashed: bool = False

    @property
    def mean(self) -> float:
        """Mean return; 0 for a crash."""
        return float(np.mean(self.returns)) if self.returns else 0.0

    @property
    def std(self) -> float:
        """Standard deviation of the returns over the episodes (the population's, dividing by n); 0 for a crash."""
        return float(np.std(self.returns)) if self.returns else 0.0


def evaluate(
    environments: Sequence[Environment | PixelEnvironment],
    policy: Callable[[NDArray[Any]], NDArray[np.floating]],
    *,
    seed: int,
    step: int,
) -> Evaluation:
    """Runs one episode in each environment, all in lockstep, with one call of the policy per step.

    The environments are seeded from ``seed`` and ``step``: an evaluation depends on nothing before it.

    Args:
        environments: one per episode.
        policy: actions (n, action) for observations (n, ...) of the episodes that still run.
        seed: of the run.
        step: when in the run, in environment steps.
    """
    for i, environment in enumerate(environments):
        environment.seed(sequence(seed, Stream.EVALUATION, step, i))
    running = list(range(len(environments)))
    observations: list[NDArray[Any]] = [environment.reset() for environment in environments]
    returns = [0.0] * len(environments)
    while running:
        actions = policy(np.stack([observations[i] for i in running]))
        if not np.isfinite(actions).all():
            return Evaluation((), crashed=True)
        still_running = []
        for i, action in zip(running, actions, strict=True):
            transition = environments[i].step(action)
            observations[i] = transition.observation
            returns[i] += transition.reward
            if not transition.last:
                still_running.append(i)
        running = still_running
    return Evaluation(tuple(returns))
