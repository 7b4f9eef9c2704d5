"""Compares two conditions: probability of improvement, differences paired by seed, and adjusted p-values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .intervals import NO_INTERVAL, Interval, batches, draw_counts, percentiles
from .means import Mean, sum_of_means

_ROUNDING = 1e-12  # largest difference of numbers that should be equal, as a share of the larger one


class Estimate(NamedTuple):
    """A number and its confidence interval."""

    value: float
    interval: Interval


class Difference(NamedTuple):
    """The difference of two conditions in mean return.

    Attributes:
        value: mean over tasks of the mean difference.
        interval: the 95 % interval; NaN if a task has fewer than two runs.
        p: the two-sided p of "the condition makes no difference"; below 0.05 if ``interval`` excludes 0.
        pairs: pairs of runs with equal task and seed; 0 if seeds are not shared and runs were compared unpaired.
    """

    value: float
    interval: Interval
    p: float
    pairs: int


@final
@dataclass(frozen=True)
class MatchedRuns:
    """The scores of two conditions on the same tasks.

    Attributes:
        x: scores of each task's runs, shapes (runs,).
        y: the scores of the other condition; with ``paired``, in the same order of seeds.
        paired: whether run i of ``x`` and run i of ``y`` have the same seed.
    """

    x: tuple[NDArray[np.float64], ...]
    y: tuple[NDArray[np.float64], ...]
    paired: bool

    @property
    def pairs(self) -> int:
        """The number of pairs of runs on all tasks; 0 if unpaired."""
        return sum(task.size for task in self.x) if self.paired else 0

    @property
    def reference(self) -> float:
        """The mean over tasks of mean(y)."""
        return float(np.mean([task.mean() for task in self.y]))

    def contrast(self, factor: float = 1.0) -> Mean:
        """The mean over tasks of mean(x) - factor mean(y)."""
        weight = 1 / len(self.x)
        if self.paired:
            return sum_of_means([weight * _minus(a, factor * b) for a, b in zip(self.x, self.y, strict=True)])
        return sum_of_means([*(weight * a for a in self.x), *(-weight * factor * b for b in self.y)])


def probability_of_improvement(
    x: Sequence[ArrayLike], y: Sequence[ArrayLike], generator: np.random.Generator, *, replicates: int = 5_000
) -> Estimate:
    """Estimates how likely a run of ``x`` scores more than one of ``y`` on a task, ties counting half; mean over tasks.

    P(X > Y) = 1/(NK) sum over runs i, j of [1 if x_i > y_j, 1/2 if x_i = y_j], the Mann-Whitney U over its maximum.

    Args:
        x: scores of each task's runs.
        y: the same of the other condition, tasks in the same order.
        generator: source of the resampling: runs of either condition are resampled within their task.
        replicates: number of resamplings.

    Returns:
        The probability and its interval, which is NaN if a task has fewer than two runs on either side.

    Source:
        Agarwal et al., Section 4.3.
    """
    estimates, resampled = [], np.zeros(replicates)
    too_few = False
    for x_scores, y_scores in zip(x, y, strict=True):
        a, b = np.asarray(x_scores, dtype=float), np.sort(np.asarray(y_scores, dtype=float))
        below, not_above = np.searchsorted(b, a, "left"), np.searchsorted(b, a, "right")  # runs of y, by run of x
        games = 2 * a.size * b.size  # two for each pair, of which a tie wins one
        estimates.append((below + not_above).sum() / games)
        too_few = too_few or min(a.size, b.size) < 2
        if too_few:
            continue
        wins = []
        for count in batches(replicates, a.size + b.size):
            first = np.zeros((count, b.size + 1), np.int64)  # how often the first k runs of y are drawn
            np.cumsum(draw_counts(b.size, generator, count), axis=1, out=first[:, 1:])
            beaten = first[:, below] + first[:, not_above]
            wins.append((draw_counts(a.size, generator, count) * beaten).sum(axis=1))
        resampled += np.concatenate(wins) / games / len(x)
    return Estimate(float(np.mean(estimates)), NO_INTERVAL if too_few else percentiles(resampled))


def match_runs(x: Sequence[Mapping[Any, float]], y: Sequence[Mapping[Any, float]]) -> MatchedRuns:
    """Pairs runs of equal seed if each task has two shared seeds, or one if a side has one run; else keeps all runs.

    Args:
        x: for each task, finite scores by seed, at least one.
        y: the same of the other condition, tasks in the same order.
    """
    seeds = [sorted(a.keys() & b.keys()) for a, b in zip(x, y, strict=True)]
    paired = all(len(shared) >= min(2, len(a), len(b)) for shared, a, b in zip(seeds, x, y, strict=True))

    def scores(side: Sequence[Mapping[Any, float]]) -> tuple[NDArray[np.float64], ...]:
        chosen = seeds if paired else [sorted(task) for task in side]
        return tuple(np.array([task[seed] for seed in shared]) for task, shared in zip(side, chosen, strict=True))

    return MatchedRuns(scores(x), scores(y), paired)


def difference(x: Sequence[Mapping[Any, float]], y: Sequence[Mapping[Any, float]]) -> Difference:
    """Computes the mean return of ``x`` minus the mean return of ``y``, averaged over tasks, by Student's t.

    Args:
        x: for each task, finite scores by seed.
        y: the same of the other condition, tasks in the same order.

    Returns:
        The difference: of pairs, or of all runs of either by Welch's test; see :func:`match_runs`.
    """
    sides = match_runs(x, y)
    mean = sides.contrast()
    return Difference(mean.value, mean.interval(), mean.p_two_sided, sides.pairs)


def holm(p: ArrayLike) -> NDArray[np.float64]:
    """Adjusts p-values by Holm's method: rejecting those below alpha errs at all with probability alpha at most.

    The k-th smallest of m becomes max over j <= k of min(1, (m - j + 1) p_j).

    Args:
        p: p-values, shape (m,); NaN stands for a missing test, and stays.

    Source:
        Holm, "A simple sequentially rejective multiple test procedure", 1979.
    """
    values = np.asarray(p, dtype=float)
    adjusted = np.full(values.shape, np.nan)
    tested = np.flatnonzero(~np.isnan(values))
    order = tested[np.argsort(values[tested], kind="stable")]
    factors = np.arange(len(order), 0, -1)
    adjusted[order] = np.minimum(1, np.maximum.accumulate(factors * values[order]))
    return adjusted


def _minus(a: NDArray[np.float64], b: NDArray[np.float64]) -> NDArray[np.float64]:
    """Computes a - b; a tie stays a tie although ``b`` was rounded."""
    result = a - b
    return np.where(np.abs(result) <= _ROUNDING * np.abs(a), 0.0, result)
