"""Runs by the time that they take, in place of their returns."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from roundoff.runs.metric import AgentMetric

from ..tables.run_table import seconds_of
from ..tables.summary import records
from .measured import Measured, spread

if TYPE_CHECKING:
    import pandas as pd

    from ..runs.experiment import Experiment

QUANTITY = "time of 50 million steps"
_STEPS = 50e6
_TIME = AgentMetric(name="time", goal="minimize", unit="h for 50 million steps")
_WITH_LEARNERS = {"learners", "asynchronous", "environments", "batch_size"}  # keys that go with their number


def by_hours(experiment: Experiment) -> Experiment:
    """The experiment with the hours that each run would take for 50 million agent steps, going on as it went.

    Wall-clock time, with evaluations and with what else the machine did meanwhile. NaN where a run is not done.
    """
    runs = experiment.runs
    seconds = runs["id"].map(lambda identity: seconds_of(experiment, identity))
    taken = runs["step"] / runs.get("action_repeat", 1)
    hours = (seconds / 3600 * _STEPS / taken).where(runs["status"] == "done")
    return replace(experiment, runs=runs.assign(**{"return": hours}), metric=_TIME)


def hours(experiment: Experiment, summary: pd.DataFrame) -> list[Measured]:
    """The hours of every condition, and how much faster it is than the same with one learner."""
    conditions, constant = experiment.conditions, {}
    for key in sorted(experiment.config_keys):
        values = experiment.runs[key].drop_duplicates()
        if len(values) == 1:
            constant[key] = values.iloc[0]
    same = ["task", "format", *(key for key in conditions.told if key not in _WITH_LEARNERS)]
    of_one: dict[tuple[str, ...], float] = {}
    rows = records(summary)
    for row in rows:
        if row.get("learners", 1) == 1:
            of_one[tuple(str(row[key]) for key in same)] = row["mean"]
    found = []
    for row in rows:
        alone = of_one.get(tuple(str(row[key]) for key in same), np.nan)
        speed = alone / row["mean"]
        cells = {"task": row["task"], "format": row["format"], "condition": conditions.label(row)}
        cells["hours"] = "" if np.isnan(row["mean"]) else spread(row["mean"], row["std"], ".3g")
        cells["speed over one learner"] = "" if np.isnan(speed) else f"{speed:.2f}"
        found.append(Measured(cells | {"runs": str(row["n"])}, {**constant, **row}, over_tasks=True))
    return found
