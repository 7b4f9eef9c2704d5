"""Computes the numbers that belong to a figure, as rows of a table for people."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from ..figures.actor_time import ACTIVITIES, actor_clocks, actor_times
from ..figures.differences import differences_table, distances_of
from ..figures.drawing.axes import titles
from ..figures.hyperparameters import hyperparameters_table
from ..figures.logged_values import norms_table
from ..figures.magnitudes import NETWORK_PREFIX, gradients_table
from ..runs.experiment import Experiment
from ..tables.summary import ALL_TASKS, ended, records


class Measured(NamedTuple):
    """A row.

    Attributes:
        cells: Texts of the cells, by the heading of the column.
        settings: the varying settings of its runs.
        over_tasks: whether it is about all tasks.
    """

    cells: dict[str, str]
    settings: dict[str, Any]
    over_tasks: bool


def returns(experiment: Experiment, summary: pd.DataFrame) -> list[Measured]:
    """Lists every row of the summary: mean and standard deviation of the returns, runs and crashes."""
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
    """Lists mean and standard deviation of the returns for every draw of hyper-parameters, over all tasks."""
    table = hyperparameters_table(experiment)
    keys = [key for key in table.columns if key in experiment.config_keys and key != "format"]
    rows = []
    for row in records(table):
        values = {key: f"{row[key]:.3g}" for key in keys}
        cells = {**values, "format": row["format"], "return": spread(row["return"], row["std"]), "runs": str(row["n"])}
        rows.append(Measured(cells, row, over_tasks=True))
    return rows


def norms(experiment: Experiment, _summary: pd.DataFrame) -> list[Measured]:
    """Lists the norms of every condition: the mean over runs of their means in the last quarter of the steps."""
    table = norms_table(experiment)
    if table is None:
        return []
    values = [name for name in table.columns if name.endswith("_norm")]
    # As late as possible, and not of a single noisy point.
    late = table[table["step"] > 0.75 * table["step"].max()]
    means_of_runs = late.groupby(["task", "format", "series", "id"], sort=False)[values].mean()
    rows = []
    for (task, name, series), runs in means_of_runs.groupby(["task", "format", "series"]):
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
    for (role, name, series), rows_of_series in table.groupby(["role", "format", "series"], sort=False):
        ordered = rows_of_series.sort_values("exponent")
        exponents, cumulative = ordered["exponent"].to_numpy(int), ordered["share"].cumsum().to_numpy(float)
        low, middle, high = (exponents[np.searchsorted(cumulative, share)] for share in (0.01, 0.5, 0.99))
        span = (exponents[-1] - exponents[0]) * math.log10(2)
        powers = {"smallest": exponents[0], "1 %": low, "median": middle, "99 %": high, "largest": exponents[-1]}
        cells = {"gradients": str(role).removeprefix(NETWORK_PREFIX), "format": str(series)}
        cells |= {key: f"2^{value}" for key, value in powers.items()}
        rows.append(Measured(cells | {"powers of ten": f"{span:.0f}"}, {"format": name}, over_tasks=True))
    return rows


def distances(experiment: Experiment, _summary: pd.DataFrame) -> list[Measured]:
    """Lists the mean |difference| of weights over pairs of runs, at the first, middle and last evaluation."""
    table = differences_table(experiment, [])
    return _pair_rows(table, {f"{network} weights": column for network, column in distances_of(table).items()})


def q_distances(experiment: Experiment, _summary: pd.DataFrame) -> list[Measured]:
    """Lists the mean |difference| of Q values over pairs of runs, at the first, middle and last evaluation."""
    return _pair_rows(differences_table(experiment, []), {"Q values": "q_difference"})


def _pair_rows(table: pd.DataFrame, columns: dict[str, str]) -> list[Measured]:
    rows = []
    for (task, name), pairs in table.groupby(["task", "format"]):
        steps = sorted(set(pairs["step"]))
        for step in sorted({steps[0], steps[(len(steps) - 1) // 2], steps[-1]}):
            rows_at_step = pairs[pairs["step"] == step]
            cells = {"task": str(task), "format": str(name), "step": str(step), "pairs": str(len(rows_at_step))}
            for heading, column in columns.items():
                deviation = f" ± {rows_at_step[column].std():.2g}" if len(rows_at_step) > 1 else ""
                cells[heading] = f"{rows_at_step[column].mean():.3g}{deviation}"
            rows.append(Measured(cells, {"task": task, "format": name}, over_tasks=False))
    return rows


def spread(mean: float, std: float, shown: str = ".0f") -> str:
    """Formats a mean and a standard deviation; only the mean if the latter is NaN."""
    return f"{mean:{shown}}" if math.isnan(std) else f"{mean:{shown}} ± {std:{shown}}"


# Quantized actors compared with fp32 actors, after ActorQ: time to the same return, and time of each activity.
TIME_TO_REWARD = "time to 95 % of fp32's return"
_SHARE = 0.95
_SENT = "actors.communicate"
_ACTORS = ["actors.format", "actors.engine", "actors.pull_every"]
_KEYS = [*_ACTORS, _SENT]
_REFERENCE = "fp32"


def times_to_reward(experiment: Experiment, _summary: pd.DataFrame) -> list[Measured]:
    """Lists steps, and seconds on the clock of an actor, until the learner's policy had 95 % of fp32's best return.

    The level is of the mean over runs with fp32 actors that pull most rarely: its best evaluation, less 5 % of its
    magnitude. A condition has reached it at the first evaluation where the mean of its runs has. The paper's times are
    wall-clock time, of a learner on a GPU that waits for its actors.
    """
    rows = []
    for task, runs in _with_actors(experiment).groupby("task", sort=True):
        groups = {_condition(members): members for _, members in runs.groupby(_KEYS, sort=False)}
        conditions = {key: _curve(experiment, members) for key, members in groups.items()}
        references = [key for key in conditions if {key[0], key[3]} == {_REFERENCE} and len(conditions[key])]
        if not references:
            continue
        best = conditions[max(references, key=lambda key: key[2])]["return"].max()  # key[2]: steps between pulls
        level = best - (1 - _SHARE) * abs(best)
        reached = {key: _first_reached(curve, level) for key, curve in conditions.items()}
        for key, curve in conditions.items():
            (name, engine, every, sent), (step, clock) = key, reached[key]
            reference_seconds = [reached[other][1] for other in references if other[1:3] == key[1:3]]
            speedup = reference_seconds[0] / clock if reference_seconds and clock > 0 else math.nan
            cells = {
                "task": str(task), "actors": _actors(name, sent), "engine": engine, "pull every": f"{every:g}",
                "level": f"{level:.0f}", "steps to it": _text(step, ".0f"),
                "actor's seconds": _text(clock, ".3g"), "speedup": _text(speedup, ".2f"),
                "best": _text(curve["return"].max(), ".0f"), "runs": str(len(groups[key])),
            }  # fmt: skip
            settings = {"task": task, **dict(zip(_ACTORS, key, strict=False))}
            rows.append(Measured(cells, settings, over_tasks=True))
    return rows


def breakdown(experiment: Experiment, _summary: pd.DataFrame) -> list[Measured]:
    """Lists milliseconds of a step by activity, and the share of the time that goes into weights."""
    runs = _with_actors(experiment)[["id", "task", *_KEYS]].merge(actor_times(experiment), on="id")
    rows = []
    for (task, *_), members in runs.groupby(["task", *_KEYS], sort=True):
        name, engine, every, sent = key = _condition(members)
        means = members[list(ACTIVITIES)].mean()
        cells = {"task": str(task), "actors": _actors(name, sent), "engine": engine, "pull every": f"{every:g}"}
        cells |= {f"{activity} (ms)": f"{means[activity]:.3g}" for activity in ACTIVITIES}  # s of 1000 steps
        weights = means["pull"] + means["deserialize"] + means["load"]
        cells["for weights"] = f"{100 * weights / (weights + means['step']):.0f} %" if means["step"] > 0 else ""
        settings = {"task": task, **dict(zip(_ACTORS, key, strict=False))}
        rows.append(Measured(cells | {"runs": str(len(members))}, settings, over_tasks=True))
    return rows


def _condition(runs: pd.DataFrame) -> tuple[str, str, float, str]:
    """Returns the shared settings of runs: format and engine of actors, steps between pulls, format of messages."""
    name, engine, every, sent = (runs[key].iloc[0] for key in _KEYS)
    return str(name), str(engine), float(every), str(sent)


def _actors(name: str, sent: str) -> str:
    return name if sent == name else f"{name}, sent in {sent}"


def _with_actors(experiment: Experiment) -> pd.DataFrame:
    """The runs with actors that have ended."""
    runs = ended(experiment.runs)
    if not set(_ACTORS) <= set(runs):
        return runs.assign(**dict.fromkeys(_KEYS)).iloc[:0]
    if _SENT not in runs:
        runs = runs.assign(**{_SENT: None})
    return runs.assign(**{_SENT: runs[_SENT].where(runs[_SENT].notna(), runs["actors.format"])}).dropna(subset=_ACTORS)


def _curve(experiment: Experiment, runs: pd.DataFrame) -> pd.DataFrame:
    """Computes the mean return and clock of runs at each step with an evaluation of all of them."""
    points = experiment.curves[experiment.curves["id"].isin(runs["id"])]
    points = points.merge(actor_clocks(experiment), on=["id", "step"], how="left")
    grouped = points.groupby("step")
    curve = grouped[["return", "clock"]].mean().assign(n=grouped.size()).reset_index()
    return curve[curve["n"] == len(runs)].sort_values("step")


def _first_reached(curve: pd.DataFrame, level: float) -> tuple[float, float]:
    """Finds the step and time when a curve first reaches a level; NaN if it does not."""
    reached = curve.loc[curve["return"] >= level, ["step", "clock"]].to_numpy(float)
    return (reached[0, 0], reached[0, 1]) if len(reached) else (math.nan, math.nan)


def _text(value: float, shown: str) -> str:
    return "" if math.isnan(value) else f"{value:{shown}}"
