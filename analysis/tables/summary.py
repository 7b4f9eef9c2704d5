"""Summarizes runs: a row per task, format and other varying settings."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

import numpy as np
import pandas as pd

from ...formats import FloatFormat, Format, FormatError
from ..runs.conditions import References
from ..runs.experiment import Experiment
from ..statistics.intervals import bootstrap_interval, generator_for, interquartile_mean, mean_and_std

ALL_TASKS = "all"
REFERENCE = "fp32"


def significand_bits(name: str) -> float:
    """Returns the stored significand bits m of a format; NaN if it is not a float."""
    fmt = parsed(name)
    return fmt.significand_bits if isinstance(fmt, FloatFormat) else float("nan")


def exponent_bits(name: str) -> float:
    """Returns the exponent bits of a format; NaN if it is not a float."""
    fmt = parsed(name)
    return fmt.exponent_bits if isinstance(fmt, FloatFormat) else float("nan")


@cache
def parsed(name: str) -> Format | None:
    """Parses the name of a format; None if only a later version, or a user's module (not imported), knows it."""
    try:
        return None if ":" in name else Format.parse(name)
    except FormatError:
        return None


def bits_per_number(name: str, unknown: float = float("nan")) -> float:
    """Returns the bits of a number in a format, with its share of a block's scale."""
    fmt = parsed(name)
    return unknown if fmt is None else fmt.bits_per_number


def have_one_unit(tasks: Iterable[str], *, of_agents: bool) -> bool:
    """Whether scores of these tasks can be added: the suite's returns are 0 to 1000, others can be anything."""
    return not of_agents or not any(":" in task for task in tasks)


def records(table: pd.DataFrame) -> list[dict[str, Any]]:
    """Returns rows as dictionaries by the names of columns."""
    return table.rename(columns=str).to_dict("records")  # type: ignore[return-value]


def ended(runs: pd.DataFrame) -> pd.DataFrame:
    """Selects runs with results: done, or crashed. A crashed run's ``return`` is NaN if crashes lack a score."""
    return runs[runs["status"].isin(["done", "crashed"])]


def failed(runs: pd.DataFrame) -> pd.DataFrame:
    """Selects runs that failed; they lack a score."""
    return runs[runs["status"] == "failed"]


def sort_rows(table: pd.DataFrame, keys: list[str], formats: Sequence[str]) -> pd.DataFrame:
    """Sorts rows by task and condition, then floats from wide to narrow, then other formats as in the sweep's file.

    Args:
        table: a table with the columns ``task``, ``format`` and ``keys``.
        keys: the keys of the conditions.
        formats: the formats in the order of the file.
    """
    names = table["format"].astype(str)
    width = {"exponent": names.map(exponent_bits), "significand": names.map(significand_bits)}
    # Of floats the exponent decides before the significand; other formats have NaN there, which is sorted last.
    keyed = table.assign(**width, place=names.map({name: i for i, name in enumerate(formats)}))
    ascending = [*[True] * (1 + len(keys)), False, False, True]
    ordered = keyed.sort_values(["task", *keys, *width, "place"], ascending=ascending, ignore_index=True)
    return ordered[list(table.columns)]


def summarize(experiment: Experiment) -> pd.DataFrame:
    """Summarizes scores by task, format and condition, and for ``all``, the mean over tasks with scores of one unit.

    Columns: ``task``, ``format``, the conditions, ``significand_bits``, ``exponent_bits``, ``n`` (ended runs),
    ``crashed``, ``failed`` (runs that failed, and have no score), ``mean``, ``std`` (over runs, n - 1; for task ``all``
    the mean of the tasks', as the paper aggregates), ``iqm``, ``ci_low`` and ``ci_high`` (95 %, stratified bootstrap),
    ``min``, ``max``, ``drop`` (how much worse this mean is than fp32's under the same condition, or the only one
    that fp32 is run under: fp32 minus this, or this minus fp32 if less is better). Ordered by :func:`sort_rows`.

    Crashed runs without a score (see :class:`~roundoff.runs.metric.Metric`) count only in ``n`` and ``crashed``; a
    mean over nothing is NaN.
    """
    runs = experiment.runs[experiment.runs["status"].isin(["done", "crashed", "failed"])]
    keys = experiment.conditions.keys
    all_tasks = set(ended(runs)["task"])
    several = len(all_tasks) > 1 and have_one_unit(all_tasks, of_agents=experiment.metric.of_agents)
    rows = []
    for values, group in runs.groupby(["format", *keys], dropna=False):
        tasks = {str(task): ended(part)["return"].to_numpy(float) for task, part in group.groupby("task")}
        selections: dict[str, Sequence[np.ndarray]] = {task: [scores] for task, scores in tasks.items()}
        # A mean over fewer tasks would not be comparable with the others.
        if several and {task for task, scores in tasks.items() if scores.size} == all_tasks:
            selections[ALL_TASKS] = [scores for scores in tasks.values() if scores.size]
        for task, scores in selections.items():
            members = group[(group["task"] == task) | (task == ALL_TASKS)]
            rows.append(
                {
                    "task": task,
                    **dict(zip(["format", *keys], values, strict=True)),
                    "significand_bits": significand_bits(str(values[0])),
                    "exponent_bits": exponent_bits(str(values[0])),
                    **_scores(scores, [task, *map(str, values)]),
                    "crashed": int((members["status"] == "crashed").sum()),
                    "failed": len(failed(members)),
                }
            )
    columns = ["task", "format", *keys, "significand_bits", "exponent_bits", "n", "crashed", "failed"]
    columns += ["mean", "std", "iqm", "ci_low", "ci_high", "min", "max", "drop"]
    if not rows:
        return pd.DataFrame(columns=columns)
    table = pd.DataFrame(rows)
    table["drop"] = _drops(table, experiment)
    return sort_rows(table, keys, experiment.formats)[columns]


def _drops(table: pd.DataFrame, experiment: Experiment) -> list[float]:
    """Returns how much worse each mean is than its reference mean of fp32; NaN without a reference."""
    keys = experiment.conditions.keys
    # Also runs that have not ended: they decide whether fp32 has only one condition.
    planned = experiment.runs.loc[experiment.runs["format"] == REFERENCE, ["task", *keys]].drop_duplicates()
    references = {
        task: References(records(planned[(planned["task"] == task) | (task == ALL_TASKS)]), keys)
        for task in table["task"].unique()
    }
    rows = [(row, references[row["task"]]) for row in records(table)]
    means: dict[tuple[str, tuple[str, ...] | None], float] = {
        (row["task"], references.text_of(row)): row["mean"] for row, references in rows if row["format"] == REFERENCE
    }
    drops = [means.get((row["task"], references.reference_of(row)), np.nan) - row["mean"] for row, references in rows]
    return [experiment.metric.sign * drop + 0.0 for drop in drops]  # no -0


def _scores(groups: Sequence[np.ndarray], labels: list[str]) -> dict[str, float]:
    count = sum(group.size for group in groups)
    groups = [group[~np.isnan(group)] for group in groups]
    if not all(group.size for group in groups):
        return {"n": count} | dict.fromkeys(("mean", "std", "iqm", "ci_low", "ci_high", "min", "max"), float("nan"))
    everything = np.concatenate(groups)
    interval = bootstrap_interval(groups, generator_for(*labels))
    mean, std = mean_and_std(groups)
    return {
        "n": count,
        "mean": mean,
        "std": std,
        "iqm": interquartile_mean(everything),
        "ci_low": interval.low,
        "ci_high": interval.high,
        "min": float(everything.min()),
        "max": float(everything.max()),
    }
