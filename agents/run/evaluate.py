"""Evaluation: the mean return of a few episodes, with the best actions of the policy, or with samples."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

import numpy as np

from ..streams import Stream, sequence, torch_generator

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..algorithms.learner import Learner
    from ..environments.parallel import EnvironmentGroup
    from ..experience.intake import Intake
    from ..quantization.quantization import Quantization


_NOISE = 1 << 20  # Larger than any number of an environment, which has the same stream.


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

    def record(self) -> dict[str, Any]:
        """Returns the evaluation's record in ``metrics.jsonl``; without returns after a crash."""
        numbers = {"return_mean": self.mean, "return_std": self.std, "returns": list(self.returns)}
        return numbers | ({"crashed": True} if self.crashed else {})


@final
class EvaluationPolicy:
    """The policy of a learner for one evaluation, from observations to actions; see the key ``evaluation``.

    Args:
        learner: the learner that acts.
        intake: the intake of its observations.
        quantization: the quantization of the learner; None: it is not quantized.
        step: environment steps of the run; with the seed, they determine the samples of a policy.
    """

    def __init__(
        self, learner: Learner, intake: Intake, quantization: Quantization | None = None, *, step: int = 0
    ) -> None:
        config = learner.config
        if config.evaluation == "sampled":
            learner = learner.sampling(torch_generator(config.seed, Stream.EVALUATION, learner.device, step, _NOISE))
        self._learner, self._intake, self._quantization = learner, intake, quantization
        self._numbers = itertools.count()

    def __call__(self, observations: NDArray[Any]) -> NDArray[np.floating[Any]]:
        """Returns actions (n, action) for observations (n, ...)."""
        perceived = self._intake.perceive(observations)
        if self._quantization is not None:
            perceived = self._quantization.number(perceived)
        return self._intake.from_format(self._learner.act(perceived, deterministic=True, number=next(self._numbers)))


def evaluate(
    environments: EnvironmentGroup,
    policy: Callable[[NDArray[Any]], NDArray[np.floating]],
    *,
    seed: int,
    step: int,
    go_on: Callable[[NDArray[np.bool_]], None] = lambda _: None,
) -> Evaluation:
    """Runs one episode in each environment, all in lockstep, with one call of the policy per step.

    The environments are seeded from ``seed`` and ``step``: an evaluation does not depend on earlier ones.

    Args:
        environments: one per episode.
        policy: returns actions (n, action) for observations (n, ...) of the episodes that still run.
        seed: the seed of the run.
        step: environment steps of the run.
        go_on: called after each step, with the rows of its input that continue; for policies with a memory.
    """
    environments.seed([sequence(seed, Stream.EVALUATION, step, i) for i in range(len(environments))])
    observations = environments.reset()
    returns = np.zeros(len(environments))
    running = np.ones(len(environments), dtype=bool)
    while running.any():
        chosen = policy(observations[running])
        if not np.isfinite(chosen).all():
            return Evaluation((), crashed=True)
        actions = np.zeros((len(environments), chosen.shape[1]))
        actions[running] = chosen
        environments.submit(actions, running)
        steps = environments.collect()
        observations = steps.observations
        returns[running] += steps.rewards[running]
        go_on(~steps.last[running])
        running &= ~steps.last
    return Evaluation(tuple(returns.tolist()))
