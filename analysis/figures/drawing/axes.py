"""Shared axes of panels: limits, scales, titles, and the order of formats."""

from __future__ import annotations

import math
from collections.abc import Iterable

import pandas as pd

from roundoff.runs.metric import Metric

from ...tables.summary import ALL_TASKS, REFERENCE, exponent_bits, significand_bits

_DECADES = 2  # positive numbers that span more decades get a logarithmic axis


def score_limits(
    metric: Metric, tasks: Iterable[str], scores: Iterable[float], margin: float = 0.04
) -> tuple[float, float]:
    """Returns the ends of an axis of scores, with a margin: the metric's range if it is known, and all scores.

    Args:
        metric: the metric of the scores.
        tasks: the tasks of the scores. Those of the control suite return 0 to 1000, others (``gym:...``) anything.
        scores: all that are shown; NaN and infinities are skipped.
        margin: on either side, as a fraction of the range.
    """
    finite = [float(score) for score in scores if math.isfinite(score)]
    if metric.of_agents:
        low, high = 0.0, 1000.0
        if any(":" in task for task in tasks):
            low, high = min([0.0, *finite]), max([0.0, *finite])
    else:
        finite += metric.range or ()
        low, high = (min(finite), max(finite)) if finite else (0.0, 1.0)
        if is_logarithmic(metric, finite):
            space = (high / low) ** margin
            return low / space, high * space
    space = margin * ((high - low) or 1.0)
    return low - space, high + space


def limits_by_task(metric: Metric, table: pd.DataFrame) -> dict[str, tuple[float, float]]:
    """Returns the ends of an axis of scores by task: equal for all tasks, unless only some are of the control suite.

    Args:
        metric: the metric of the scores.
        table: all scores that are shown: ``task``, which may be the mean over all, and ``return``.
    """
    tasks = list(dict.fromkeys(table["task"]))
    single = [task for task in tasks if task != ALL_TASKS]
    if not metric.of_agents or len({":" in task for task in single}) < 2:
        return dict.fromkeys(tasks, score_limits(metric, tasks, table["return"]))
    scores = dict(list(table.groupby("task")["return"]))
    return {task: score_limits(metric, single if task == ALL_TASKS else [task], scores[task]) for task in tasks}


def is_logarithmic(metric: Metric, scores: Iterable[float]) -> bool:
    """Whether an axis of scores is logarithmic: for a program's scores, of unknown range, over several decades."""
    return not metric.of_agents and metric.range is None and spans_decades(scores)


def spans_decades(values: Iterable[float]) -> bool:
    """Whether all values are positive and differ by more than two decades; values that are not finite are skipped."""
    finite = [float(value) for value in values if math.isfinite(value)]
    return bool(finite) and min(finite) > 0 and math.log10(max(finite)) - math.log10(min(finite)) > _DECADES


def titles(tasks: list[str], metric: Metric | None = None) -> list[str]:
    """Returns the titles of panels, one for each task; with a metric in words, and empty for the only program."""
    if metric and not metric.of_agents and len(tasks) == 1:
        return [""]
    words = [task.replace("_", " ") if metric and metric.of_agents else task for task in tasks]
    return ["mean over tasks" if task == ALL_TASKS else word for task, word in zip(tasks, words, strict=True)]


def width_sort_key(name: str) -> tuple[bool, bool, float, float]:
    """Sort key of formats: fp32, then floats by exponent bits, then by significand bits; all others have equal keys."""
    e, m = exponent_bits(name), significand_bits(name)
    other = math.isnan(e)
    return name != REFERENCE, other, 0.0 if other else -e, 0.0 if other else -m


def sort_formats(formats: Iterable[str]) -> list[str]:
    """Sorts formats from wide to narrow, each once; formats other than floats come last, in the given order."""
    return sorted(dict.fromkeys(formats), key=width_sort_key)
