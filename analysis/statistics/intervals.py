"""Computes statistics over runs: means, interquartile means, performance profiles, bootstrap intervals by task."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

_CELLS = 4_000_000  # resampled scores in memory at a time
LEVEL = 0.95
"""The confidence level of intervals."""
_PART = 50_000  # runs drawn at a time, few enough for a processor's cache


class Interval(NamedTuple):
    """A confidence interval; both ends are NaN where a group has fewer than two runs."""

    low: float
    high: float


NO_INTERVAL = Interval(float("nan"), float("nan"))


def generator_for(*labels: object) -> np.random.Generator:
    """Makes the generator for these names, so that a row's numbers do not depend on the other rows."""
    return np.random.default_rng(zlib.crc32("/".join(map(str, labels)).encode()))


def mean_and_std(groups: Sequence[ArrayLike]) -> tuple[float, float]:
    """Computes mean and standard deviation over runs, and aggregates them over tasks as the paper does.

    The mean over tasks of the mean over runs, and the mean over tasks of the standard deviation over runs (n - 1).

    Args:
        groups: the scores of each task's runs.

    Returns:
        Both; the standard deviation is NaN if a task has fewer than two runs.

    Source:
        Low-precision SAC, Section 4: "when aggregating stds across tasks, we calculate the stds of individual tasks
        and then plot the average std". It does not say whether it divides by n or n - 1.
    """
    arrays = [np.asarray(group, dtype=float) for group in groups]
    spread = [array.std(ddof=1) if array.size > 1 else float("nan") for array in arrays]
    return float(np.mean([array.mean() for array in arrays])), float(np.mean(spread))


def interquartile_mean(scores: ArrayLike) -> float:
    """Computes the mean of the middle half of ``scores``: a quarter (rounded down) is cut off at either end.

    Args:
        scores: any number of scores; NaN if empty.

    Source:
        Agarwal et al., "Deep Reinforcement Learning at the Edge of the Statistical Precipice", Section 4.3.
    """
    values = np.ravel(np.asarray(scores, dtype=float))
    return float(stats.trim_mean(values, 0.25)) if values.size else float("nan")


def performance_profile(groups: Sequence[ArrayLike], thresholds: ArrayLike) -> NDArray[np.float64]:
    """Computes the fraction of runs that score above each threshold, averaged over tasks.

    Args:
        groups: the scores of each task's runs; none of them empty.
        thresholds: scores tau, shape (t,).

    Returns:
        Fractions in [0, 1], shape (t,), which never grow with tau.

    Source:
        Agarwal et al., Section 4.2, equation 2 (score distributions).
    """
    tau = np.asarray(thresholds, dtype=float)
    above = [(np.asarray(group, dtype=float)[:, None] > tau).mean(axis=0) for group in groups]
    result: NDArray[np.float64] = np.mean(above, axis=0)
    return result


def profile_band(
    groups: Sequence[ArrayLike], thresholds: ArrayLike, generator: np.random.Generator, *, replicates: int = 2_000
) -> NDArray[np.float64]:
    """Computes intervals of :func:`performance_profile`, for each threshold by itself, by stratified bootstrap.

    Args:
        groups: the scores of each task's runs.
        thresholds: scores tau, shape (t,).
        generator: source of the resampling.
        replicates: number of resamplings.

    Returns:
        Lower and upper ends, shape (t, 2); NaN if a task has fewer than two runs.
    """
    tau = np.asarray(thresholds, dtype=float)
    arrays = [np.asarray(group, dtype=float) for group in groups]
    if any(array.size < 2 for array in arrays):
        return np.full((tau.size, 2), np.nan)
    fractions = np.zeros((replicates, tau.size))
    for array in arrays:
        fractions += resampled_means(array[:, None] > tau, generator, replicates) / len(arrays)
    return _ends(fractions)


def _mean_of_means(groups: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
    result: NDArray[np.float64] = np.mean([scores.mean(axis=1) for scores in groups], axis=0)
    return result


def interquartile_means(groups: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
    """Computes interquartile means of scores of all tasks together, a statistic for :func:`bootstrap_interval`."""
    result: NDArray[np.float64] = stats.trim_mean(np.concatenate(groups, axis=1), 0.25, axis=1)
    return result


def bootstrap_interval(
    groups: Sequence[ArrayLike],
    generator: np.random.Generator,
    *,
    replicates: int = 10_000,
    statistic: Callable[[Sequence[NDArray[np.float64]]], NDArray[np.float64]] = _mean_of_means,
) -> Interval:
    """Computes a percentile interval of the mean over tasks of means over runs, or of another statistic.

    This is a stratified bootstrap: in each replicate, the runs of each task are resampled with replacement among the
    runs of that task, so that every task keeps its weight.

    Args:
        groups: the scores of each task's runs.
        generator: source of the resampling.
        replicates: number of resamplings.
        statistic: maps the scores of each task in the replicates, (replicates, runs), to (replicates,).

    Returns:
        The interval; of zero width if all scores of each task are equal; NaN if a task has fewer than two runs (one
        run says nothing about the spread) or no tasks are given.

    Source:
        Agarwal et al., Section 4.2 (stratified bootstrap confidence intervals).
    """
    arrays = [np.asarray(group, dtype=float) for group in groups]
    if not arrays or any(array.size <= 1 for array in arrays):
        return NO_INTERVAL
    at_a_time = max(1, _CELLS // sum(array.size for array in arrays))
    values = []
    for start in range(0, replicates, at_a_time):
        count = min(at_a_time, replicates - start)
        values.append(statistic([array[generator.integers(array.size, size=(count, array.size))] for array in arrays]))
    return percentiles(np.concatenate(values))


def bootstrap_intervals(
    scores: NDArray[np.float64], generator: np.random.Generator, *, replicates: int = 2_000
) -> NDArray[np.float64]:
    """Computes percentile intervals of the mean over runs for each column, such as a step of a learning curve.

    Columns that hold scores of the same runs are resampled together, so the runs are drawn once for all of them.

    Args:
        scores: shape (runs, columns); NaN for a missing score.
        generator: source of the resampling.
        replicates: number of resamplings.

    Returns:
        Lower and upper ends, shape (columns, 2); NaN where a column has fewer than two scores, or an infinite one.
    """
    intervals = np.full((scores.shape[1], 2), np.nan)
    # Columns with the same runs form a group: of a usual curve all steps, unless some runs have not ended.
    patterns, pattern_of_column = np.unique(~np.isnan(scores), axis=1, return_inverse=True)
    finite = ~np.isinf(scores).any(axis=0)
    for number, runs in enumerate(patterns.T):
        columns = np.flatnonzero((pattern_of_column == number) & finite)
        if runs.sum() > 1 and columns.size:
            means = resampled_means(scores[np.ix_(runs, columns)], generator, replicates)
            intervals[columns] = _ends(means)
    return intervals


def batches(replicates: int, runs: int) -> Iterator[int]:
    """Yields numbers of replicates to draw at a time, so that the draws fit into a processor's cache.

    Args:
        replicates: the number of all replicates.
        runs: the number of draws in each.
    """
    limit = max(1, _PART // runs)
    for start in range(0, replicates, limit):
        yield min(limit, replicates - start)


def draw_counts(runs: int, generator: np.random.Generator, replicates: int) -> NDArray[np.int64]:
    """Draws the number of times that each run occurs in each replicate, shape (replicates, runs).

    In a replicate, all n runs are replaced by n draws with replacement: a multinomial number, by counting, which is
    several times as fast as NumPy's own.
    """
    # Each replicate counts in a range of its own, so that one `bincount` counts all of them.
    drawn = generator.integers(runs, size=(replicates, runs)) + runs * np.arange(replicates)[:, None]
    return np.bincount(drawn.ravel(), minlength=replicates * runs).reshape(replicates, runs)


def resampled_means(scores: NDArray[Any], generator: np.random.Generator, replicates: int) -> NDArray[np.float64]:
    """Draws replicates, and returns the means of their columns, shape (replicates, columns)."""
    values, runs = scores.astype(float), len(scores)
    # A replicate's sum is a product of counts and scores: one matrix product in place of gathering every draw.
    sums = [draw_counts(runs, generator, count).astype(float) @ values for count in batches(replicates, runs)]
    result: NDArray[np.float64] = np.concatenate(sums) / runs
    return result


def _ends(values: NDArray[np.float64], level: float = LEVEL) -> NDArray[np.float64]:
    """Returns the ends of the interval of each column by :func:`percentiles`, shape (columns, 2)."""
    tail = 50 * (1 - level)
    result: NDArray[np.float64] = np.percentile(values, [tail, 100 - tail], axis=0).T
    return result


def percentiles(values: NDArray[np.float64], level: float = LEVEL) -> Interval:
    """Returns the interval with the share ``level`` of ``values``, and equal numbers below and above it."""
    low, high = _ends(values[:, None], level)[0]
    return Interval(float(low), float(high))
