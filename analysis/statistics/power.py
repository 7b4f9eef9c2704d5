"""Estimates the errors and the power of an equivalence test, and the number of seeds that it needs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import special, stats

from .comparisons import MatchedRuns, match_runs
from .equivalence import ALPHA, MARGIN, Tasks

Samples = Sequence[NDArray[np.float64]]  # of each task, shape (experiments, runs)

WANTED = 0.8
"""The power that an experiment is planned for."""
FAILING = 0.1
"""The share of runs that learn nothing, in made-up formats that fail."""

_EXPERIMENTS = 2_000
_DRAWN = 2_000_000  # most drawn runs of a side of a task: with many runs, there are fewer experiments
_ROUNDING = 1e-9  # smaller spreads, relative to the largest number, are rounding errors
_SEEDS = (*range(3, 17), 18, 20, 24, 28, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256)


class Power(NamedTuple):
    """The rates of equivalence that the test finds for made-up formats with runs spread like the real ones.

    Attributes:
        lower: formats that return less by just the margin; 5 % or less is right.
        failing: formats that are as good as the reference, but for one more run in ten that learns nothing; NaN where
            the return of such a run is not known.
        equal: formats that are as good as the reference: the power.
        seeds: the number on each task that takes ``equal`` to 80 %; NaN if 256 do not.
        correlation: the correlation of the scores of equal seeds, on the task that has the most; NaN if unpaired.
        correlation_p: one-sided, of "pairing by seed does not help": the correlation is 0 or less.
    """

    lower: float
    failing: float
    equal: float
    seeds: float
    correlation: float
    correlation_p: float


UNKNOWN = Power(*[math.nan] * 6)
"""The estimate for fewer than three runs, or where some have no score."""


def power_of(
    x: Tasks, y: Tasks, generator: np.random.Generator, *, margin: float = MARGIN, untrained: Sequence[float] = ()
) -> Power:
    """Makes experiments up by drawing from the existing runs, and counts the test's results for them.

    An experiment draws the same number of runs of either side, pairs together, with replacement, by the smoothed
    bootstrap: normal noise with the covariance of the runs, times n^(-1/6), is added, and the sum is shrunk to the
    variance of the runs; without the noise, draws from few runs are too often all the same. Runs of the format are then
    shifted to the intended mean of the made-up format. With few runs this is rough all the same. There are
    2000 experiments, and fewer where a side has more than a thousand runs.

    Args:
        x: for each task, scores by seed.
        y: the same of the reference, tasks in the same order.
        generator: source of the draws.
        margin: the margin of the test, as a fraction of the reference's mean.
        untrained: the score of a run that learns nothing, on each task; empty if it is not known.

    Returns:
        :data:`UNKNOWN` if a task has fewer than three runs, or one without a score.

    Source:
        The test is :func:`~.equivalence.equivalence`. Power by simulation: Colas, Sigaud and Oudeyer, "How
        many random seeds? Statistical power analysis in deep reinforcement learning experiments", 2018. Smoothing:
        Silverman and Young, "The bootstrap: to smooth or not to smooth?", 1987.
    """
    if not all(len(task) > 2 and np.isfinite([*task.values()]).all() for task in (*x, *y)):
        return UNKNOWN
    unit = max(abs(score) for task in (*x, *y) for score in task.values()) or 1.0  # so that squares are numbers, too
    x, y = ([{seed: score / unit for seed, score in task.items()} for task in side] for side in (x, y))
    untrained = [score / unit for score in untrained]
    sides = match_runs(x, y)
    if min(task.size for task in (*sides.x, *sides.y)) < 3 or sides.reference == 0:
        return UNKNOWN
    sign = math.copysign(1.0, sides.reference)

    def share(
        shift: float, change: Callable[[Samples], Samples] = lambda drawn: drawn, seeds: int | None = None
    ) -> float:
        made_up, references = [], []
        for x_scores, y_scores in zip(sides.x, sides.y, strict=True):
            x_noise, y_noise = _draw_deviations(x_scores, y_scores, generator, paired=sides.paired, seeds=seeds)
            made_up.append(x_noise + y_scores.mean() * (1 - sign * shift))
            references.append(y_noise + y_scores.mean())
        return _equivalent_share(change(made_up), references, margin * sign, paired=sides.paired)

    def some_fail(drawn: Samples) -> Samples:
        return [
            np.where(generator.random(scores.shape) < FAILING, untrained_score, scores)
            for scores, untrained_score in zip(drawn, untrained, strict=True)
        ]

    failing = share(0, some_fail) if untrained else math.nan
    return Power(share(margin), failing, share(0), _needed(lambda seeds: share(0, seeds=seeds)), *_correlation(sides))


def _draw_deviations(
    x: NDArray[np.float64], y: NDArray[np.float64], generator: np.random.Generator, *, paired: bool, seeds: int | None
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Draws deviations of runs of a task from their means, shape (experiments, seeds), or (experiments, runs)."""
    if paired:
        drawn = _smoothed(np.stack([x, y]), generator, seeds)
        return drawn[0], drawn[1]
    return _smoothed(x[None], generator, seeds)[0], _smoothed(y[None], generator, seeds)[0]


def _smoothed(runs: NDArray[np.float64], generator: np.random.Generator, seeds: int | None) -> NDArray[np.float64]:
    """Draws from runs of shape (sides, n), keeping columns together: (sides, experiments, seeds)."""
    sides, count = runs.shape
    width = count ** (-1 / 6)
    deviations = (runs - runs.mean(axis=1, keepdims=True)) * math.sqrt(count / (count - 1))
    seed_count = seeds or count
    places = generator.integers(count, size=(min(_EXPERIMENTS, max(1, _DRAWN // seed_count)), seed_count))
    scales, axes = np.linalg.eigh(deviations @ deviations.T / count)
    root = axes * np.sqrt(np.maximum(scales, 0))
    noise = np.tensordot(root, generator.normal(size=(sides, *places.shape)), 1)
    result: NDArray[np.float64] = (deviations[:, places] + width * noise) / math.sqrt(1 + width**2)
    return result


def _equivalent_share(x: Samples, y: Samples, margin: float, *, paired: bool) -> float:
    """Returns the share of experiments where both one-sided tests reject."""
    rejected: NDArray[np.bool_] | bool = True
    for side in (1, -1):
        factor = 1 - side * margin
        if paired:
            samples = [side * (a - factor * b) for a, b in zip(x, y, strict=True)]
        else:
            samples = [*(side * a for a in x), *(-side * factor * b for b in y)]
        rejected = rejected & (_p_greater(samples) < ALPHA)
    return float(np.mean(rejected))


def _p_greater(samples: Samples) -> NDArray[np.float64]:
    """Returns the one-sided p of "the sum of the means is 0 or less" by experiment, as :class:`~.means.Mean` does."""
    value = sum(sample.mean(axis=1) for sample in samples)
    variances = np.array([sample.var(axis=1, ddof=1) / sample.shape[1] for sample in samples])
    variance = variances.sum(axis=0)
    freedoms = np.array([[sample.shape[1] - 1] for sample in samples])
    with np.errstate(invalid="ignore", divide="ignore"):
        freedom = variance**2 / (variances**2 / freedoms).sum(axis=0)
        p = special.stdtr(freedom, -value / np.sqrt(variance))
    result: NDArray[np.float64] = np.where(variance > 0, p, np.where(np.asarray(value) > 0, 0.0, 1.0))
    return result


def _needed(power: Callable[[int], float]) -> float:
    """Finds the fewest seeds with the planned power, by bisection."""
    low, high = 0, len(_SEEDS)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if power(_SEEDS[middle]) >= WANTED else (middle + 1, high)
    return float(_SEEDS[low]) if low < len(_SEEDS) else math.nan


def _correlation(sides: MatchedRuns) -> tuple[float, float]:
    if not sides.paired:
        return math.nan, math.nan
    a, b = max(zip(sides.x, sides.y, strict=True), key=lambda pair: pair[0].size)
    if any(np.ptp(scores) <= _ROUNDING * np.abs(scores).max() for scores in (a, b)):
        return math.nan, math.nan
    test = stats.pearsonr(a, b, alternative="greater")
    return float(test.statistic), float(test.pvalue)
