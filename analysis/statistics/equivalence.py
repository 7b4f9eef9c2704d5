"""Whether two conditions are equivalent: two one-sided tests of a difference as large as a margin."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy import optimize

from .comparisons import Matched, matched
from .intervals import NO_INTERVAL, Interval

Tasks = Sequence[Mapping[Any, float]]  # for each task, scores by seed

MARGIN = 0.05
"""The share of fp32's mean that still counts as no difference, unless another one is asked for."""
ALPHA = 0.05
"""Level of significance."""

_FURTHEST = 10.0  # an end of an interval of shares: 1000 % of fp32's mean


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
"""The equivalence to a reference that has no mean to take a share of."""


def equivalence(x: Tasks, y: Tasks, margin: float = MARGIN) -> EquivalenceTest:
    """Two one-sided tests (TOST): do the means of ``x`` and ``y`` differ by less than ``margin`` |mean(y)|?

    With the share r = (mean(x) - mean(y)) / |mean(y)|, one test is of r <= -margin and one of r >= margin; both must be
    rejected. The margin is a share of the reference's true mean, which is known no better than the runs tell. So each
    test is Student's t test of mean(x) - (1 -+ margin) mean(y) (for a negative mean(y), +-), paired by seed or by
    Welch (see :func:`~.comparisons.matched`), and the interval is Fieller's. Means are means over tasks.

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
    sides = matched(x, y)
    if sides.reference == 0:
        return UNKNOWN
    sign = math.copysign(1.0, sides.reference)
    worse = sides.contrast(1 - sign * margin).p_above
    better = (-sides.contrast(1 + sign * margin)).p_above
    share = sides.contrast().value / abs(sides.reference)
    return EquivalenceTest(share, _interval(sides, sign, share), float(np.maximum(worse, better)), worse)


def in_words(p_difference: float, p_equivalence: float, margin: float, *, at_ceiling: bool = False) -> str:
    """The answer: equivalent, different, both (a difference smaller than the margin), or neither: undecided.

    Args:
        p_difference: the p-value of the hypothesis of no difference; NaN if it was not tested.
        p_equivalence: the p-value of :func:`equivalence`; NaN if it was not tested.
        margin: as a fraction, for the words.
        at_ceiling: the reference returns as much as there is; see :func:`~..tables.ceiling.ceiling`.
    """
    differs, same = p_difference < ALPHA, p_equivalence < ALPHA
    within = f"equivalent within {100 * margin:.3g} %{', at the highest return' if at_ceiling else ''}"
    if differs:
        return f"shown to differ, yet {within}" if same else "shown to differ"
    if math.isnan(p_equivalence):
        return "cannot be said"
    return within if same else "inconclusive"


def _finite(scores: Mapping[Any, float]) -> bool:
    return all(map(math.isfinite, scores.values()))


def _interval(sides: Matched, sign: float, share: float) -> Interval:
    """The shares that neither one-sided test rejects."""

    def rejected(share: float) -> float:
        return sides.contrast(1 + sign * share).p_above - ALPHA

    def rejected_above(share: float) -> float:
        return (-sides.contrast(1 + sign * share)).p_above - ALPHA

    return Interval(_end(rejected, share, -_FURTHEST), _end(rejected_above, share, _FURTHEST))


def _end(p_less_alpha: Callable[[float], float], share: float, reach: float) -> float:
    """Finds where p is alpha, beyond ``share``, at which it is a half or more; NaN if not so near or not at all."""
    if not p_less_alpha(share + reach) < 0:
        return float("nan")
    return float(optimize.brentq(p_less_alpha, share, share + reach))
