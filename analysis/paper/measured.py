"""The numbers that belong to a figure, as rows of a table for people."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from ..figures.differences import differences_table, distances_of
from ..figures.drawing.axes import titles
from ..figures.hyperparameters import hyperparameters_table
from ..figures.logged_values import norms_table
from ..figures.magnitudes import OF_NETWORK, gradients_table
from ..runs.experiment import Experiment
from ..tables.summary import ALL_TASKS, records


class Measured(NamedTuple):
    """A row.

    Attributes:
        cells: Texts of the cells, by the heading of the column.
        where: the settings of its runs that vary.
        over_tasks: whether it is about all tasks there are.
    """

    cells: dict[str, str]
    where: dict[str, Any]
    over_tasks: bool


def returns(experiment: Experiment, summary: pd.DataFrame) -> list[Measured]:
    """Every row of the summary: mean and standard deviation of the returns, runs and crashes."""
    conditions = experiment.conditions
    several = ALL_TASKS in set(summary["task"])
    rows = []
    for row in records(summary):
        (task,) = titles([row["task"]])
        condition = {"condition": conditions.label(row)} if conditions.keys else {}
        cells = {"task": task, "format": row["format"], **condition, "return": spread(row["mean"], row["std"])}
        cells |= {"runs": str(row["n"]), "crashed": str(row["crashed"])}
        rows.append(Measured(cells, row, not several or row["task"] == ALL_TASKS))
    return rows


def draws(experiment: Experiment, _summary: pd.DataFrame) -> list[Measured]:
    """Mean and standard deviation of the returns for every draw of hyper-parameters, over all tasks."""
    table = hyperparameters_table(experiment)
    keys = [key for key in table.columns if key in experiment.config_keys and key != "format"]
    rows = []
    for row in records(table):
        values = {key: f"{row[key]:.3g}" for key in keys}
        cells = {**values, "format": row["format"], "return": spread(row["return"], row["std"]), "runs": str(row["n"])}
        rows.append(Measured(cells, row, over_tasks=True))
    return rows


def norms(experiment: Experiment, _summary: pd.DataFrame) -> list[Measured]:
    """The norms of every condition: the mean over runs of their means in the last quarter of the steps."""
    table = norms_table(experiment)
    if table is None:
        return []
    values = [name for name in table.columns if name.endswith("_norm")]
    late = table[table["step"] > 0.75 * table["step"].max()]
    of_runs = late.groupby(["task", "format", "series", "id"], sort=False)[values].mean()
    rows = []
    for (task, name, series), runs in of_runs.groupby(["task", "format", "series"]):
        cells = {"task": str(task), "series": str(series), "runs": str(len(runs))}
        means = {value: runs[value].mean() for value in values}
        shown = {value: "" if math.isnan(mean) else f"{mean:.3g}" for value, mean in means.items()}
        cells |= {value.removesuffix("_norm").replace("_", " "): text for value, text in shown.items()}
        rows.append(Measured(cells, {"task": task, "format": name}, over_tasks=False))
    return rows


def gradients(experiment: Experiment, _summary: pd.DataFrame) -> list[Measured]:
    """Returns the powers of two between which the gradients of each network lie."""
    table = gradients_table(experiment)
    rows = []
    for (role, name, series), of_series in table.groupby(["role", "format", "series"], sort=False):
        ordered = of_series.sort_values("exponent")
        exponents, above = ordered["exponent"].to_numpy(int), ordered["share"].cumsum().to_numpy(float)
        low, middle, high = (exponents[np.searchsorted(above, share)] for share in (0.01, 0.5, 0.99))
        span = (exponents[-1] - exponents[0]) * math.log10(2)
        powers = {"smallest": exponents[0], "1 %": low, "median": middle, "99 %": high, "largest": exponents[-1]}
        cells = {"gradients": str(role).removeprefix(OF_NETWORK), "format": str(series)}
        cells |= {key: f"2^{value}" for key, value in powers.items()}
        rows.append(Measured(cells | {"powers of ten": f"{span:.0f}"}, {"format": name}, over_tasks=True))
    return rows


def distances(experiment: Experiment, _summary: pd.DataFrame) -> list[Measured]:
    """Mean |difference| of weights over pairs of runs, at the first evaluation, in the middle and at the end."""
    table = differences_table(experiment, [])
    return _of_pairs(table, {f"{network} weights": column for network, column in distances_of(table).items()})


def q_distances(experiment: Experiment, _summary: pd.DataFrame) -> list[Measured]:
    """Mean |difference| of Q values over pairs of runs, at the first evaluation, in the middle and at the end."""
    return _of_pairs(differences_table(experiment, []), {"Q values": "q_difference"})


def _of_pairs(table: pd.DataFrame, columns: dict[str, str]) -> list[Measured]:
    rows = []
    for (task, name), pairs in table.groupby(["task", "format"]):
        steps = sorted(set(pairs["step"]))
        for step in sorted({steps[0], steps[(len(steps) - 1) // 2], steps[-1]}):
            here = pairs[pairs["step"] == step]
            cells = {"task": str(task), "format": str(name), "step": str(step), "pairs": str(len(here))}
            for heading, column in columns.items():
                spread_of = f" ± {here[column].std():.2g}" if len(here) > 1 else ""
                cells[heading] = f"{here[column].mean():.3g}{spread_of}"
            rows.append(Measured(cells, {"task": task, "format": name}, over_tasks=False))
    return rows


def spread(mean: float, std: float, shown: str = ".0f") -> str:
    """A mean and a standard deviation as text; only the mean if the latter is NaN."""
    return f"{mean:{shown}}" if math.isnan(std) else f"{mean:{shown}} ± {std:{shown}}"
