"""Quantized actors compared with fp32 actors: time to the same return, and time of each activity; after ActorQ."""

from __future__ import annotations

import math

import pandas as pd

from ..figures.actor_time import ACTIVITIES, actor_clocks, actor_times
from ..runs.experiment import Experiment
from ..tables.summary import ended
from .measured import Measured

TIME_TO_REWARD = "time to 95 % of fp32's return"
_SHARE = 0.95
_SENT = "actors.communicate"
_SAID = ["actors.format", "actors.engine", "actors.pull_every"]
_KEYS = [*_SAID, _SENT]
_REFERENCE = "fp32"


def times_to_reward(experiment: Experiment, _summary: pd.DataFrame) -> list[Measured]:
    """Steps, and seconds on the clock of an actor, until the learner's policy had 95 % of fp32's best return.

    The level is of the mean over runs with fp32 actors that pull most rarely: its best evaluation, less 5 % of its
    magnitude. A condition has reached it at the first evaluation where the mean of its runs has. The paper's times are
    wall-clock time, of a learner on a GPU that waits for its actors.
    """
    rows = []
    for task, runs in _with_actors(experiment).groupby("task", sort=True):
        groups = {_condition(own): own for _, own in runs.groupby(_KEYS, sort=False)}
        conditions = {key: _curve(experiment, own) for key, own in groups.items()}
        references = [key for key in conditions if {key[0], key[3]} == {_REFERENCE} and len(conditions[key])]
        if not references:
            continue
        best = conditions[max(references, key=lambda key: key[2])]["return"].max()
        level = best - (1 - _SHARE) * abs(best)
        reached = {key: _first(curve, level) for key, curve in conditions.items()}
        for key, curve in conditions.items():
            (name, engine, every, sent), (step, clock) = key, reached[key]
            same = [reached[other][1] for other in references if other[1:3] == key[1:3]]
            speedup = same[0] / clock if same and clock > 0 else math.nan
            cells = {
                "task": str(task), "actors": _actors(name, sent), "engine": engine, "pull every": f"{every:g}",
                "level": f"{level:.0f}", "steps to it": _text(step, ".0f"),
                "actor's seconds": _text(clock, ".3g"), "speedup": _text(speedup, ".2f"),
                "best": _text(curve["return"].max(), ".0f"), "runs": str(len(groups[key])),
            }  # fmt: skip
            where = {"task": task, **dict(zip(_SAID, key, strict=False))}
            rows.append(Measured(cells, where, over_tasks=True))
    return rows


def breakdown(experiment: Experiment, _summary: pd.DataFrame) -> list[Measured]:
    """Milliseconds of a step by activity, and the share of the time that goes into weights."""
    runs = _with_actors(experiment)[["id", "task", *_KEYS]].merge(actor_times(experiment), on="id")
    rows = []
    for (task, *_), own in runs.groupby(["task", *_KEYS], sort=True):
        name, engine, every, sent = key = _condition(own)
        means = own[list(ACTIVITIES)].mean()
        cells = {"task": str(task), "actors": _actors(name, sent), "engine": engine, "pull every": f"{every:g}"}
        cells |= {f"{activity} (ms)": f"{means[activity]:.3g}" for activity in ACTIVITIES}  # s of 1000 steps
        weights = means["pull"] + means["deserialize"] + means["load"]
        cells["for weights"] = f"{100 * weights / (weights + means['step']):.0f} %" if means["step"] > 0 else ""
        where = {"task": task, **dict(zip(_SAID, key, strict=False))}
        rows.append(Measured(cells | {"runs": str(len(own))}, where, over_tasks=True))
    return rows


def _condition(runs: pd.DataFrame) -> tuple[str, str, float, str]:
    """Format and engine of the actors, how often they pull, and in what weights travel, of runs that have the same."""
    name, engine, every, sent = (runs[key].iloc[0] for key in _KEYS)
    return str(name), str(engine), float(every), str(sent)


def _actors(name: str, sent: str) -> str:
    return name if sent == name else f"{name}, sent in {sent}"


def _with_actors(experiment: Experiment) -> pd.DataFrame:
    """The runs with actors that have ended."""
    runs = ended(experiment.runs)
    if not set(_SAID) <= set(runs):
        return runs.assign(**dict.fromkeys(_KEYS)).iloc[:0]
    if _SENT not in runs:
        runs = runs.assign(**{_SENT: None})
    return runs.assign(**{_SENT: runs[_SENT].where(runs[_SENT].notna(), runs["actors.format"])}).dropna(subset=_SAID)


def _curve(experiment: Experiment, runs: pd.DataFrame) -> pd.DataFrame:
    """The mean return and clock of runs at each step that all of them were evaluated at."""
    points = experiment.curves[experiment.curves["id"].isin(runs["id"])]
    points = points.merge(actor_clocks(experiment), on=["id", "step"], how="left")
    grouped = points.groupby("step")
    curve = grouped[["return", "clock"]].mean().assign(n=grouped.size()).reset_index()
    return curve[curve["n"] == len(runs)].sort_values("step")


def _first(curve: pd.DataFrame, level: float) -> tuple[float, float]:
    """The step and the time when the level was reached; NaN if it was not."""
    reached = curve.loc[curve["return"] >= level, ["step", "clock"]].to_numpy(float)
    return (reached[0, 0], reached[0, 1]) if len(reached) else (math.nan, math.nan)


def _text(value: float, shown: str) -> str:
    return "" if math.isnan(value) else f"{value:{shown}}"
