"""Every format against fp32, and the significand bits that each task needs, as tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from .comparisons import difference, holm, probability_of_improvement
from .intervals import generator_for
from .needed_bits import LEVEL, MARGIN, needed_bits
from .summary import (
    ALL_TASKS,
    REFERENCE,
    ended,
    exponent_bits,
    significand_bits,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..runs.experiment import Experiment

    Scores = dict[tuple[str, int], float]  # by seed, and number among the runs of that seed
    ByTask = dict[str, Scores]


def against_reference(experiment: Experiment) -> pd.DataFrame:
    """Compares each format and condition with fp32: of the same condition, or of the only one that fp32 was run in.

    Columns: ``task`` (``all``: the mean over tasks), ``format``, the conditions, ``reference`` (the condition of
    fp32, in words), ``improvement`` with ``improvement_low`` and ``improvement_high`` (the probability that a run
    scores more than one of fp32, and its 95 % interval), ``difference`` with ``difference_low`` and
    ``difference_high`` (mean return minus that of fp32), ``pairs`` (runs that share a seed; 0: compared unpaired),
    ``p`` (permutation test), ``p_holm`` (adjusted for all rows of single tasks, or all rows of ``all``).
    """
    runs = ended(experiment.runs)
    keys = experiment.conditions.keys
    rows: list[dict[str, Any]] = []
    for values, tasks, reference in _matched(runs, keys):
        for task, names in _selections(tasks, set(runs["task"])):
            if not set(names) <= reference[1].keys():
                continue
            x, y = [tasks[name] for name in names], [reference[1][name] for name in names]
            generator = generator_for("against", task, *map(str, values.values()))
            scores = [[list(scores.values()) for scores in side] for side in (x, y)]
            better = probability_of_improvement(scores[0], scores[1], generator)
            apart = difference(x, y, generator)
            rows.append(
                {
                    "task": task,
                    **values,
                    "reference": experiment.conditions.label(reference[0]) if keys else "",
                    "improvement": better.value,
                    "improvement_low": better.interval.low,
                    "improvement_high": better.interval.high,
                    "difference": apart.value,
                    "difference_low": apart.interval.low,
                    "difference_high": apart.interval.high,
                    "pairs": apart.pairs,
                    "p": apart.p,
                }
            )
    measures = ["improvement", "difference"]
    columns = ["task", "format", *keys, "reference"]
    columns += [f"{name}{end}" for name in measures for end in ("", "_low", "_high")] + ["pairs", "p", "p_holm"]
    if not rows:
        return pd.DataFrame(columns=columns)
    table = pd.DataFrame(rows)
    table["p_holm"] = np.nan
    for family in (table["task"] == ALL_TASKS, table["task"] != ALL_TASKS):
        table.loc[family, "p_holm"] = holm(table.loc[family, "p"])
    return _ordered(table, keys)[columns]


def needed_table(experiment: Experiment, margin: float = MARGIN, level: float = LEVEL) -> pd.DataFrame:
    """The significand bits needed on each task, for each width of the exponent and condition.

    Columns: ``task``, ``exponent_bits``, the conditions, ``bits``, ``confidence``, ``by_means``, ``runs``,
    ``paired`` and ``reason`` (see ``NeededBits``), ``smallest`` and ``largest``
    (widths tested), ``margin``, ``level``.
    """
    runs = ended(experiment.runs)
    keys = experiment.conditions.keys
    families: dict[tuple[Any, ...], dict[int, ByTask]] = {}
    references: dict[tuple[Any, ...], ByTask] = {}
    for values, tasks, reference in _matched(runs, keys):
        m, e = significand_bits(values["format"]), exponent_bits(values["format"])
        if not np.isnan(m):
            family = (int(e), *(values[key] for key in keys))
            families.setdefault(family, {}).setdefault(int(m), tasks)
            references[family] = reference[1]
    rows: list[dict[str, Any]] = []
    for family, widths in families.items():
        for task, names in _selections(references[family], set(runs["task"])):
            tested = {m: [tasks[name] for name in names] for m, tasks in widths.items() if set(names) <= tasks.keys()}
            if not tested:
                continue
            found = needed_bits(
                [references[family][name] for name in names],
                tested,
                generator_for("needed", task, *map(str, family)),
                margin=margin,
                level=level,
            )
            answer = {key: value for key, value in found._asdict().items() if key != "confidences"}
            values = dict(zip(["exponent_bits", *keys], family, strict=True))
            rows.append(
                {"task": task, **values, **answer, "smallest": min(tested), "largest": max(tested)}
                | {"margin": margin, "level": level}
            )
    columns = ["task", "exponent_bits", *keys, "bits", "confidence", "by_means", "runs", "paired", "reason"]
    columns += ["smallest", "largest", "margin", "level"]
    table = pd.DataFrame(rows, columns=columns).astype({"bits": "Int64", "by_means": "Int64"})
    ascending = [*[True] * (1 + len(keys)), False]
    return table.sort_values(["task", *keys, "exponent_bits"], ascending=ascending, ignore_index=True)


def _matched(
    runs: pd.DataFrame, keys: list[str]
) -> Iterator[tuple[dict[str, Any], ByTask, tuple[dict[str, Any], ByTask]]]:
    """Every format and condition but fp32's, and what it is compared with: values and scores by task of both."""
    everything = [
        (dict(zip(["format", *keys], where, strict=True)), _by_task(group))
        for where, group in runs.groupby(["format", *keys], dropna=False)
    ]
    plain = [(values, tasks) for values, tasks in everything if values["format"] == REFERENCE]
    for values, tasks in everything:
        if values["format"] == REFERENCE:
            continue
        same = [one for one in plain if all(str(one[0][key]) == str(values[key]) for key in keys)] or plain
        if len(same) == 1:
            yield values, tasks, same[0]


def _by_task(runs: pd.DataFrame) -> ByTask:
    """Scores by task and seed, in the order of seeds; runs without one are told apart by their name."""
    seeds = (runs["seed"] if "seed" in runs else runs["id"]).astype(str)
    numbers = runs.groupby([runs["task"], seeds]).cumcount()
    result: ByTask = {}
    for task, seed, number, score in sorted(zip(runs["task"], seeds, numbers, runs["return"], strict=True)):
        result.setdefault(str(task), {})[seed, int(number)] = float(score)
    return result


def _selections(tasks: ByTask, all_tasks: set[str]) -> list[tuple[str, list[str]]]:
    """Single tasks, and all of them together if there are several."""
    selections = [(task, [task]) for task in tasks]
    if len(all_tasks) > 1 and set(tasks) == all_tasks:
        selections.append((ALL_TASKS, sorted(tasks)))
    return selections


def _ordered(table: pd.DataFrame, keys: list[str]) -> pd.DataFrame:
    wide = table.assign(e=table["format"].map(exponent_bits), m=table["format"].map(significand_bits))
    by = ["task", *keys, "e", "m"]
    ascending = [*[True] * (1 + len(keys)), False, False]
    return wide.sort_values(by, ascending=ascending, ignore_index=True).drop(columns=["e", "m"])
