"""Statistics over runs: means, interquartile means, and bootstrap intervals stratified by task."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from scipy import stats

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import ArrayLike, NDArray


class Interval(NamedTuple):
    """A confidence interval; both ends are NaN where a group has fewer than two runs."""

    low: float
    high: float


def interquartile_mean(scores: ArrayLike) -> float:
    """The mean of the middle half of ``scores``: a quarter (rounded down) is cut off at either end.

    Args:
        scores: any number of scores; NaN if there are none.

    Source:
        Agarwal et al., "Deep Reinforcement Learning at the Edge of the Statistical Precipice", Section 4.3.
    """
    values = np.ravel(np.asarray(scores, dtype=float))
    return float(stats.trim_mean(values, 0.25)) if values.size else float("nan")


def bootstrap_interval(
    groups: Sequence[ArrayLike], generator: np.random.Generator, *, level: float = 0.95, replicates: int = 10_000
) -> Interval:
    """Percentile interval of the mean over tasks of the mean over runs, by stratified bootstrap.

    In each replicate, the runs of each task are drawn anew with replacement among the runs of that task, so that
    every task keeps its weight. The means of tasks are averaged with equal weights.

    Args:
        groups: the scores of each task's runs.
        generator: source of the resampling.
        level: confidence level, in (0, 1).
        replicates: number of resamplings.

    Returns:
        The interval; of zero width if all scores of each task are equal; NaN if a task has fewer than two runs (one
        run says nothing about the spread) or there are no tasks.

    Source:
        Agarwal et al., Section 4.2 (stratified bootstrap confidence intervals).
    """
    arrays = [np.asarray(group, dtype=float) for group in groups]
    if not arrays or any(array.size <= 1 for array in arrays):
        return Interval(float("nan"), float("nan"))
    means: NDArray[np.float64] = np.zeros(replicates)
    for array in arrays:
        drawn = generator.integers(array.size, size=(replicates, array.size))
        means += array[drawn].mean(axis=1) / len(arrays)
    tail = 50 * (1 - level)
    low, high = np.percentile(means, [tail, 100 - tail])
    return Interval(float(low), float(high))
