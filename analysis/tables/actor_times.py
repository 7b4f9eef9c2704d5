"""A table of how actors spent their time, from a run's ``timing.json``."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pandas as pd

from roundoff.runs.folder import RunDirectory
from roundoff.runs.result import MALFORMED

if TYPE_CHECKING:
    from ..runs.experiment import Experiment

ACTIVITIES = ("step", "environment", "pull", "deserialize", "load")
"""Inference; the environment; waiting for new weights, unpacking them, loading them."""


def actor_times(experiment: Experiment) -> pd.DataFrame:
    """Seconds of 1000 steps of an actor by activity, the mean of a run's actors: ``id`` and a column for each activity.

    Runs without actors, unfinished runs, and runs with a damaged file are left out.
    """
    rows = []
    for identity in experiment.runs["id"]:
        try:
            actors = RunDirectory(experiment.folders[identity]).read_timing()["actors"]
            steps = sum(int(actor["steps"]) for actor in actors)
            spent = {name: sum(_seconds(actor["spent"][name]) for actor in actors) for name in ACTIVITIES}
            rows.append({"id": identity, **{name: 1000 * total / steps for name, total in spent.items()}})
        except (*MALFORMED, ZeroDivisionError):
            continue
    return pd.DataFrame(rows, columns=["id", *ACTIVITIES])


def actor_clocks(experiment: Experiment) -> pd.DataFrame:
    """Seconds that an actor had spent at each evaluation, the mean of a run's actors: ``id``, ``step``, ``clock``."""
    rows: list[dict[str, Any]] = []
    for identity in experiment.runs["id"]:
        try:
            points = RunDirectory(experiment.folders[identity]).read_timing()["actor_clock"]
            rows += [{"id": identity, "step": int(step), "clock": _seconds(clock)} for step, clock in points]
        except MALFORMED:
            continue
    return pd.DataFrame(rows, columns=["id", "step", "clock"])


def _seconds(value: Any) -> float:
    seconds = float(value)
    if not 0 <= seconds < math.inf:
        raise ValueError(value)
    return seconds
