"""Tables of how often a format fails to learn, and of the returns of the runs that learn."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from scipy import stats

from ..statistics.comparisons import Difference, difference
from ..statistics.intervals import NO_INTERVAL, Interval

if TYPE_CHECKING:
    from .sides import Scores, Side

_LEVEL = 0.9  # of intervals: each end is a one-sided bound of 95 %


class Learning(NamedTuple):
    """Whether runs of a format learn a task that the reference learns, and what those return that do.

    Attributes:
        threshold: the score that a run needs to have learned: half of the way from the reference's mean before
            learning to its median after it.
        learnable: how many runs have a seed that has learned in the reference; or all, if no seed is shared.
        unlearned: how many of them have not learned, crashes among them.
        interval: Clopper and Pearson's interval of the share that does not learn, 90 %; 16 of 16 leave up to 17 %.
        apart: the difference of scores among those that have learned: of pairs if both of a seed have, 95 %.
    """

    threshold: float
    learnable: int
    unlearned: int
    interval: Interval
    apart: Difference


UNKNOWN = Learning(math.nan, 0, 0, NO_INTERVAL, Difference(math.nan, NO_INTERVAL, math.nan, 0))
"""What is known where the reference's scores before learning are not, or where it has learned nothing."""


def learning(side: Side, reference: Side, task: str) -> Learning:
    """Counts the runs that learn, and compares their scores, apart from each other.

    A mean takes both for one: a format that fails in one run of ten and is as good in the others has a mean that is a
    tenth lower, and seeds that differ by as much cannot tell.

    Args:
        side: the format.
        reference: what it is compared with.
        task: on which both have runs.

    Source:
        Clopper and Pearson, "The use of confidence or fiducial limits illustrated in the case of the binomial", 1934.
    """
    before = list(reference.untrained.get(task, {}).values())
    after, scores = reference.judged[task], side.judged[task]
    best = float(np.median(list(after.values())))
    start = float(np.mean(before)) if before else math.nan
    if not (math.isfinite(best) and best > start):
        return UNKNOWN
    threshold = (start + best) / 2
    there, here = (_learned(of, threshold) for of in (after, scores))
    shared = after.keys() & scores.keys()
    learnable = shared & there.keys() if shared else scores.keys()
    missed = len(learnable - here.keys())
    apart = difference([here], [there]) if here and there else UNKNOWN.apart
    return Learning(threshold, len(learnable), missed, share_interval(missed, len(learnable)), apart)


def share_interval(count: int, of: int, level: float = _LEVEL) -> Interval:
    """Clopper and Pearson's interval of a share, exact for any number: it covers the true one with ``level`` at least.

    Args:
        count: how often it was seen, from 0 to ``of``.
        of: how often it could have been; NaN ends if 0.
        level: the level of confidence, in (0, 1).
    """
    if not of:
        return NO_INTERVAL
    tail = (1 - level) / 2
    low = stats.beta.ppf(tail, count, of - count + 1) if count else 0.0
    high = stats.beta.ppf(1 - tail, count + 1, of - count) if count < of else 1.0
    return Interval(float(low), float(high))


def _learned(scores: Scores, threshold: float) -> Scores:
    return {seed: score for seed, score in scores.items() if score >= threshold}
