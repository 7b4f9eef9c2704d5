"""Draws scores against costs, the Pareto front, and the points that are equivalent to fp32."""

from __future__ import annotations

import math
from textwrap import fill
from typing import Any

import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from roundoff.runs.metric import RETURN, Metric

from ..runs.experiment import Experiment
from ..tables.pareto import pareto_table
from ..tables.summary import REFERENCE, records
from ..tables.wording import number, with_interval
from .drawing.axes import is_logarithmic, score_limits, titles
from .drawing.style import SCREEN, Size, figure, legend_under, letters, look, points
from .drawing.tooltips import add_mean_tooltips

_WIDE = 16.0  # ratio of costs from which their axis is logarithmic
_MOST_NAMES = 24  # names that a panel has room for
_MARKERS = ("o", "D", "^", "v", "P", "X", "*", "<", ">")  # the square is fp32's
_GREY = "#444444"
_MB = 1e6  # bytes
_ABOVE = 0.12  # margin for the names of points, as a share of the range
_SMALL = 7.6  # size of these names in points


def pareto_figure_table(experiment: Experiment, kind: str) -> pd.DataFrame | None:
    """Makes the table of a front; None if no cost was counted, or fewer than two points have one."""
    if not experiment.costs:
        return None
    table = pareto_table(experiment, kind)
    return table if (table["cost"].notna() & table["mean"].notna()).sum() > 1 else None


def draw_pareto(name: str, table: pd.DataFrame, size: Size = SCREEN, metric: Metric = RETURN) -> Figure:
    """Draws a point for each format and condition over its cost, with the 95 % interval of its mean; a panel per task.

    A line of steps is the front: no point costs less and scores more than those on it. Points that were shown to be
    equivalent to fp32 are filled; a band shows the equivalence margin around the fp32 mean. Conditions differ in marks.
    Bytes are drawn in MB if they are many. An axis of costs begins at 0 unless it is logarithmic.

    Args:
        name: the name of the experiment.
        table: from :func:`~..tables.pareto.pareto_table`.
        size: the size of the figure.
        metric: the metric of the scores.
    """
    table = table[table["cost"].notna() & table["mean"].notna()]
    table = table.assign(condition=table["series"].map(lambda series: series.partition(", ")[2]))
    tasks = sorted(table["task"].unique())
    conditions = sorted(table.loc[table["format"] != REFERENCE, "condition"].unique())
    marks = {condition: _MARKERS[i % len(_MARKERS)] for i, condition in enumerate(conditions)}
    label = str(table["label"].iloc[0])
    if label.startswith("bytes") and table["cost"].max() > _MB:
        table, label = table.assign(cost=table["cost"] / _MB), label.replace("bytes", "MB", 1)
    title = f"{name}: {metric.name} against {label.partition(', by')[0]}"
    with figure(len(tasks), title, 6.4, 4.2, size) as (canvas, axes):
        for axis, task, title_of_panel in zip(axes, tasks, titles(tasks, metric), strict=True):
            _draw_costs(axis, table[table["task"] == task], marks, metric)
            room = letters((size.width or 6.4) / min(len(tasks), size.columns), size.font)
            axis.set_title(title_of_panel)
            axis.set_xlabel(fill(label, room))
            axis.set_ylabel(metric.label)
        legend_under(canvas, *_legend(axes[0], float(table["margin"].iloc[0]), marks), most=2)
        return canvas


def _draw_costs(axis: Axes, table: pd.DataFrame, marks: dict[str, str], metric: Metric) -> None:
    rows = records(table)
    costs = [row["cost"] for row in rows]
    if min(costs) > 0 and max(costs) / min(costs) > _WIDE:
        axis.set_xscale("log")
    else:
        axis.set_xlim(0, 1.06 * max(costs))
    if is_logarithmic(metric, table["mean"]):
        axis.set_yscale("log")
    for row in rows:
        if row["format"] == REFERENCE:
            ends = [row["mean"] * (1 - row["margin"]), row["mean"] * (1 + row["margin"])]
            axis.axhspan(min(ends), max(ends), color=look(2).color, alpha=0.12, linewidth=0)
    front = sorted((row["cost"], row["mean"]) for row in rows if row["front"])
    if front:
        axis.step(*zip(*front, strict=True), where="post", color=_GREY, linewidth=points(1.2), zorder=1)
    for row in rows:
        style = _style(row, marks)
        if not math.isnan(row["ci_low"]):
            ends = [row["ci_low"], row["ci_high"]]
            axis.plot([row["cost"]] * 2, ends, color=style["color"], linewidth=points(2.5), alpha=0.35)
        axis.plot([row["cost"]], [row["mean"]], linestyle="none", markersize=points(8), **style)
    axis.set_ylim(score_limits(metric, table["task"], [*table["mean"], *table["ci_low"], *table["ci_high"]], _ABOVE))
    _write_names(axis, rows if len(rows) <= _MOST_NAMES else [])
    add_mean_tooltips(axis, costs, [row["mean"] for row in rows], [_tooltip(row) for row in rows])


def _write_names(axis: Axes, rows: list[dict[str, Any]]) -> None:
    """Writes the names of points above or below them, without overlaps; a line leads to a name further away."""
    size = points(_SMALL)
    places = [axis.transData.transform((row["cost"], row["mean"])) * 72 / axis.figure.dpi for row in rows]
    taken = [(x, y, size, size) for x, y in places]  # centers, widths and heights
    for row, (x, y) in sorted(zip(rows, places, strict=True), key=lambda pair: pair[1][0]):
        width = len(row["format"]) * size * 0.65
        heights = [side * step * size * 1.3 for step in range(1, 9) for side in (1, -1)]
        free = (dy for dy in heights if not any(_overlap((x, y + dy, width, size), other) for other in taken))
        dy = next(free, heights[0])
        taken.append((x, y + dy, width, size))
        axis.annotate(
            row["format"], (row["cost"], row["mean"]), xytext=(0, dy), textcoords="offset points",
            fontsize=size, ha="center", va="center", in_layout=False,
            arrowprops={"arrowstyle": "-", "color": _GREY, "lw": points(0.5)} if abs(dy) > 2 * size else None,
        )  # fmt: skip


def _overlap(first: tuple[float, ...], second: tuple[float, ...]) -> bool:
    """Whether two boxes, each a center, a width and a height in points, overlap."""
    return all(2 * abs(first[i] - second[i]) < first[i + 2] + second[i + 2] for i in (0, 1))


def _style(row: dict[str, Any], marks: dict[str, str]) -> dict[str, Any]:
    if row["answer"] == "reference":
        return {"marker": "s", "color": _GREY}
    mark = {"marker": marks[row["condition"]]}
    if "equivalent" in str(row["answer"]):
        return {**mark, "color": look(2).color}
    return {**mark, "color": look(1).color, "markerfacecolor": "white"}


def _legend(axis: Axes, margin: float, marks: dict[str, str]) -> tuple[list[Artist], list[str]]:
    within, point, green = (f"within {100 * margin:.3g} %", {"marker": "o", "linestyle": "none"}, look(2).color)
    entries: list[tuple[dict[str, Any], str]] = [
        ({**point, "marker": "s", "color": _GREY}, REFERENCE),
        ({"color": _GREY, "linewidth": points(1.2)}, "Pareto front: none costs less and scores more"),
        ({**point, "color": green}, f"equivalent to fp32 {within}"),
        ({**point, "color": look(1).color, "markerfacecolor": "white"}, "not shown to be equivalent"),
        ({"color": green, "alpha": 0.12, "linewidth": points(8), "solid_capstyle": "butt"}, f"{within} of fp32's mean"),
    ]
    for condition, mark in marks.items() if len(marks) > 1 else ():
        entries.append(({"marker": mark, "color": "#999999", "linestyle": "none"}, condition))
    drawn = [axis.plot([], [], **style)[0] for style, _ in entries]
    return list(drawn), [name for _, name in entries]


def _tooltip(row: dict[str, Any]) -> str:
    mean = with_interval(row["mean"], row["ci_low"], row["ci_high"])
    position = "on the Pareto front" if row["front"] else "not on the Pareto front"
    return f"{row['series']}\ncost {number(row['cost'])}, mean {mean}\n{row['answer']}, {position}"
