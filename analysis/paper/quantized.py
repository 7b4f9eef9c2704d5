"""Scores runs by their policies quantized after training, in place of the policies as they were trained."""

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
from ..runs.conditions import value_text, without_determined
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
    """Selects the quantizations that are columns of Table 4: see :func:`by_quantization`."""
    return by_quantization(experiment, lambda name: name in _COLUMNS)


def by_bits(experiment: Experiment) -> Experiment:
    """Selects the widths of affine weights; 16 bits are affine too, as in Figure 7: see :func:`by_quantization`."""
    return by_quantization(experiment, lambda name: name.startswith("quarl") and name != "quarl16")


def by_quantization(experiment: Experiment, belongs: Callable[[str], bool]) -> Experiment:
    """Returns the runs that were trained in fp32 and are done, and each again for each quantization of its policy.

    In such a row, the ``format`` is the quantization, and the score is the quantized policy's at the end.

    Args:
        experiment: an experiment with runs that evaluated quantized policies.
        belongs: whether a quantization is selected, by its name.

    Raises:
        AnalysisError: no run evaluated such a quantization.
    """
    runs = experiment.runs
    trained = runs[(runs["format"] == REFERENCE) & (runs["status"] == "done")]
    last = experiment.quantized.merge(trained[["id", "step"]], on=["id", "step"])
    last = last[last["in"].map(belongs)]
    if last.empty:
        raise AnalysisError(
            f"{experiment.name}: none of its ended runs in fp32 evaluated such a quantized policy; set evaluate_in, or"
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
    first_keys = ["algorithm", "task"] if "algorithm" in experiment.runs else ["task"]
    others = [key for key in experiment.conditions.independent if key not in first_keys]
    keys = [*first_keys, *without_determined(experiment.runs, others, others, first_keys)]
    rows = []
    for case, runs in experiment.runs.groupby(keys, sort=False, dropna=False):
        missing = pd.isna(pd.Series(case)).tolist()
        texts = ["" if lost else value_text(value) for value, lost in zip(case, missing, strict=True)]
        case_cells = dict(zip(keys, texts, strict=True))
        by_run = runs.assign(run=runs["id"].str.partition("/")[0]).set_index("run")  # RUN/QUANTIZATION
        trained = by_run.loc[by_run["format"] == REFERENCE, "return"]
        tries: list[tuple[dict[str, str], str, float]] = []
        for name in experiment.formats:
            scores = by_run.loc[by_run["format"] == name, "return"]
            differences = (scores - trained).dropna()
            low, high = paired_interval(differences)
            cells = {**case_cells, "policy": _COLUMNS.get(name, name)}
            cells["return"] = spread(scores.mean(), scores.std(), ".1f")
            cells["difference"] = "" if name == REFERENCE else f"{differences.mean():+.3g}"
            has_interval = name != REFERENCE and not np.isnan(low)
            cells["95 % interval"] = f"{low:+.3g} to {high:+.3g}" if has_interval else ""
            cells["runs"] = str(len(scores))
            is_testable = len(differences) > 1 and differences.std() > 0  # equal differences have no t statistic
            tries.append((cells, name, float(stats.ttest_1samp(differences, 0).pvalue) if is_testable else np.nan))
        for (cells, name, _), p in zip(tries, holm([p for *_, p in tries]), strict=True):
            completed = cells | {"p, of all": "" if np.isnan(p) else f"{p:.2g}"}
            rows.append(Measured(completed, {**case_cells, "format": name}, over_tasks=True))
    return rows


_WHEN = "quantized"
_TRAINING, _AFTER, _NEVER = "while training", "after training", "never"


def by_moment(experiment: Experiment) -> Experiment:
    """The experiment with a row for each run and quantization: its format in place of the run's, and when it was done.

    ``quantized`` is ``while training`` (``qat``; followed by ``forward`` where gradients see unrounded operands),
    ``after training`` (``evaluate_in``: the returns of the final evaluation, 0 of a run that crashed before), or
    ``never``. Algorithms, if there are several, are distinguished by the task.
    """
    runs = experiment.runs.copy()
    qats = [experiment.configs[identity].get("qat") for identity in runs["id"]]
    runs["format"] = [name if qat is None else qat["format"] for qat, name in zip(qats, runs["format"], strict=True)]
    suffixes = [None if qat is None else f", {qat['operands']}".removesuffix(", both") for qat in qats]
    runs[_WHEN] = [_NEVER if suffix is None else _TRAINING + suffix for suffix in suffixes]
    if "algorithm" in runs and len(set(runs["algorithm"])) > 1:
        runs["task"] += ", " + runs["algorithm"]
    # Rows for quantization after training: the final evaluation of a run, and a crash in every format it asked for.
    unquantized = runs[(runs[_WHEN] == _NEVER) & runs["status"].isin(["done", "crashed"])]
    last = experiment.quantized.merge(unquantized[["id", "step"]], on=["id", "step"])[["id", "in", "return"]]
    crashed = unquantized[unquantized["status"] == "crashed"]
    crash_rows = [
        (row["id"], json.dumps(entry, sort_keys=True) if isinstance(entry, dict) else str(entry), row["return"])
        for row in records(crashed)
        for entry in experiment.configs[row["id"]].get("evaluate_in", ())
    ]
    last = pd.concat([last[~last["id"].isin(crashed["id"])], pd.DataFrame(crash_rows, columns=last.columns)])
    again = last.merge(unquantized.drop(columns=["return", "format"]), on="id").rename(columns={"in": "format"})
    runs = pd.concat([runs, again.assign(**{_WHEN: _AFTER})], ignore_index=True)
    keys = {key for key in experiment.conditions.keys if key not in ("algorithm", "qat")}
    return replace(
        experiment,
        runs=runs,
        formats=tuple(sorted(dict.fromkeys(runs["format"]), key=lambda name: bits_per_number(name, 0.0), reverse=True)),
        config_keys=frozenset({"task", "format", "seed", _WHEN, *keys}),
    )


def returns_by_moment(experiment: Experiment, summary: pd.DataFrame) -> list[Measured]:
    """Lists mean returns with their 95 % intervals by format: a column for each moment of quantization."""
    others = [key for key in experiment.conditions.keys if key != _WHEN]
    columns = sorted(set(experiment.runs[_WHEN]))
    several = ALL_TASKS in set(summary["task"])
    rows = []
    for (task, *_), conditions in summary.groupby(["task", *others], sort=False):
        for name in experiment.formats:
            by_moment = {row.get(_WHEN, columns[0]): row for row in records(conditions[conditions["format"] == name])}
            if not by_moment:
                continue
            row = next(iter(by_moment.values()))
            cells = {"task": titles([str(task)])[0], **{key: str(row[key]) for key in others}, "format": name}
            cells |= {f"quantized {moment}": _interval(by_moment.get(moment)) for moment in columns}
            cells["runs"] = ", ".join(dict.fromkeys(str(moment["n"]) for moment in by_moment.values()))
            rows.append(Measured(cells, row, not several or task == ALL_TASKS))
    return rows


def _interval(row: dict[str, Any] | None) -> str:
    if row is None or np.isnan(row["mean"]):
        return ""
    return f"{row['mean']:.0f} [{row['ci_low']:.0f}, {row['ci_high']:.0f}]"
