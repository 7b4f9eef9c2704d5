"""Every format against fp32, as a table: differences, equivalence, learning, and the power of the tests."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import pandas as pd
from scipy import stats

from roundoff.runs.metric import Metric

from ..errors import AnalysisError
from ..runs.conditions import as_text
from ..runs.experiment import Experiment
from ..runs.records import areas
from ..statistics import power
from ..statistics.comparisons import Difference, Estimate, difference, holm, probability_of_improvement
from ..statistics.equivalence import MARGIN, EquivalenceTest, equivalence, in_words
from ..statistics.intervals import NO_INTERVAL, Interval, generator_for
from .sides import Selection, Side, interquartile_mean_of, scales, selections, sides, why_unsaid
from .summary import ALL_TASKS, ended, failed, have_one_unit, in_order, records

Scores = Mapping[Any, float]

_Found = TypeVar("_Found", Difference, EquivalenceTest)

_TESTS = ("p", "p_equivalent", "area_p")  # which are adjusted for the number of rows


def _with_ends(name: str) -> list[str]:
    return [name, f"{name}_low", f"{name}_high"]


_COMPARED = ["runs", "crashed", "failed", *_with_ends("improvement"), *_with_ends("difference"), "pairs", "p", "p_holm"]
_EQUIVALENT = [*_with_ends("share"), "p_equivalent", "p_equivalent_holm", "margin", "ceiling", "answer"]
_LEARNING = ["learnable", "unlearned", "unlearned_low", "unlearned_high", *_with_ends("learned_difference")]
_LEARNING += ["learned_pairs"]
_AREA = [*_with_ends("area_difference"), "area_p", "area_p_holm"]
_NORMALIZED = ["normalized", *_with_ends("normalized_iqm")]
_POWER = ["equivalent_if_lower", "equivalent_if_failing", "equivalent_if_equal", "seeds_needed"]
_POWER += ["correlation", "correlation_p"]


def reference_values(path: Path, experiment: Experiment, reference: Mapping[str, str]) -> dict[str, str]:
    """The reference with values in full, where a case gives them a name; raises AnalysisError where no run has them."""
    varying = ("format", *experiment.conditions.keys)
    values = {}
    for key, value in reference.items():
        if key not in varying:
            raise AnalysisError(f"{path}: {key} does not vary; a reference is of {', '.join(varying)}")
        found = {as_text(one): experiment.conditions.name_of(key, one) for one in experiment.runs[key].unique()}
        texts = {name: text for text, name in found.items() if name} | {text: text for text in found}
        if value not in texts:
            there = ", ".join(sorted(name or text for text, name in found.items()))
            raise AnalysisError(f"{path}: no run has {key} {value}; there are {there}")
        values[key] = texts[value]
    return values


def against_reference(
    experiment: Experiment,
    margin: float = MARGIN,
    reference: Mapping[str, str] | None = None,
    left_out: list[dict[str, Any]] | None = None,
) -> pd.DataFrame:
    """Compares each format and condition with fp32 under the same condition, or under fp32's only condition.

    A ``reference`` selects other runs in place of fp32: settings with their values, as text. Other runs are compared
    with the reference runs that are alike in all other settings, or with the only ones. The list
    ``left_out`` receives the formats and conditions without reference runs.

    Columns, those with an interval followed by its ends ``_low`` and ``_high``:

    - ``task`` (``all``: the mean over tasks), ``format``, the conditions, ``reference`` (the condition of fp32, in
      words), ``runs`` that have ended and how many of them ``crashed``, how many more ``failed``;
    - ``improvement``, the probability that a run is better than one of fp32 (95 %); ``difference``, mean score minus
      fp32's (95 %; of runs that have a score), ``pairs`` (runs that share a seed; 0: compared unpaired), ``p``
      (of no difference) and ``p_holm``;
    - ``share``, the difference as a share of the fp32 mean (90 %), ``p_equivalent`` (of
      :func:`~..statistics.equivalence.equivalence` within ``margin``) and ``p_equivalent_holm``; ``margin``;
      ``ceiling`` (:func:`~.ceiling.ceiling`); ``answer``, in words;
    - of single tasks of agents :func:`learning`: ``learnable`` (runs with a seed that learned in fp32),
      ``unlearned`` (how many ended below half way; 90 % of the share), ``learned_difference`` (of the scores of the
      runs that learned, 95 %) and ``learned_pairs``;
    - of agents ``area_difference``, of :func:`~..runs.areas.area` (95 %; of runs that did not crash), ``area_p`` and
      ``area_p_holm``;
    - ``normalized``, whether this row's scores were normalized (:func:`~.sides.selections`), as for ``all`` if the
      untrained scores are known; ``normalized_iqm`` (:func:`~.sides.interquartile_mean_of`, 95 %);
    - of :func:`~..statistics.power.power_of`: how often the test would call formats equivalent,
      ``equivalent_if_lower``, ``equivalent_if_failing`` and ``equivalent_if_equal``; ``seeds_needed``; ``correlation``
      and ``correlation_p``.

    For a format with crashes, the answer states them; for a format without numbers, as all its runs failed, it states
    that. If the reference crashed, made no update, or is not shown to have learned, other formats get no answer. The
    return of an agent's crash does not count as a score here.

    Each p is adjusted for all rows of single tasks, or all rows of ``all``. The answer goes by ``p_holm``, since
    differences are looked for in all rows, and by ``p_equivalent``, since equivalence is claimed of a row: where its
    interval is within the margin.
    """
    runs = ended(experiment.runs)
    if experiment.metric.of_agents:
        runs = runs.assign(area=runs["id"].map(areas({name: experiment.folders[name] for name in runs["id"]})))
    keys = experiment.conditions.keys
    columns = ["task", "format", *keys, "reference", *_COMPARED, *_EQUIVALENT]
    columns += [*_LEARNING, *_AREA, *_NORMALIZED, *_POWER]
    rows = [
        _row(side, plain, selection, margin, experiment)
        for side, plain in sides(runs, keys, experiment.metric, experiment.runs, reference, left_out)
        for selection in selections(plain, set(runs["task"]), experiment.metric)
        if set(selection.tasks) <= side.scores.keys()
    ]
    rows += _all_failed(experiment, margin)
    if not rows:
        return pd.DataFrame(columns=columns)
    table = pd.DataFrame(rows).reindex(columns=columns)
    for family in (table["task"] == ALL_TASKS, table["task"] != ALL_TASKS):
        for name in _TESTS:
            table.loc[family, f"{name}_holm"] = holm(table.loc[family, name])
    table["answer"] = [
        row["answer"] or in_words(row["p_holm"], row["p_equivalent"], margin, at_ceiling=bool(row["ceiling"]))
        for row in records(table)
    ]
    return in_order(table, keys, experiment.formats)


def _row(side: Side, plain: Side, selection: Selection, margin: float, experiment: Experiment) -> dict[str, Any]:
    """Returns the row of a format on some tasks; with an ``answer`` only where it follows from no test."""
    metric, tasks = experiment.metric, selection.tasks
    x, y = selection.of(side.scores), selection.of(plain.scores)
    scores = [[list(of.values()) for of in tasks] for tasks in (x, y)]
    generator = generator_for("against", selection.name, *map(str, side.where.values()))
    better = probability_of_improvement(scores[0], scores[1], generator)
    gap = _difference(x, y, metric)
    same = _turned_for(equivalence(x, y, margin), metric, "share")
    of_areas = _difference(selection.of(side.areas), selection.of(plain.areas), metric)
    crashed, ended_runs = side.crashed(tasks)
    unsaid = why_unsaid(side, plain, tasks, margin)
    single = len(tasks) == 1
    return {
        "task": selection.name,
        **side.where,
        "reference": experiment.conditions.label(plain.where) if experiment.conditions.keys else "",
        "runs": ended_runs,
        "crashed": crashed,
        "failed": len(_failed(experiment, side.where, tasks)),
        **_named("improvement", better),
        **_named("difference", Estimate(gap.value, gap.interval)),
        "pairs": gap.pairs,
        "p": gap.p,
        **_named("share", Estimate(same.share, same.interval)),
        "p_equivalent": same.p,
        "margin": margin,
        "ceiling": ceiling(plain, tasks, metric),
        "answer": side.crashed_in_words(tasks) or (f"cannot be said: {unsaid}" if unsaid else ""),
        **_of_learning(learning(side, plain, selection.name) if single and not unsaid else UNKNOWN, metric),
        **_named("area_difference", Estimate(of_areas.value, of_areas.interval)),
        "area_p": of_areas.p,
        "normalized": bool(selection.scales),
        **_named("normalized_iqm", _normalized(side, plain, tasks)),
        **dict(zip(_POWER, power.UNKNOWN if unsaid else _power(x, y, plain, selection, margin), strict=True)),
    }


def _failed(experiment: Experiment, where: Mapping[str, Any], tasks: Sequence[str]) -> pd.DataFrame:
    """The runs of a format and condition on these tasks that have failed."""
    found = failed(experiment.runs)
    found = found[found["task"].isin(tasks)]
    for key, value in where.items():
        found = found[found[key].map(as_text) == as_text(value)]
    return found


def _all_failed(experiment: Experiment, margin: float) -> Iterator[dict[str, Any]]:
    """Rows of formats and conditions with a task where all runs have failed."""
    keys = ["task", "format", *experiment.conditions.keys]
    for where, runs in experiment.runs.groupby(keys, dropna=False):
        if (runs["status"] == "failed").all():
            count = len(runs)
            yield {
                **dict(zip(keys, where, strict=True)),
                "reference": "",
                "runs": 0,
                "crashed": 0,
                "failed": count,
                "pairs": 0,
                "margin": margin,
                "ceiling": "",
                "normalized": False,
                "answer": f"failed ({count} of {count})",
                **_of_learning(UNKNOWN, experiment.metric),
            }


def _of_learning(found: Learning, metric: Metric) -> dict[str, float]:
    gap = _turned_for(found.gap, metric)
    values = [found.learnable, found.unlearned, *found.interval, gap.value, *gap.interval, gap.pairs]
    return dict(zip(_LEARNING, values, strict=True))


def _normalized(side: Side, plain: Side, tasks: Sequence[str]) -> Estimate:
    """The interquartile mean of scores normalized to a mean of 1 in fp32; NaN if fp32 is not known to learn."""
    known = scales(plain, tasks)
    if not known:
        return Estimate(np.nan, NO_INTERVAL)
    scores = [list(known[task].of(side.scores[task]).values()) for task in tasks]
    return interquartile_mean_of(scores, generator_for("normalized", *tasks, *map(str, side.where.values())))


def _power(x: Sequence[Scores], y: Sequence[Scores], plain: Side, selection: Selection, margin: float) -> power.Power:
    known = scales(plain, selection.tasks)
    untrained = [0.0 if selection.scales else known[task].untrained for task in selection.tasks] if known else []
    return power.power_of(x, y, generator_for("power", selection.name, margin), margin=margin, untrained=untrained)


def _named(name: str, found: Estimate) -> dict[str, float]:
    return {name: found.value, f"{name}_low": found.interval.low, f"{name}_high": found.interval.high}


def _difference(x: Sequence[Scores], y: Sequence[Scores], metric: Metric) -> Difference:
    """Returns the difference of the scores of runs with a score; NaN if a task is without scores."""
    x, y = ([{seed: score for seed, score in task.items() if np.isfinite(score)} for task in side] for side in (x, y))
    if not all((*x, *y)):
        return Difference(float("nan"), NO_INTERVAL, float("nan"), 0)
    return _turned_for(difference(x, y), metric)


def _turned_for(found: _Found, metric: Metric, name: str = "value") -> _Found:
    """Turns a difference or share of scores (more is better) into one of the metric (less can be better)."""
    if metric.sign > 0:
        return found
    interval = Interval(0.0 - found.interval.high, 0.0 - found.interval.low)  # of 0 no -0
    return found._replace(interval=interval, **{name: 0.0 - getattr(found, name)})


_SUITE = 1000.0  # the highest return of an episode of the suite: 1000 steps, of at most 1 each
_NEAR = 0.98


def ceiling(reference: Side, tasks: Sequence[str], metric: Metric) -> str:
    """Names the tasks where at least half of the reference's runs reach the highest possible return; empty if none.

    That is 98 % of 1000 on the suite's tasks. On others it is the highest return of all, if half of the runs have
    exactly that, as 500 on CartPole, and it is more than a policy returns that has not learned. Equivalence there says
    that both reach it, not which of them learned faster.
    """
    return ", ".join(task for task in tasks if metric.of_agents and _is_at_it(reference, task))


def _is_at_it(reference: Side, task: str) -> bool:
    scores = list(reference.scores[task].values())
    if have_one_unit([task], of_agents=True):
        highest = _NEAR * _SUITE
    else:
        highest, before = max(scores), list(reference.untrained.get(task, {}).values())
        if not before or highest <= max(before):
            return False
    return sum(score >= highest for score in scores) >= max(2, len(scores) / 2)


_LEVEL = 0.9  # of intervals: each end is a one-sided bound of 95 %


class Learning(NamedTuple):
    """Whether runs of a format learn a task that the reference learns, and the returns of the runs that do.

    Attributes:
        threshold: the score that a run needs to have learned: half of the way from the reference's mean before
            learning to its median after it.
        learnable: how many runs have a seed that has learned in the reference; or all, if no seed is shared.
        unlearned: how many of them have not learned, crashes among them.
        interval: Clopper and Pearson's interval of the share that does not learn, 90 %; 16 of 16 leave up to 17 %.
        gap: the difference of scores among runs that have learned, in pairs if both runs of a seed have; 95 %.
    """

    threshold: float
    learnable: int
    unlearned: int
    interval: Interval
    gap: Difference


UNKNOWN = Learning(math.nan, 0, 0, NO_INTERVAL, Difference(math.nan, NO_INTERVAL, math.nan, 0))
"""The statement where the reference's scores before learning are unknown, or where it has learned nothing."""


def learning(side: Side, reference: Side, task: str) -> Learning:
    """Counts the runs that learn, and compares their scores, apart from each other.

    A mean takes both for one: a format that fails in one run of ten and is as good in the others has a mean that is a
    tenth lower, and seeds that differ by as much cannot tell.

    Args:
        side: the format.
        reference: The reference of the comparison.
        task: A task with runs of both.

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
    there, here = (({seed: score for seed, score in of.items() if score >= threshold}) for of in (after, scores))
    shared = after.keys() & scores.keys()
    learnable = shared & there.keys() if shared else scores.keys()
    missed = len(learnable - here.keys())
    gap = difference([here], [there]) if here and there else UNKNOWN.gap
    return Learning(threshold, len(learnable), missed, share_interval(missed, len(learnable)), gap)


def share_interval(count: int, of: int) -> Interval:
    """Clopper and Pearson's interval of a share, exact for any number: it covers the true one with 90 % at least.

    Args:
        count: how often it was seen, from 0 to ``of``.
        of: how often it could have been; NaN ends if 0.
    """
    if not of:
        return NO_INTERVAL
    tail = (1 - _LEVEL) / 2
    low = stats.beta.ppf(tail, count, of - count + 1) if count else 0.0
    high = stats.beta.ppf(1 - tail, count + 1, of - count) if count < of else 1.0
    return Interval(float(low), float(high))
