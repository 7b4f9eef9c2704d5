"""How many significand bits a task needs: the smallest width that is not worse than fp32 by more than a margin."""

from __future__ import annotations

from itertools import takewhile
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    Scores = Mapping[Any, float]  # by seed

MARGIN = 0.1
LEVEL = 0.95


class NeededBits(NamedTuple):
    """The answer, and how sure it is.

    Attributes:
        bits: the smallest width m that is, together with all larger widths tested, not worse than fp32 by more than
            the margin, with a confidence of at least the level; None if no width is.
        confidence: of that; if ``bits`` is None, of the largest width tested. NaN if it cannot be said.
        by_means: the smallest such width if means are taken as they are, without regard to chance; None if no width.
        confidences: for every width tested, from wide to narrow, the confidence that it and all larger ones are good;
            NaN from the first one on that has a single run on some task.
        runs: on a task, of fp32 or the width that has the fewest, of those with a confidence.
        paired: whether runs were resampled by seed.
        reason: why nothing can be said with confidence; empty if it can.
    """

    bits: int | None
    confidence: float
    by_means: int | None
    confidences: dict[int, float]
    runs: int
    paired: bool
    reason: str


def needed_bits(
    reference: Sequence[Scores],
    widths: Mapping[int, Sequence[Scores]],
    generator: np.random.Generator,
    *,
    margin: float = MARGIN,
    level: float = LEVEL,
    replicates: int = 10_000,
) -> NeededBits:
    """Finds the smallest width that is not worse than fp32 by more than a margin (non-inferior), as all wider ones are.

    Width m is good if mean(m) >= mean(fp32) - margin |mean(fp32)|, with means over tasks of means over runs. In each
    bootstrap replicate the runs of every width and of fp32 are drawn anew within their task, by the same seeds if
    all have the same ones; the confidence of m is the share of replicates in which m and all larger widths are good.
    It can only fall as m does, so a narrow width that is good by luck below a bad one does not count. All widths are
    judged by the same replicates and jointly, so that no adjustment for their number is needed.

    Args:
        reference: of fp32, for each task the scores by seed, of which more is better. That of a crash may be
            -infinity: a width with such a run is not good, nor is a replicate in which it is drawn.
        widths: the same for each number of significand bits, tasks in the same order.
        generator: source of the resampling.
        margin: as a fraction of the mean return of fp32, >= 0.
        level: confidence asked for, in (0, 1).
        replicates: number of resamplings.

    Returns:
        The width. A width with one run on a task has no confidence (NaN), nor have narrower ones; nor has any if fp32
        has one run, or itself scores 0, which anything is as good as.

    Source:
        Non-inferiority with a margin: Piaggio et al., "Reporting of noninferiority and equivalence randomized
        trials", JAMA 2012; the bootstrap as in :func:`roundoff.analysis.statistics.intervals.bootstrap_interval`.
    """
    order = sorted(widths, reverse=True)
    everything = [reference, *(widths[m] for m in order)]
    fewest = [min((len(scores) for scores in tasks), default=0) for tasks in everything]
    judged = list(takewhile(lambda i: fewest[i] > 1, range(len(everything))))  # fp32, and widths without a gap
    runs = min((fewest[i] for i in judged), default=min(fewest))
    paired = all(
        len({frozenset(scores) for scores in task}) == 1 for task in zip(*everything[: len(judged)], strict=True)
    )
    confidences = dict.fromkeys(order, float("nan"))
    if not order or min(fewest) == 0:
        return NeededBits(None, float("nan"), None, confidences, runs, paired, "nothing to compare")
    arrays = [[np.array([scores[seed] for seed in sorted(scores)]) for scores in tasks] for tasks in everything]
    observed = np.array([[np.mean([scores.mean() for scores in tasks])] for tasks in arrays])
    if not np.isfinite(observed[0, 0]):
        return NeededBits(None, float("nan"), None, confidences, runs, paired, "fp32 itself crashed")
    if observed[0, 0] == 0:
        return NeededBits(None, float("nan"), None, confidences, runs, paired, "fp32 itself scores 0")
    by_means = _smallest(order, _good(observed, margin)[:, 0])
    if len(judged) < 2:
        return NeededBits(None, float("nan"), by_means, confidences, 1, paired, "one seed says nothing about chance")
    arrays = arrays[: len(judged)]
    means = np.zeros((len(arrays), replicates))
    for task in zip(*arrays, strict=True):
        shared = generator.integers(task[0].size, size=(replicates, task[0].size)) if paired else None
        for row, scores in enumerate(task):
            chosen = generator.integers(scores.size, size=(replicates, scores.size)) if shared is None else shared
            means[row] += scores[chosen].mean(axis=1) / len(reference)
    shares = _good(means, margin).mean(axis=1)
    confidences |= dict(zip(order, map(float, shares), strict=False))
    bits = _smallest(order[: len(shares)], shares >= level)
    confidence = confidences[order[0] if bits is None else bits]
    return NeededBits(bits, confidence, by_means, confidences, runs, paired, "")


def _good(means: NDArray[np.float64], margin: float) -> NDArray[np.bool_]:
    """Which widths (rows, wide to narrow) are good together with all wider ones; the first row of means is fp32's."""
    # A tie stays a tie although the means were summed in floating point.
    least = means[0] - margin * np.abs(means[0]) - 1e-9 * np.abs(means[0])
    result: NDArray[np.bool_] = np.logical_and.accumulate(means[1:] >= least, axis=0)
    return result


def _smallest(order: list[int], good: NDArray[np.bool_]) -> int | None:
    return min((m for m, fine in zip(order, good, strict=True) if fine), default=None)
