"""Runs by their policies quantized after training, in place of the policies as they were trained."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from ..errors import AnalysisError
from ..figures.drawing.axes import titles
from ..runs.conditions import as_text, without_settled
from ..runs.experiment import Experiment
from ..statistics.comparisons import holm
from ..tables.quantized import paired_interval
from ..tables.summary import ALL_TASKS, REFERENCE, bits_per_number, records
from .measured import Measured, spread

_COLUMNS = {
    REFERENCE: "fp32",
    "quarl16": "fp16 weights",
    "quarl8": "8-bit weights",
    "int8_ax0": "int8, and activations",
}
"""The columns of Table 4 by the name of the quantization, and one more."""


def by_columns(experiment: Experiment) -> Experiment:
    """The runs in fp32, and each again as often as Table 4 has columns for it: see :func:`by_quantization`."""
    return by_quantization(experiment, lambda name: name in _COLUMNS)


def by_bits(experiment: Experiment) -> Experiment:
    """The runs in fp32, and each again for each width of affine weights; 16 bits are affine too, as in Figure 7."""
    return by_quantization(experiment, lambda name: name.startswith("quarl") and name != "quarl16")


def by_quantization(experiment: Experiment, belongs: Callable[[str], bool]) -> Experiment:
    """The runs that were trained in fp32 and are done, and each again as its policy scored quantized, at the end.

    The ``format`` of such a row is the quantization, and its seed is the seed of its run.

    Args:
        experiment: an experiment with runs that evaluated quantized policies.
        belongs: whether a quantization is wanted, by its name.

    Raises:
        AnalysisError: no run did so.
    """
    runs = experiment.runs
    trained = runs[(runs["format"] == REFERENCE) & (runs["status"] == "done")]
    last = experiment.quantized.merge(trained[["id", "step"]], on=["id", "step"])
    last = last[last["in"].map(belongs)]
    if last.empty:
        raise AnalysisError(
            f"{experiment.name}: none of its ended runs in fp32 evaluated a policy quantized so; set evaluate_in, or"
            " see `roundoff quantize`"
        )
    again = last[["id", "in", "return"]].merge(trained.drop(columns=["return", "format"]), on="id")
    again = again.rename(columns={"in": "format"})
    again["id"] = again["id"] + "/" + again["format"]
    rows = pd.concat([trained, again[list(runs.columns)]], ignore_index=True)
    return replace(experiment, runs=rows, formats=(REFERENCE, *dict.fromkeys(last["in"])))


def after_training(experiment: Experiment, _summary: pd.DataFrame) -> list[Measured]:
    """Returns the return of each condition, task and quantization, and its difference from the policy as trained.

    Names the algorithm of a condition, and the other settings that differ between its runs on the same task.

    The difference is the mean over runs, each paired with itself, with Student's 95 % interval over runs. The p-value
    is of the same test, by Holm's method for all quantizations of the condition on the task: one of many tries looks
    like a sweet spot.
    """
    named = ["algorithm", "task"] if "algorithm" in experiment.runs else ["task"]
    told = [key for key in experiment.conditions.independent if key not in named]
    keys = [*named, *without_settled(experiment.runs, told, told, named)]
    found = []
    for case, runs in experiment.runs.groupby(keys, sort=False, dropna=False):
        missing = pd.isna(pd.Series(case)).tolist()
        where = {key: "" if no else as_text(one) for key, one, no in zip(keys, case, missing, strict=True)}
        by_seed = runs.assign(run=runs["id"].str.partition("/")[0]).set_index("run")
        trained = by_seed.loc[by_seed["format"] == REFERENCE, "return"]
        tries: list[tuple[dict[str, str], str, float]] = []
        for name in experiment.formats:
            scores = by_seed.loc[by_seed["format"] == name, "return"]
            differences = (scores - trained).dropna()
            low, high = paired_interval(differences)
            cells = {**where, "policy": _COLUMNS.get(name, name), "return": spread(scores.mean(), scores.std(), ".1f")}
            cells["difference"] = "" if name == REFERENCE else f"{differences.mean():+.3g}"
            there = name != REFERENCE and not np.isnan(low)
            cells["95 % interval"] = f"{low:+.3g} to {high:+.3g}" if there else ""
            cells["runs"] = str(len(scores))
            several = len(differences) > 1 and differences.std() > 0
            tries.append((cells, name, float(stats.ttest_1samp(differences, 0).pvalue) if several else np.nan))
        for (cells, name, _), p in zip(tries, holm([p for *_, p in tries]), strict=True):
            shown = cells | {"p, of all": "" if np.isnan(p) else f"{p:.2g}"}
            found.append(Measured(shown, {**where, "format": name}, over_tasks=True))
    return found


_WHEN = "quantized"
_TRAINING, _AFTER, _NEVER = "while training", "after training", "never"


def by_moment(experiment: Experiment) -> Experiment:
    """The experiment with a row for each run and quantization: its format in place of the run's, and when it was done.

    ``quantized`` is ``while training`` (``qat``; followed by ``forward`` where gradients see unrounded operands),
    ``after training`` (``evaluate_in``: the returns of the final evaluation, 0 of a run that crashed before), or
    ``never``. Algorithms, if there are several, are distinguished by the task.
    """
    runs = experiment.runs.copy()
    given = [experiment.configs[identity].get("qat") for identity in runs["id"]]
    runs["format"] = [own if qat is None else qat["format"] for qat, own in zip(given, runs["format"], strict=True)]
    suffixes = [None if qat is None else f", {qat['operands']}".removesuffix(", both") for qat in given]
    runs[_WHEN] = [_NEVER if suffix is None else _TRAINING + suffix for suffix in suffixes]
    if "algorithm" in runs and len(set(runs["algorithm"])) > 1:
        runs["task"] += ", " + runs["algorithm"]
    plain = runs[(runs[_WHEN] == _NEVER) & runs["status"].isin(["done", "crashed"])]
    last = experiment.quantized.merge(plain[["id", "step"]], on=["id", "step"])[["id", "in", "return"]]
    crashed = plain[plain["status"] == "crashed"]
    named = [
        (row["id"], json.dumps(one, sort_keys=True) if isinstance(one, dict) else str(one), row["return"])
        for row in records(crashed)
        for one in experiment.configs[row["id"]].get("evaluate_in", ())
    ]
    last = pd.concat([last[~last["id"].isin(crashed["id"])], pd.DataFrame(named, columns=last.columns)])
    again = last.merge(plain.drop(columns=["return", "format"]), on="id").rename(columns={"in": "format"})
    runs = pd.concat([runs, again.assign(**{_WHEN: _AFTER})], ignore_index=True)
    keys = {key for key in experiment.conditions.keys if key not in ("algorithm", "qat")}
    return replace(
        experiment,
        runs=runs,
        formats=tuple(sorted(dict.fromkeys(runs["format"]), key=lambda name: bits_per_number(name, 0.0), reverse=True)),
        config_keys=frozenset({"task", "format", "seed", _WHEN, *keys}),
    )


def beside_each_other(experiment: Experiment, summary: pd.DataFrame) -> list[Measured]:
    """Mean returns with their 95 % intervals by format: a column for each moment of quantization."""
    others = [key for key in experiment.conditions.keys if key != _WHEN]
    columns = sorted(set(experiment.runs[_WHEN]))
    several = ALL_TASKS in set(summary["task"])
    rows = []
    for (task, *_), conditions in summary.groupby(["task", *others], sort=False):
        for name in experiment.formats:
            here = {row.get(_WHEN, columns[0]): row for row in records(conditions[conditions["format"] == name])}
            if not here:
                continue
            row = next(iter(here.values()))
            cells = {"task": titles([str(task)])[0], **{key: str(row[key]) for key in others}, "format": name}
            cells |= {f"quantized {when}": _interval(here.get(when)) for when in columns}
            cells["runs"] = ", ".join(dict.fromkeys(str(one["n"]) for one in here.values()))
            rows.append(Measured(cells, row, not several or task == ALL_TASKS))
    return rows


def _interval(row: dict[str, Any] | None) -> str:
    if row is None or np.isnan(row["mean"]):
        return ""
    return f"{row['mean']:.0f} [{row['ci_low']:.0f}, {row['ci_high']:.0f}]"
