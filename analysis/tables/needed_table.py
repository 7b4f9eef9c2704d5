"""Finds the significand bits, or other widths, that each task needs: the smallest within a margin of fp32."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from itertools import accumulate, takewhile
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from ..runs.experiment import Experiment
from ..statistics.comparisons import match_runs
from ..statistics.equivalence import ALPHA, MARGIN, Tasks, equivalence
from .sides import Side, comparison_obstacle, selections, sides
from .summary import REFERENCE, ended, exponent_bits, parsed, significand_bits


def needed_table(experiment: Experiment, margin: float = MARGIN) -> pd.DataFrame:
    """Makes the table of the bits needed on each task, for each family of formats and condition.

    A family is the floats of one width of the exponent, which differ in significand bits; or formats with their width
    in the name (int8, posit16); or any other single format, with width 0.

    Columns: ``task``, ``family`` (empty for plain floats), ``exponent_bits``, the conditions, ``bits``, ``confidence``,
    ``by_means``, ``runs``, ``paired`` and ``reason`` (see ``NeededBits``), ``smallest`` and ``largest`` (widths
    tested), ``margin``.
    """
    runs = ended(experiment.runs)
    keys = experiment.conditions.keys
    families: dict[tuple[Any, ...], dict[int, Side]] = {}
    references: dict[tuple[Any, ...], Side] = {}
    for side, reference in sides(runs, keys, experiment.metric, experiment.runs):
        if side.settings["format"] == REFERENCE:  # runs in fp32 with perturbed initial weights
            continue
        name, width = _family(side.settings["format"])
        family = (name, *(side.settings[key] for key in keys))
        families.setdefault(family, {}).setdefault(width, side)
        references[family] = reference
    # The answer for each family on each selection of tasks
    rows: list[dict[str, Any]] = []
    for family, widths in families.items():
        reference = references[family]
        for selection in selections(reference, set(runs["task"]), experiment.metric):
            complete = {m: side for m, side in widths.items() if set(selection.tasks) <= side.judged.keys()}
            if not complete:
                continue
            tested = {m: selection.of(side.judged) for m, side in complete.items()}
            needed = needed_bits(selection.of(reference.judged), tested, margin=margin)
            obstacles = (comparison_obstacle(side, reference, selection.tasks, margin) for side in complete.values())
            if obstacle := next(filter(None, obstacles), ""):
                needed = needed._replace(bits=None, confidence=float("nan"), reason=needed.reason or obstacle)
            answer = {key: value for key, value in needed._asdict().items() if key != "confidences"}
            floats = isinstance(family[0], int)
            values = {"family": "" if floats else family[0], "exponent_bits": family[0] if floats else pd.NA}
            values |= dict(zip(keys, family[1:], strict=True))
            sizes = {"smallest": min(tested), "largest": max(tested)}
            rows.append({"task": selection.name, **values, **answer, **sizes, "margin": margin})
    columns = ["task", "family", "exponent_bits", *keys, "bits", "confidence", "by_means", "runs", "paired", "reason"]
    columns += ["smallest", "largest", "margin"]
    table = pd.DataFrame(rows, columns=columns).astype(dict.fromkeys(("exponent_bits", "bits", "by_means"), "Int64"))
    ascending = [*[True] * (1 + len(keys)), False]
    return table.sort_values(["task", *keys, "exponent_bits"], ascending=ascending, ignore_index=True)


def _family(name: str) -> tuple[int | str, int]:
    """Returns the family of a format, by exponent bits or by name, and its width."""
    text = str(parsed(name) or "")
    # A float with other rules (e4m3fn) is in a family of its own, like a format that is named by its width (posit8).
    numbered = re.fullmatch(r"(e[0-9]+m|[a-z]+)([0-9]{1,4})([a-z_]*)", text)
    if not np.isnan(significand_bits(name)) and not (numbered and numbered[3]):
        return int(exponent_bits(name)), int(significand_bits(name))
    return (f"{numbered[1]}X{numbered[3]}", int(numbered[2])) if numbered else (name, 0)


class NeededBits(NamedTuple):
    """The needed bits, and the confidence.

    Attributes:
        bits: the smallest width m that is shown, like all larger tested widths, not to be worse than fp32 by the
            margin or more; None if no width is.
        confidence: 1 - the largest p of these widths; if ``bits`` is None, of the largest width. NaN if not known.
        by_means: the smallest such width by comparing means only, without regard to chance; None if no width is.
        confidences: for every width tested, from wide to narrow, 1 - the largest p of it and all larger ones; NaN from
            the first width on that has a single run on some task.
        runs: the fewest runs on a task, of fp32 and the widths with a confidence.
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
    """Finds the smallest width that is shown, like all wider ones, not to be worse than fp32 by a margin.

    Width m is good (non-inferior) if mean(m) > mean(fp32) - margin |mean(fp32)|, with means over tasks of means over
    runs: the lower one of the two tests of :func:`~.equivalence.equivalence`. The widths are tested from wide to
    narrow, each at 5 %, up to the first that is not shown to be good: a fixed sequence, with a chance of any false step
    of 5 % at most, whatever the number of widths. A narrow width that is good by luck below a bad one does not count.

    Args:
        reference: the scores of fp32 by seed, for each task; more is better. The score of a crash may be
            -infinity: a width with such a run is not good.
        widths: the same for each number of significand bits, tasks in the same order.
        margin: as a fraction of the mean return of fp32, >= 0.

    Returns:
        The width. A width with one run on a task has no confidence (NaN), nor have narrower ones; nor has any if fp32
        has one run, or scores 0, which leaves no margin.

    Source:
        Non-inferiority with a margin: Piaggio et al., "Reporting of noninferiority and equivalence randomized
        trials", JAMA 2012. Fixed sequences: Maurer, Hothorn and Lehmacher, "Multiple comparisons in drug clinical
        trials and preclinical assays: a-priori ordered hypotheses", 1995.
    """
    order = sorted(widths, reverse=True)
    all_scores = [reference, *(widths[m] for m in order)]
    fewest = [min((len(scores) for scores in tasks), default=0) for tasks in all_scores]
    comparable = list(takewhile(lambda i: fewest[i] > 1, range(len(all_scores))))  # fp32, and widths without a gap
    runs = min((fewest[i] for i in comparable), default=min(fewest))
    unknown = NeededBits(None, float("nan"), None, dict.fromkeys(order, float("nan")), runs, paired=False, reason="")
    if not order or min(fewest) == 0:
        return unknown._replace(reason="nothing to compare")
    unknown = unknown._replace(paired=all(match_runs(all_scores[i], reference).paired for i in comparable))
    means = [float(np.mean([np.mean(list(scores.values())) for scores in tasks])) for tasks in all_scores]
    if not math.isfinite(means[0]):
        return unknown._replace(reason="fp32 itself crashed")
    if means[0] == 0:
        return unknown._replace(reason="fp32 itself scores 0")
    # A tie stays a tie although the means were summed in floating point.
    least = means[0] - (margin + 1e-9) * abs(means[0])
    known = unknown._replace(by_means=_last(order, (mean >= least for mean in means[1:])))
    if len(comparable) < 2:
        return known._replace(runs=1, reason="one seed says nothing about chance")
    tested = (equivalence(all_scores[i], reference, margin).p_worse for i in comparable[1:])
    confidences = unknown.confidences | dict(zip(order, (1 - p for p in accumulate(tested, max)), strict=False))
    bits = _last(order, (confidence > 1 - ALPHA for confidence in confidences.values()))
    confidence = confidences[order[0] if bits is None else bits]
    return known._replace(bits=bits, confidence=confidence, confidences=confidences)


def _last(order: list[int], are_good: Iterable[bool]) -> int | None:
    """Returns the narrowest of consecutive good widths, from the widest on; None if the widest is not good."""
    row = list(takewhile(lambda pair: pair[1], zip(order, are_good, strict=True)))
    return row[-1][0] if row else None
