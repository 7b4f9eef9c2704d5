"""Draws the comparison of conditions: baselines, selections of fixes, policies."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from roundoff.runs.metric import RETURN, Metric

from ..runs.experiment import Experiment
from ..tables.summary import ALL_TASKS, ended, records
from ..tables.wording import plural
from .drawing.axes import is_logarithmic, score_limits, titles
from .drawing.marks import add_score_tooltips, all_failed_rows, draw_crashes, marks, place_side_by_side
from .drawing.style import FAILED, SCREEN, Size, figure, letters, look, points, takes_half, wrap
from .drawing.tooltips import add_box_tooltips, add_mean_tooltips, mean_tooltip


def comparison_table(experiment: Experiment, summary: pd.DataFrame) -> pd.DataFrame:
    """The marks of the comparison of conditions: columns and kinds as of the degradation plot, worst first.

    ``series`` is the format and condition, in words.
    """
    keys = experiment.conditions.keys

    series = experiment.conditions.series
    table = marks(summary, ended(experiment.runs), series)
    means = summary.groupby(["format", *keys], dropna=False)["mean"].mean() * experiment.metric.sign
    means = means.sort_values(na_position="first")
    names = [series(row) for row in records(means.reset_index())]
    order = {name: i for i, name in enumerate(names)}
    return table.sort_values("series", key=lambda column: column.map(order), kind="stable", ignore_index=True)


def draw_comparison(name: str, table: pd.DataFrame, size: Size = SCREEN, metric: Metric = RETURN) -> Figure:
    """Draws :func:`comparison_table`: rows of formats and conditions, with mean, 95 % interval, runs and crashes.

    A panel per task, and one for their mean if there are several; best at the top. A row is hatched if all runs failed.
    """
    # The size of the figure; long names are written into the panels, above their rows
    tasks = sorted(dict.fromkeys(table["task"]), key=lambda task: task == ALL_TASKS)
    labels = list(dict.fromkeys(table["series"]))
    columns = len(tasks) if size.columns > 1 else 1
    width = 4.0 + 0.09 * max(map(len, labels)) / columns
    above = takes_half(labels, size)
    room = letters(size.width or width, size.font)
    lines = max(wrap(label, room).count("\n") + 1 for label in labels) if above else 0
    height = 1.2 + (0.36 + 0.24 * lines) * len(labels)
    count = int(table.loc[table["task"] != ALL_TASKS, "n"].max())
    crashed = f"; x: crashed, {metric.scored}" if (table["status"] == "crashed").any() else ""
    title = f"{name}: {metric.name}\nmean, 95 % bootstrap interval, every run ({plural(count, 'seed')}{crashed})"
    with figure(len(tasks), title, width, height, size, columns=columns, sharey=True) as (canvas, axes):
        for axis, task, title_of_panel in zip(axes, tasks, titles(tasks, metric), strict=True):
            rows = table[table["task"] == task]
            for place, series in enumerate(labels):
                _draw_row(axis, place, rows[rows["series"] == series], metric)
            axis.set_title(title_of_panel)
            axis.set_xlabel(metric.label)
            if is_logarithmic(metric, rows["return"]):
                axis.set_xscale("log")
            axis.set_xlim(score_limits(metric, tasks if task == ALL_TASKS else [task], rows["return"]))
            axis.set_ylim(-0.6, len(labels) - 0.4)
        names = labels
        if size.width and len(set(table["format"])) == 1:  # saves space: the caption names the format
            names = [label.partition(", ")[2] for label in labels]
        for axis in axes[::columns]:
            axis.set_yticks(range(len(labels)), [""] * len(labels) if above else names)
            for place, label in enumerate(names if above else []):
                transform = axis.get_yaxis_transform()
                axis.text(0.01, place + 0.25, wrap(label, room), transform=transform, fontsize="small", in_layout=False)
        return canvas


def _draw_row(axis: Axes, height: int, rows: pd.DataFrame, metric: Metric) -> None:
    color = look(0).color
    if len(all_failed_rows(rows[rows["kind"] == "mean"])):
        axis.axhspan(height - 0.3, height + 0.3, **FAILED)
        name = rows["series"].iloc[0]
        add_box_tooltips(
            axis, [0, height - 0.3, 1, height + 0.3], [f"{name}: all runs failed"], axis.get_yaxis_transform()
        )
    means = rows[rows["kind"] == "mean"]
    for scores in records(means):
        ends = [scores["ci_low"], scores["ci_high"]]
        axis.plot(ends, [height, height], color=color, linewidth=points(5), alpha=0.3)
        axis.plot(scores["return"], height, "o", color=color, markersize=points(8))
    runs = rows[rows["kind"] == "run"]
    places = place_side_by_side(len(runs), height, 0.22)
    crashed = (runs["status"] == "crashed").to_numpy(bool)
    returns = runs["return"].to_numpy(float)
    axis.plot(returns[~crashed], places[~crashed], "o", color="#444444", markersize=points(3.5), zorder=3)
    draw_crashes(axis, places[crashed], returns[crashed], metric, up=False, size=6)
    add_score_tooltips(axis, runs, places, metric, up=False)
    add_mean_tooltips(axis, means["return"], [height] * len(means), [mean_tooltip(row) for row in records(means)])
