"""Draws the time of the actors of a learner, by activity: inference, the environment, and new weights."""

from __future__ import annotations

import math
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from roundoff.runs.folder import RunDirectory
from roundoff.runs.metric import RETURN, Metric
from roundoff.runs.result import MALFORMED

from ..runs.experiment import Experiment
from ..tables.summary import records
from ..tables.wording import number
from .drawing.style import SCREEN, Size, figure, legend_under, look
from .drawing.tooltips import add_box_tooltips


def actor_time_table(experiment: Experiment) -> pd.DataFrame | None:
    """Computes seconds of 1000 steps of an actor, the mean of runs; None if no run has actors.

    Columns: ``task``, ``series``, the activities (``step``, ``environment``, ``pull``, ``deserialize``, ``load``), and
    ``n``, the number of runs.
    """
    times = actor_times(experiment)
    if times.empty:
        return None
    conditions = experiment.conditions
    series = [conditions.series(run) for run in records(experiment.runs)]
    table = times.merge(experiment.runs[["id", "task"]].assign(series=series), on="id")
    grouped = table.groupby(["task", "series"], sort=True)
    return grouped[list(ACTIVITIES)].mean().assign(n=grouped.size()).reset_index()


def draw_actor_time(name: str, table: pd.DataFrame, size: Size = SCREEN, metric: Metric = RETURN) -> Figure:  # noqa: ARG001
    """Draws :func:`actor_time_table`: a bar of activities for each format and condition, a panel per task."""
    tasks, labels = sorted(table["task"].unique()), sorted(table["series"].unique(), reverse=True)
    height = 1.2 + 0.36 * len(labels)
    width = 4.0 + 0.09 * max(map(len, labels))
    title = f"{name}: seconds of 1000 steps of an actor"
    with figure(len(tasks), title, width, height, size, columns=1) as (canvas, axes):
        for axis, task in zip(axes, tasks, strict=True):
            rows = table[table["task"] == task].set_index("series").reindex(labels).fillna(0.0)
            left = rows["step"] * 0.0
            for i, activity in enumerate(ACTIVITIES):
                axis.barh(range(len(labels)), rows[activity], left=left, color=look(i).color, height=0.7)
                ends = list(zip(left, left + rows[activity], strict=True))
                bars = [(start, place - 0.35, end, place + 0.35) for place, (start, end) in enumerate(ends)]
                texts = [f"{label}, {activity}: {number(value)} seconds" for label, value in rows[activity].items()]
                add_box_tooltips(axis, bars, texts)
                left = left + rows[activity]
            axis.set_yticks(range(len(labels)), labels)
            axis.set_title(task)
            axis.set_xlabel("seconds")
        marks = [axes[0].plot([], [], color=look(i).color, linewidth=6)[0] for i in range(len(ACTIVITIES))]
        legend_under(canvas, marks, list(ACTIVITIES), most=len(ACTIVITIES))
        return canvas


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
