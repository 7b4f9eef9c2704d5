"""Runs by what their policies were quantized to, and when: while they learned, or after that."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from ..figures.drawing.axes import titles
from ..runs.experiment import Experiment
from ..tables.summary import ALL_TASKS, parsed, records
from .measured import Measured

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
    runs[_WHEN] = [_when(qat) for qat in given]
    if "algorithm" in runs and len(set(runs["algorithm"])) > 1:
        runs["task"] += ", " + runs["algorithm"]
    plain = runs[(runs[_WHEN] == _NEVER) & runs["status"].isin(["done", "crashed"])]
    last = experiment.quantized.merge(plain[["id", "step"]], on=["id", "step"])[["id", "in", "return"]]
    crashed = plain[plain["status"] == "crashed"]
    named = [(row["id"], name, row["return"]) for row in records(crashed) for name in _asked(experiment, row["id"])]
    last = pd.concat([last[~last["id"].isin(crashed["id"])], pd.DataFrame(named, columns=last.columns)])
    again = last.merge(plain.drop(columns=["return", "format"]), on="id").rename(columns={"in": "format"})
    runs = pd.concat([runs, again.assign(**{_WHEN: _AFTER})], ignore_index=True)
    keys = {key for key in experiment.conditions.keys if key not in ("algorithm", "qat")}
    return replace(
        experiment,
        runs=runs,
        formats=tuple(sorted(dict.fromkeys(runs["format"]), key=_bits, reverse=True)),
        config_keys=frozenset({"task", "format", "seed", _WHEN, *keys}),
    )


def _bits(name: str) -> float:
    fmt = parsed(name)
    return 0.0 if fmt is None else fmt.bits_per_number


def _asked(experiment: Experiment, identity: str) -> list[str]:
    """The quantizations that a run was to be evaluated in, as records name them."""
    asked = experiment.configs[identity].get("evaluate_in", ())
    return [json.dumps(one, sort_keys=True) if isinstance(one, dict) else str(one) for one in asked]


def _when(qat: dict[str, Any] | None) -> str:
    if qat is None:
        return _NEVER
    return _TRAINING if qat["operands"] == "both" else f"{_TRAINING}, {qat['operands']}"


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
