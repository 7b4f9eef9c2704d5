"""Two conditions against each other: probability of improvement, differences paired by seed, and many at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .intervals import NO_INTERVAL, Interval, percentiles

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import ArrayLike, NDArray

_EXACT = 12  # pairs up to which all 2^n signs are tried


class Estimate(NamedTuple):
    """A number and its confidence interval."""

    value: float
    interval: Interval


class Difference(NamedTuple):
    """How much two conditions differ in mean return.

    Attributes:
        value: mean over tasks of the mean difference.
        interval: 95 % by bootstrap; NaN if a task has fewer than two runs.
        p: two-sided, of the permutation test of "the condition makes no difference".
        pairs: runs of equal task and seed; 0 if the seeds are not shared and all runs were compared unpaired.
    """

    value: float
    interval: Interval
    p: float
    pairs: int


def probability_of_improvement(
    x: Sequence[ArrayLike],
    y: Sequence[ArrayLike],
    generator: np.random.Generator,
    *,
    level: float = 0.95,
    replicates: int = 5_000,
) -> Estimate:
    """How likely a run of ``x`` scores more than one of ``y`` on the same task, ties counting half; mean over tasks.

    P(X > Y) = 1/(NK) sum over runs i, j of [1 if x_i > y_j, 1/2 if x_i = y_j], the Mann-Whitney U over its maximum.

    Args:
        x: scores of each task's runs.
        y: the same of the other condition, tasks in the same order.
        generator: source of the resampling: runs of either condition are drawn anew within their task.
        level: confidence level, in (0, 1).
        replicates: number of resamplings.

    Returns:
        The probability and its interval, which is NaN if a task has fewer than two runs on either side.

    Source:
        Agarwal et al., Section 4.3.
    """
    estimates, resampled = [], np.zeros(replicates)
    small = False
    for one, other in zip(x, y, strict=True):
        a, b = np.asarray(one, dtype=float), np.asarray(other, dtype=float)
        wins = (a[:, None] > b) + 0.5 * (a[:, None] == b)
        estimates.append(wins.mean())
        small = small or min(a.size, b.size) < 2
        drawn_a, drawn_b = (
            generator.multinomial(size, np.full(size, 1 / size), size=replicates) for size in (a.size, b.size)
        )
        resampled += ((drawn_a @ wins) * drawn_b).sum(axis=1) / wins.size / len(x)
    return Estimate(float(np.mean(estimates)), NO_INTERVAL if small else percentiles(resampled, level))


def difference(
    x: Sequence[Mapping[Any, float]],
    y: Sequence[Mapping[Any, float]],
    generator: np.random.Generator,
    *,
    replicates: int = 10_000,
) -> Difference:
    """Mean return of ``x`` minus that of ``y``, averaged over tasks: paired by seed where all tasks share seeds.

    Paired, only runs whose seed both have count; pairs are resampled within their task, and the test flips the
    signs of differences (all 2^n ways up to twelve pairs, else ``replicates`` drawn ones). Unpaired, the runs of
    either are resampled, and the test exchanges runs within a task.

    Args:
        x: for each task, scores by seed.
        y: the same of the other condition, tasks in the same order.
        generator: source of the resampling.
        replicates: number of resamplings, and of random permutations.

    Returns:
        The difference; with n pairs, p is never below 2^(1 - n), which is what n pairs can show.
    """
    seeds = [sorted(one.keys() & other.keys()) for one, other in zip(x, y, strict=True)]
    if all(seeds):
        pairs = [np.array([a[seed] - b[seed] for seed in shared]) for a, b, shared in zip(x, y, seeds, strict=True)]
        return _paired(pairs, generator, replicates)
    sides = [[np.array([scores[seed] for seed in sorted(scores)]) for scores in side] for side in (x, y)]
    return _unpaired(sides[0], sides[1], generator, replicates)


def holm(p: ArrayLike) -> NDArray[np.float64]:
    """Holm's adjustment: p-values such that rejecting those below alpha errs at all with probability alpha at most.

    The k-th smallest of m becomes max over j <= k of min(1, (m - j + 1) p_j).

    Args:
        p: p-values, shape (m,); NaN are no tests, and stay.

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


def _paired(pairs: Sequence[NDArray[np.float64]], generator: np.random.Generator, replicates: int) -> Difference:
    weights = np.concatenate([np.full(pair.size, 1 / pair.size / len(pairs)) for pair in pairs])
    differences = np.concatenate(pairs)
    value = float(weights @ differences)
    count = differences.size
    if count <= _EXACT:
        signs = 1.0 - 2.0 * ((np.arange(2**count)[:, None] >> np.arange(count)) & 1)
        p = _share(signs @ (weights * differences), value)
    else:
        signs = generator.choice([-1.0, 1.0], size=(replicates, count))
        p = _with_observed(signs @ (weights * differences), value)
    if any(pair.size < 2 for pair in pairs):
        return Difference(value, NO_INTERVAL, p, count)
    means = sum(pair[generator.integers(pair.size, size=(replicates, pair.size))].mean(axis=1) for pair in pairs)
    return Difference(value, percentiles(np.asarray(means) / len(pairs), 0.95), p, count)


def _unpaired(
    x: Sequence[NDArray[np.float64]], y: Sequence[NDArray[np.float64]], generator: np.random.Generator, replicates: int
) -> Difference:
    value = float(np.mean([a.mean() - b.mean() for a, b in zip(x, y, strict=True)]))
    means, exchanged = np.zeros(replicates), np.zeros(replicates)
    for a, b in zip(x, y, strict=True):
        for side, sign in ((a, 1), (b, -1)):
            means += sign * side[generator.integers(side.size, size=(replicates, side.size))].mean(axis=1)
        mixed = generator.permuted(np.tile(np.concatenate([a, b]), (replicates, 1)), axis=1)
        exchanged += mixed[:, : a.size].mean(axis=1) - mixed[:, a.size :].mean(axis=1)
    few = any(side.size < 2 for side in (*x, *y))
    interval = NO_INTERVAL if few else percentiles(means / len(x), 0.95)
    return Difference(value, interval, _with_observed(exchanged / len(x), value), 0)


def _extreme(values: NDArray[np.float64], observed: float) -> NDArray[np.bool_]:
    """Which are as far from 0 as ``observed``, or further; sums in another order may differ in their last bits."""
    result: NDArray[np.bool_] = np.abs(values) >= abs(observed) * (1 - 1e-9)
    return result


def _share(values: NDArray[np.float64], observed: float) -> float:
    return float(_extreme(values, observed).mean())


def _with_observed(values: NDArray[np.float64], observed: float) -> float:
    """Drawn permutations, and the one that was observed: never 0."""
    return float((_extreme(values, observed).sum() + 1) / (values.size + 1))
