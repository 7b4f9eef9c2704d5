"""Scores on a scale that all tasks share: 0 is the return of a policy before it learns, 1 the return of fp32 after."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ..statistics.comparisons import Estimate
from ..statistics.intervals import bootstrap_interval, interquartile_mean, interquartile_means

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    Scores = Mapping[Any, float]


class Scale(NamedTuple):
    """Two scores of a task.

    Attributes:
        untrained: the reference's mean score before it learns.
        learned: its mean score after.
    """

    untrained: float
    learned: float

    def of(self, scores: Scores) -> dict[Any, float]:
        """The scores, where ``untrained`` is 0 and ``learned`` is 1; infinite ones stay."""
        return {seed: (score - self.untrained) / (self.learned - self.untrained) for seed, score in scores.items()}


class Selection(NamedTuple):
    """The tasks of a row of a table.

    Attributes:
        name: the name of the task, or :data:`~.summary.ALL_TASKS` for the mean over several.
        tasks: the tasks of the mean.
        scales: the scales of the tasks, used for a mean over them; empty where scores are taken as they are.
    """

    name: str
    tasks: list[str]
    scales: dict[str, Scale]

    def of(self, scores: Mapping[str, Scores]) -> list[Scores]:
        """The scores of each task."""
        return [self.scales[task].of(scores[task]) if self.scales else scores[task] for task in self.tasks]


def interquartile_mean_of(
    groups: Sequence[Sequence[float]], generator: np.random.Generator, *, replicates: int = 2_000
) -> Estimate:
    """The interquartile mean of normalized scores of all tasks together, and its 95 % stratified bootstrap interval.

    Args:
        groups: the scores of each task's runs; a score that is not finite, a crash, counts 0: it has learned
            nothing.
        generator: source of the resampling.
        replicates: number of resamplings.

    Source:
        Agarwal et al., "Deep Reinforcement Learning at the Edge of the Statistical Precipice", 2021, Sections 4.2 and
        4.3; ``rliable`` computes the same.
    """
    arrays = [np.where(np.isfinite(group), group, 0.0) for group in map(np.asarray, groups)]
    interval = bootstrap_interval(arrays, generator, replicates=replicates, statistic=interquartile_means)
    return Estimate(interquartile_mean(np.concatenate(arrays)), interval)
