"""Compares every format with fp32 in a table: differences, equivalence, learning, and the power of the tests."""

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
from ..runs.conditions import value_text
from ..runs.experiment import Experiment
from ..runs.records import areas
from ..statistics import power
from ..statistics.comparisons import Difference, Estimate, difference, holm, probability_of_improvement
from ..statistics.equivalence import MARGIN, EquivalenceTest, equivalence, in_words
from ..statistics.intervals import NO_INTERVAL, Interval, generator_for
from .sides import Selection, Side, comparison_obstacle, interquartile_mean_of, scales, selections, sides
from .summary import ALL_TASKS, ended, failed, have_one_unit, records, sort_rows

Scores = Mapping[Any, float]

_Result = TypeVar("_Result", Difference, EquivalenceTest)

_TESTS = ("p", "p_equivalent", "area_p")  # p-values that are adjusted for the number of rows


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
    """Replaces names of cases in a reference by their values; raises AnalysisError if no run has a value."""
    varying = ("format", *experiment.conditions.keys)
    values = {}
    for key, value in reference.items():
        if key not in varying:
            raise AnalysisError(f"{path}: {key} does not vary; a reference is of {', '.join(varying)}")
        unique = experiment.runs[key].unique()
        case_names = {value_text(setting): experiment.conditions.name_of(key, setting) for setting in unique}
        texts = {name: text for text, name in case_names.items() if name} | {text: text for text in case_names}
        if value not in texts:
            known = ", ".join(sorted(name or text for text, name in case_names.items()))
            raise AnalysisError(f"{path}: no run has {key} {value}; there are {known}")
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
      ``ceiling`` (:func:`ceiling`); ``answer``, in words;
    - of single tasks of agents :func:`learning`: ``learnable`` (runs with a seed that learned in fp32),
      ``unlearned`` (how many ended below half way; 90 % of the share), ``learned_difference`` (of the scores of the
      runs that learned, 95 %) and ``learned_pairs``;
    - of agents ``area_difference``, of :func:`~..runs.records.area` (95 %; of runs that did not crash), ``area_p`` and
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
        _row(side, reference_side, selection, margin, experiment)
        for side, reference_side in sides(runs, keys, experiment.metric, experiment.runs, reference, left_out)
        for selection in selections(reference_side, set(runs["task"]), experiment.metric)
        if set(selection.tasks) <= side.scores.keys()
    ]
    rows += _all_failed(experiment, margin)
    if not rows:
        return pd.DataFrame(columns=columns)
    table = pd.DataFrame(rows).reindex(columns=columns)
    # Single tasks and their mean are two families of tests, each corrected for its own rows.
    for family in (table["task"] == ALL_TASKS, table["task"] != ALL_TASKS):
        for name in _TESTS:
            table.loc[family, f"{name}_holm"] = holm(table.loc[family, name])
    table["answer"] = [
        row["answer"] or in_words(row["p_holm"], row["p_equivalent"], margin, at_ceiling=bool(row["ceiling"]))
        for row in records(table)
    ]
    return sort_rows(table, keys, experiment.formats)


def _row(side: Side, reference: Side, selection: Selection, margin: float, experiment: Experiment) -> dict[str, Any]:
    """Makes the row of a format on some tasks; ``answer`` stays empty if it follows from the tests."""
    metric, tasks = experiment.metric, selection.tasks
    x, y = selection.of(side.scores), selection.of(reference.scores)
    scores = [[list(by_seed.values()) for by_seed in tasks] for tasks in (x, y)]
    generator = generator_for("against", selection.name, *map(str, side.settings.values()))
    better = probability_of_improvement(scores[0], scores[1], generator)
    gap = _difference(x, y, metric)
    equivalent = _as_metric(equivalence(x, y, margin), metric, "share")
    area_gap = _difference(selection.of(side.areas), selection.of(reference.areas), metric)
    crashed, ended_runs = side.crashed(tasks)
    obstacle = comparison_obstacle(side, reference, tasks, margin)
    single = len(tasks) == 1
    return {
        "task": selection.name,
        **side.settings,
        "reference": experiment.conditions.label(reference.settings) if experiment.conditions.keys else "",
        "runs": ended_runs,
        "crashed": crashed,
        "failed": len(_failed(experiment, side.settings, tasks)),
        **_estimate_columns("improvement", better),
        **_estimate_columns("difference", Estimate(gap.value, gap.interval)),
        "pairs": gap.pairs,
        "p": gap.p,
        **_estimate_columns("share", Estimate(equivalent.share, equivalent.interval)),
        "p_equivalent": equivalent.p,
        "margin": margin,
        "ceiling": ceiling(reference, tasks, metric),
        "answer": side.crashed_in_words(tasks) or (f"cannot be said: {obstacle}" if obstacle else ""),
        **_learning_columns(learning(side, reference, selection.name) if single and not obstacle else UNKNOWN, metric),
        **_estimate_columns("area_difference", Estimate(area_gap.value, area_gap.interval)),
        "area_p": area_gap.p,
        "normalized": bool(selection.scales),
        **_estimate_columns("normalized_iqm", _normalized(side, reference, tasks)),
        **dict(
            zip(_POWER, power.UNKNOWN if obstacle else _test_power(x, y, reference, selection, margin), strict=True)
        ),
    }


def _failed(experiment: Experiment, settings: Mapping[str, Any], tasks: Sequence[str]) -> pd.DataFrame:
    """Selects the failed runs of a format and condition on some tasks."""
    runs = failed(experiment.runs)
    runs = runs[runs["task"].isin(tasks)]
    for key, value in settings.items():
        runs = runs[runs[key].map(value_text) == value_text(value)]
    return runs


def _all_failed(experiment: Experiment, margin: float) -> Iterator[dict[str, Any]]:
    """Yields rows of formats, conditions and tasks if all of their runs have failed."""
    keys = ["task", "format", *experiment.conditions.keys]
    for values, runs in experiment.runs.groupby(keys, dropna=False):
        if (runs["status"] == "failed").all():
            count = len(runs)
            yield {
                **dict(zip(keys, values, strict=True)),
                "reference": "",
                "runs": 0,
                "crashed": 0,
                "failed": count,
                "pairs": 0,
                "margin": margin,
                "ceiling": "",
                "normalized": False,
                "answer": f"failed ({count} of {count})",
                **_learning_columns(UNKNOWN, experiment.metric),
            }


def _learning_columns(learned: Learning, metric: Metric) -> dict[str, float]:
    gap = _as_metric(learned.gap, metric)
    values = [learned.learnable, learned.unlearned, *learned.interval, gap.value, *gap.interval, gap.pairs]
    return dict(zip(_LEARNING, values, strict=True))


def _normalized(side: Side, reference: Side, tasks: Sequence[str]) -> Estimate:
    """Computes the interquartile mean of scores normalized to a mean of 1 in fp32; NaN if fp32 may not learn."""
    known = scales(reference, tasks)
    if not known:
        return Estimate(np.nan, NO_INTERVAL)
    scores = [list(known[task].of(side.scores[task]).values()) for task in tasks]
    return interquartile_mean_of(scores, generator_for("normalized", *tasks, *map(str, side.settings.values())))


def _test_power(
    x: Sequence[Scores], y: Sequence[Scores], plain: Side, selection: Selection, margin: float
) -> power.Power:
    known = scales(plain, selection.tasks)
    untrained = [0.0 if selection.scales else known[task].untrained for task in selection.tasks] if known else []
    return power.power_of(x, y, generator_for("power", selection.name, margin), margin=margin, untrained=untrained)


def _estimate_columns(name: str, estimate: Estimate) -> dict[str, float]:
    return {name: estimate.value, f"{name}_low": estimate.interval.low, f"{name}_high": estimate.interval.high}


def _difference(x: Sequence[Scores], y: Sequence[Scores], metric: Metric) -> Difference:
    """Returns the difference of the scores of runs with a score; NaN if a task is without scores."""
    x, y = ([{seed: score for seed, score in task.items() if np.isfinite(score)} for task in side] for side in (x, y))
    if not all((*x, *y)):
        return Difference(float("nan"), NO_INTERVAL, float("nan"), 0)
    return _as_metric(difference(x, y), metric)


def _as_metric(result: _Result, metric: Metric, name: str = "value") -> _Result:
    """Turns a difference or share of scores (more is better) into one of the metric (less can be better)."""
    if metric.sign > 0:
        return result
    interval = Interval(0.0 - result.interval.high, 0.0 - result.interval.low)  # avoids -0
    return result._replace(interval=interval, **{name: 0.0 - getattr(result, name)})


_SUITE = 1000.0  # the highest return of an episode of the suite: 1000 steps, of at most 1 each
_NEAR = 0.98


def ceiling(reference: Side, tasks: Sequence[str], metric: Metric) -> str:
    """Names the tasks where at least half of the reference's runs reach the highest possible return; empty if none.

    That is 98 % of 1000 on the suite's tasks. On others it is the highest return of all, if half of the runs have
    exactly that, such as 500 on CartPole, and if untrained policies return less. Equivalence at the ceiling means that
    both reach it, not that both learn equally fast.
    """
    return ", ".join(task for task in tasks if metric.of_agents and _reaches_ceiling(reference, task))


def _reaches_ceiling(reference: Side, task: str) -> bool:
    scores = list(reference.scores[task].values())
    if have_one_unit([task], of_agents=True):
        highest = _NEAR * _SUITE
    else:
        highest, untrained = max(scores), list(reference.untrained.get(task, {}).values())
        if not untrained or highest <= max(untrained):
            return False
    return sum(score >= highest for score in scores) >= max(2, len(scores) / 2)


_LEVEL = 0.9  # of intervals: each end is a one-sided bound of 95 %


class Learning(NamedTuple):
    """The number of runs of a format that learn a task as the reference does, and the returns of these runs.

    Attributes:
        threshold: the score that a run needs to have learned: half of the way from the reference's mean before
            learning to its median after it.
        learnable: the number of runs with a seed that has learned in the reference; or all, if no seed is shared.
        unlearned: the number of these that have not learned, including crashes.
        interval: Clopper and Pearson's interval of the share that does not learn, 90 %; 16 of 16 leave up to 17 %.
        gap: the difference of scores among runs that have learned, in pairs if both runs of a seed have; 95 %.
    """

    threshold: float
    learnable: int
    unlearned: int
    interval: Interval
    gap: Difference


UNKNOWN = Learning(math.nan, 0, 0, NO_INTERVAL, Difference(math.nan, NO_INTERVAL, math.nan, 0))
"""The result if the reference's scores before learning are unknown, or if it has learned nothing."""


def learning(side: Side, reference: Side, task: str) -> Learning:
    """Counts the runs that learn, and compares their scores separately.

    A mean mixes both: a format that fails in one run of ten and is as good in the others has a mean that is a
    tenth lower, which seeds with such a spread do not show.

    Args:
        side: the format.
        reference: The reference of the comparison.
        task: A task with runs of both.

    Source:
        Clopper and Pearson, "The use of confidence or fiducial limits illustrated in the case of the binomial", 1934.
    """
    # The threshold: half of the way that the reference's median run has come.
    untrained = list(reference.untrained.get(task, {}).values())
    references, scores = reference.judged[task], side.judged[task]
    best = float(np.median(list(references.values())))
    start = float(np.mean(untrained)) if untrained else math.nan
    if not (math.isfinite(best) and best > start):
        return UNKNOWN
    threshold = (start + best) / 2
    # A run counts if its seed learned in the reference: a task may be too hard for some seeds in any format.
    expected = {seed: score for seed, score in references.items() if score >= threshold}
    learned = {seed: score for seed, score in scores.items() if score >= threshold}
    shared = references.keys() & scores.keys()
    learnable = shared & expected.keys() if shared else scores.keys()
    missed = len(learnable - learned.keys())
    gap = difference([learned], [expected]) if learned and expected else UNKNOWN.gap
    return Learning(threshold, len(learnable), missed, share_interval(missed, len(learnable)), gap)


def share_interval(count: int, total: int) -> Interval:
    """Computes Clopper and Pearson's interval of a share, exact for any number: it covers the true share in >= 90 %.

    Args:
        count: the number of successes, from 0 to ``total``.
        total: the number of trials; if 0, the ends are NaN.
    """
    if not total:
        return NO_INTERVAL
    tail = (1 - _LEVEL) / 2
    # The ends are quantiles of beta distributions; without successes, or failures, one end is that of [0, 1].
    low = stats.beta.ppf(tail, count, total - count + 1) if count else 0.0
    high = stats.beta.ppf(1 - tail, count + 1, total - count) if count < total else 1.0
    return Interval(float(low), float(high))
