"""Tests whether two conditions are equivalent: two one-sided tests of a difference as large as a margin."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy import optimize

from .comparisons import MatchedRuns, match_runs
from .intervals import NO_INTERVAL, Interval

Tasks = Sequence[Mapping[Any, float]]  # for each task, scores by seed

MARGIN = 0.05
"""The default margin: the share of fp32's mean that still counts as no difference."""
ALPHA = 0.05
"""Level of significance."""

_FURTHEST = 10.0  # furthest end of an interval of shares: 1000 % of fp32's mean


class EquivalenceTest(NamedTuple):
    """The difference of a condition from a reference, as a share of the reference's mean, with its test.

    Attributes:
        share: mean difference over |mean of the reference|.
        interval: 90 % interval of ``share``: where it is within the margin on both sides, ``p`` is below 0.05. An end
            is NaN if it does not exist.
        p: the p-value of "the means are as far apart as the margin, or further": the larger one of both sides.
        p_worse: the p-value of the lower side only: of "the condition is worse by the margin, or more".
    """

    share: float
    interval: Interval
    p: float
    p_worse: float


UNKNOWN = EquivalenceTest(float("nan"), NO_INTERVAL, float("nan"), float("nan"))
"""The result for a reference without a mean to take a share of."""


def equivalence(x: Tasks, y: Tasks, margin: float = MARGIN) -> EquivalenceTest:
    """Tests whether the means of ``x`` and ``y`` differ by less than ``margin`` |mean(y)|: two one-sided tests (TOST).

    With the share r = (mean(x) - mean(y)) / |mean(y)|, one test is of r <= -margin and one of r >= margin; both must be
    rejected. The margin is a share of the reference's true mean, which is only estimated from runs. So each
    test is Student's t test of mean(x) - (1 -+ margin) mean(y) (for a negative mean(y), +-), paired by seed or by
    Welch (see :func:`~.comparisons.match_runs`), and the interval is Fieller's. Means are means over tasks.

    Args:
        x: for each task, scores by seed; more is better. One that is not finite is a crash without a score:
            such a condition is never shown to be equivalent (both p are 1).
        y: the same of the reference, tasks in the same order.
        margin: as a fraction of the reference's mean, >= 0. With 0 nothing can be shown.

    Returns:
        NaN throughout if the reference has a crash without a score or a mean of 0; ``p`` and ``interval`` are NaN if
        a task has fewer than two runs.

    Source:
        Schuirmann, "A comparison of the two one-sided tests procedure and the power approach for assessing the
        equivalence of average bioavailability", 1987; Lakens, "EquivalenceTest tests: a practical primer for t tests",
        2017. With shares: Hauschke et al., "Sample size determination for proving equivalence based on the ratio of
        two means for normally distributed data", 1999; Fieller, "Some problems in interval estimation", 1954.
    """
    if not all(map(_finite, y)):
        return UNKNOWN
    if not all(map(_finite, x)):
        return EquivalenceTest(float("nan"), NO_INTERVAL, 1.0, 1.0)
    sides = match_runs(x, y)
    if sides.reference == 0:
        return UNKNOWN
    sign = math.copysign(1.0, sides.reference)
    worse = sides.contrast(1 - sign * margin).p_greater
    better = (-sides.contrast(1 + sign * margin)).p_greater
    share = sides.contrast().value / abs(sides.reference)
    return EquivalenceTest(share, _unrejected_interval(sides, sign, share), float(np.maximum(worse, better)), worse)


def in_words(p_difference: float, p_equivalence: float, margin: float, *, at_ceiling: bool = False) -> str:
    """States the answer: equivalent, different, both (a difference smaller than the margin), or neither: undecided.

    Args:
        p_difference: the p-value of the hypothesis of no difference; NaN if it was not tested.
        p_equivalence: the p-value of :func:`equivalence`; NaN if it was not tested.
        margin: the margin as a fraction, for the text.
        at_ceiling: whether the reference has the highest return; see :func:`~..tables.against_fp32.ceiling`.
    """
    differs, equivalent = p_difference < ALPHA, p_equivalence < ALPHA
    within = f"equivalent within {100 * margin:.3g} %{', at the highest return' if at_ceiling else ''}"
    if differs:
        return f"shown to differ, yet {within}" if equivalent else "shown to differ"
    if math.isnan(p_equivalence):
        return "cannot be said"
    return within if equivalent else "inconclusive"


def _finite(scores: Mapping[Any, float]) -> bool:
    return all(map(math.isfinite, scores.values()))


def _unrejected_interval(sides: MatchedRuns, sign: float, share: float) -> Interval:
    """Returns the interval of the shares that neither one-sided test rejects."""

    def excess_below(share: float) -> float:
        return sides.contrast(1 + sign * share).p_greater - ALPHA

    def excess_above(share: float) -> float:
        return (-sides.contrast(1 + sign * share)).p_greater - ALPHA

    return Interval(_end(excess_below, share, -_FURTHEST), _end(excess_above, share, _FURTHEST))


def _end(p_less_alpha: Callable[[float], float], share: float, reach: float) -> float:
    """Finds the share beyond ``share``, within ``reach``, where p is alpha; NaN if it does not exist."""
    if not p_less_alpha(share + reach) < 0:
        return float("nan")
    return float(optimize.brentq(p_less_alpha, share, share + reach))
