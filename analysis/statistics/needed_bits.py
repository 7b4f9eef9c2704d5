"""The significand bits that a task needs: the smallest width within a margin of fp32."""

from __future__ import annotations

import math
from itertools import accumulate, takewhile
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from .comparisons import matched
from .equivalence import ALPHA, MARGIN, equivalence

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from .equivalence import Tasks


class NeededBits(NamedTuple):
    """The answer, and how sure it is.

    Attributes:
        bits: the smallest width m that is shown, as all larger widths tested are, not to be worse than fp32 by the
            margin or more; None if no width is.
        confidence: 1 - the largest p of these widths; if ``bits`` is None, of the largest width tested. NaN if it
            is not known.
        by_means: the smallest such width if means are taken as they are, without regard to chance; None if no width.
        confidences: for every width tested, from wide to narrow, 1 - the largest p of it and all larger ones; NaN from
            the first one on that has a single run on some task.
        runs: on a task, of fp32 or the width that has the fewest, of those with a confidence.
        paired: whether runs were compared by seed.
        reason: why the confidence is not known; empty if it is.
    """

    bits: int | None
    confidence: float
    by_means: int | None
    confidences: dict[int, float]
    runs: int
    paired: bool
    reason: str


def needed_bits(reference: Tasks, widths: Mapping[int, Tasks], *, margin: float = MARGIN) -> NeededBits:
    """Finds the smallest width that is shown, as all wider ones are, not to be worse than fp32 by a margin.

    Width m is good (non-inferior) if mean(m) > mean(fp32) - margin |mean(fp32)|, with means over tasks of means over
    runs: the lower one of the two tests of :func:`~.equivalence.equivalence`. The widths are tested from wide to
    narrow, each at 5 %, up to the first that is not shown to be good: a fixed sequence, with a chance of any
    false step of 5 % at most, whatever the number of widths. A narrow width that is good by luck below a bad one does
    not count.

    Args:
        reference: the scores of fp32 by seed, for each task; more is better. The score of a crash may be
            -infinity: a width with such a run is not good.
        widths: the same for each number of significand bits, tasks in the same order.
        margin: as a fraction of the mean return of fp32, >= 0.

    Returns:
        The width. A width with one run on a task has no confidence (NaN), nor have narrower ones; nor has any if fp32
        has one run, or itself scores 0, which anything is as good as.

    Source:
        Non-inferiority with a margin: Piaggio et al., "Reporting of noninferiority and equivalence randomized
        trials", JAMA 2012. Fixed sequences: Maurer, Hothorn and Lehmacher, "Multiple comparisons in drug clinical
        trials and preclinical assays: a-priori ordered hypotheses", 1995.
    """
    order = sorted(widths, reverse=True)
    everything = [reference, *(widths[m] for m in order)]
    fewest = [min((len(scores) for scores in tasks), default=0) for tasks in everything]
    judged = list(takewhile(lambda i: fewest[i] > 1, range(len(everything))))  # fp32, and widths without a gap
    runs = min((fewest[i] for i in judged), default=min(fewest))
    nothing = NeededBits(None, float("nan"), None, dict.fromkeys(order, float("nan")), runs, paired=False, reason="")
    if not order or min(fewest) == 0:
        return nothing._replace(reason="nothing to compare")
    nothing = nothing._replace(paired=all(matched(everything[i], reference).paired for i in judged))
    means = [float(np.mean([np.mean(list(scores.values())) for scores in tasks])) for tasks in everything]
    if not math.isfinite(means[0]):
        return nothing._replace(reason="fp32 itself crashed")
    if means[0] == 0:
        return nothing._replace(reason="fp32 itself scores 0")
    # A tie stays a tie although the means were summed in floating point.
    least = means[0] - (margin + 1e-9) * abs(means[0])
    known = nothing._replace(by_means=_last(order, (mean >= least for mean in means[1:])))
    if len(judged) < 2:
        return known._replace(runs=1, reason="one seed says nothing about chance")
    tested = (equivalence(everything[i], reference, margin).p_worse for i in judged[1:])
    confidences = nothing.confidences | dict(zip(order, (1 - p for p in accumulate(tested, max)), strict=False))
    bits = _last(order, (confidence > 1 - ALPHA for confidence in confidences.values()))
    confidence = confidences[order[0] if bits is None else bits]
    return known._replace(bits=bits, confidence=confidence, confidences=confidences)


def _last(order: list[int], good: Iterable[bool]) -> int | None:
    """The narrowest width of an unbroken row of good ones; None if the widest is not good."""
    row = list(takewhile(lambda pair: pair[1], zip(order, good, strict=True)))
    return row[-1][0] if row else None
