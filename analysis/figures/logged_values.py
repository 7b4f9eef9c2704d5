"""Draws values that runs log during training, such as loss scales: one panel per value."""

from __future__ import annotations

from itertools import zip_longest

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from roundoff.runs.metric import RETURN, Metric

from ...agents.config import Panel, drawn_values, panels
from ..runs.experiment import Experiment
from ..statistics.intervals import bootstrap_intervals, generator_for
from ..tables.summary import REFERENCE, records
from .curves import thin
from .drawing.axes import spans_decades, width_sort_key
from .drawing.style import REFERENCE as REFERENCE_LOOK
from .drawing.style import SCREEN, Look, Size, drawable, figure, legend_under, look, ordered_looks, points
from .drawing.tooltips import add_line_tooltips, without_intervals

_ABOUT = ("id", "step", "task", "format", "series")  # columns that are not logged values
_WIDEST = 4  # panels side by side on the screen
_MOST = 12
_FEW = 6  # most lines that are drawn for single runs
_FEWEST = 3  # fewest runs of which a mean is drawn
_WINDOWS = 60  # windows of steps in which the values of runs are averaged
_NORM = "_norm"  # suffix of the norms that observed runs log


def training_table(experiment: Experiment) -> pd.DataFrame | None:
    """Returns the logged values of episodes that algorithms want drawn; None if runs log nothing.

    Columns: ``id``, ``step``, the logged values (of an algorithm that names none, the first twelve), ``task``,
    ``format``, ``series``.

    Values of programs are all logged values except the metric, infinite if not finite. If one logs more often than 200
    times, a row is the summary of several consecutive records (the mean of each value, and the last step).
    """
    logged = experiment.training
    names = drawn_values(experiment.configs.values()) if experiment.metric.of_agents else []
    names = [name for name in names if name in logged]
    names = names or [str(name) for name in logged if name not in _ABOUT][:_MOST]
    if not names:
        return None
    if not experiment.metric.of_agents:
        parts = {run: thin(rows.set_index("step")[names]) for run, rows in logged.groupby("id")}
        logged = pd.concat(parts, names=["id", "step"]).reset_index()
    return _with_runs(experiment, logged, names)


def _with_runs(experiment: Experiment, logged: pd.DataFrame, names: list[str]) -> pd.DataFrame:
    """Selects logged values by name, and adds task, format and series of their runs."""
    series = [experiment.conditions.series(run) for run in records(experiment.runs)]
    run_columns = experiment.runs[["id", "task", "format"]].assign(series=series)
    return logged[["id", "step", *names]].merge(run_columns, on="id")


def norms_table(experiment: Experiment) -> pd.DataFrame | None:
    """Selects the norms that observed runs log, in the form of :func:`training_table`; None without any."""
    norms = [name for name in map(str, experiment.training) if name.endswith(_NORM)]
    return _with_runs(experiment, experiment.training, norms) if norms and experiment.metric.of_agents else None


def draw_training(name: str, table: pd.DataFrame, size: Size = SCREEN, metric: Metric = RETURN) -> Figure:
    """Draws :func:`training_table` or :func:`norms_table`: a row per task, a look for each series.

    A line per run; or, of a series with three runs or more where lines would be many, the mean over runs with its 95 %
    bootstrap interval, over 60 windows of steps. Values that are not finite leave gaps, and are in no mean.

    Args:
        name: the name of the experiment.
        table: from one of them.
        size: the size of the figure.
        metric: the metric of the runs: a program's values have their names for labels, and logarithmic axes if they
            are positive and span more than two decades.
    """
    tasks = sorted(table["task"].unique())
    looks = _looks(table, varied=bool((table["series"] != table["format"]).any()))
    values = [name for name in table.columns if name not in _ABOUT]
    columns = min(len(values), 2 * size.columns if size.width else _WIDEST)
    count = -(-len(values) // columns) * columns  # panels of a task, in full rows
    with figure(count * len(tasks), f"{name}: during training", 4.0, 3.4, size, columns=columns) as (canvas, axes):
        for number, task in enumerate(tasks):
            axes_of_task = axes[number * count : (number + 1) * count]
            for axis, value in zip_longest(axes_of_task, values):
                if value is None:
                    axis.set_axis_off()
                    continue
                rows = table[table["task"] == task]
                declared = _agent_panel(value) if metric.of_agents else None
                panel = declared or Panel(drawable(str(value)), log=spans_decades(rows[value]))
                logged = rows if metric.of_agents else rows.dropna(subset=value)  # some more often than others
                _draw_values(axis, logged, value, looks)
                axis.set_yscale("log" if panel.log else "linear")
                axis.set_title(task)
                axis.set_ylabel(panel.label)
                axis.set_xlabel(metric.steps)
        finite = set(table["series"][np.isfinite(table[values].to_numpy(float)).any(axis=1)].unique())
        looks = {series: looks[series] for series in looks if series in finite}
        marks = [axes[0].plot([], [], color=style.color, linestyle=style.line)[0] for style in looks.values()]
        legend_under(canvas, marks, list(looks), most=2 * columns)
        return canvas


def _looks(table: pd.DataFrame, *, varied: bool) -> dict[str, Look]:
    """Chooses the look of every series, fp32 first and narrow formats last."""
    order = table[["format", "series"]].drop_duplicates().sort_values("series")
    order = order.sort_values("format", key=lambda column: column.map(width_sort_key), kind="stable")
    narrow = [name for name in order["series"] if name != REFERENCE]
    looks = [look(i) for i in range(len(narrow))] if varied else ordered_looks(len(narrow))
    plain = {REFERENCE: REFERENCE_LOOK} if REFERENCE in set(order["series"]) else {}
    return plain | dict(zip(narrow, looks, strict=True))


def _agent_panel(value: str) -> Panel:
    """Returns the panel of a value that an algorithm, or an observed run, has logged."""
    if value.endswith(_NORM):
        return Panel(drawable(f"norm: {value.removesuffix(_NORM).replace('_', ' ')}"), log=True)
    return panels().get(value, Panel(drawable(value)))


def _draw_values(axis: Axes, table: pd.DataFrame, column: str, looks: dict[str, Look]) -> None:
    many = table["id"].nunique() > _FEW
    table = table.assign(**{column: table[column].replace([np.inf, -np.inf], np.nan)})
    for series, style in looks.items():
        runs = table[table["series"] == series]
        if many and runs["id"].nunique() >= _FEWEST:
            mean = _mean(runs, column, str(series))
            axis.fill_between(mean["step"], mean["low"], mean["high"], color=style.color, alpha=0.15, linewidth=0)
            axis.plot(mean["step"], mean["value"], color=style.color, linestyle=style.line, linewidth=points(1.3))
            add_line_tooltips(axis, series, "step", mean[["step", "value", "low", "high"]].to_numpy(float))
            continue
        for _, run in runs.groupby("id"):
            axis.plot(run["step"], run[column], color=style.color, linestyle=style.line, linewidth=points(1))
            add_line_tooltips(
                axis,
                f"{series}, {run['id'].iloc[0]}",
                "step",
                without_intervals(run["step"], run[column]),
                of_means=False,
            )


def _mean(runs: pd.DataFrame, column: str, series: str) -> pd.DataFrame:
    """Computes the mean over runs and its 95 % interval in windows of steps; NaN in a window without a number."""
    first, last = runs["step"].min(), runs["step"].max()
    window = np.ceil((runs["step"] - first) / ((last - first) or 1) * _WINDOWS).rename("window")
    steps = runs["step"].groupby(window).max()
    values = runs.pivot_table(index=window, columns="id", values=column, aggfunc="mean").reindex(steps.index)
    band = bootstrap_intervals(values.to_numpy(float).T, generator_for("logged", series, column), replicates=1000)
    return pd.DataFrame({"step": steps, "value": values.mean(axis=1), "low": band[:, 0], "high": band[:, 1]})
