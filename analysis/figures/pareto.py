"""Score against cost: what fewer bits buy, where the front is, and which points are as good as fp32."""

from __future__ import annotations

import math
from textwrap import fill
from typing import TYPE_CHECKING, Any

from roundoff.runs.metric import RETURN, Metric

from ..tables.pareto import pareto_table
from ..tables.summary import REFERENCE, records
from ..tables.wording import number, with_interval
from .drawing.axes import is_logarithmic, score_limits
from .drawing.legends import legend_under
from .drawing.style import SCREEN, Size, figure, letters, look, points
from .drawing.told import tell_means

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from ..runs.experiment import Experiment

_WIDE = 4.0  # of costs that are so many times apart the axis is logarithmic
_MOST_NAMES = 24  # that a panel has room for
_MARKERS = ("o", "D", "^", "v", "P", "X", "*", "<", ">")  # the square is fp32's
_GREY = "#444444"
_ABOVE = 0.12  # of the range, for the names of points
_SMALL = 7.6  # points, of these names


def pareto_figure_table(experiment: Experiment, kind: str) -> pd.DataFrame | None:
    """The table of a front, or None where no cost was counted, or fewer than two points have one."""
    if not experiment.costs:
        return None
    table = pareto_table(experiment, kind)
    return table if (table["cost"].notna() & table["mean"].notna()).sum() > 1 else None


def draw_pareto(name: str, table: pd.DataFrame, size: Size = SCREEN, metric: Metric = RETURN) -> Figure:
    """Draws a point for each format and condition over its cost, with the 95 % interval of its mean; a panel per task.

    A line of steps is the front: no point costs less and scores more than those on it. Points that were shown to be
    equivalent to fp32 are filled; a band shows the equivalence margin around the fp32 mean. Conditions differ in marks.

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
    title = f"{name}: {metric.name} against {label.partition(', by')[0]}"
    with figure(len(tasks), title, 6.4, 4.2, size) as (canvas, axes):
        for axis, task in zip(axes, tasks, strict=True):
            _panel(axis, table[table["task"] == task], marks, metric)
            room = letters((size.width or 6.4) / min(len(tasks), size.columns), size.font)
            axis.set_title(task)
            axis.set_xlabel(fill(label, room))
            axis.set_ylabel(metric.label)
        legend_under(canvas, *_legend(axes[0], float(table["margin"].iloc[0]), marks), most=2)
        return canvas


def _panel(axis: Axes, here: pd.DataFrame, marks: dict[str, str], metric: Metric) -> None:
    rows = records(here)
    costs = [row["cost"] for row in rows]
    if min(costs) > 0 and max(costs) / min(costs) > _WIDE:
        axis.set_xscale("log")
    if is_logarithmic(metric, here["mean"]):
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
    axis.set_ylim(score_limits(metric, here["task"], [*here["mean"], *here["ci_low"], *here["ci_high"]], _ABOVE))
    _write_names(axis, rows if len(rows) <= _MOST_NAMES else [])
    tell_means(axis, costs, [row["mean"] for row in rows], [_told(row) for row in rows])


def _write_names(axis: Axes, rows: list[dict[str, Any]]) -> None:
    """Writes the names of points slanted above them, or below a point if its name would run into another."""
    written: list[tuple[int, float, float, float]] = []
    for row in sorted(rows, key=lambda row: row["cost"]):
        x, y = axis.transData.transform((row["cost"], row["mean"])) * 72 / axis.figure.dpi
        sides = [side for side in (1, -1) if not any(_meet(side, x, y, *name) for name in written)]
        side = (sides or [1])[0]
        written.append((side, x, y, len(row["format"]) * points(_SMALL) * 0.6))
        axis.annotate(
            row["format"], (row["cost"], row["mean"]), xytext=(points(3), side * points(6)),
            textcoords="offset points", fontsize=points(_SMALL), rotation=side * 45, in_layout=False,
            va="bottom" if side > 0 else "top",
        )  # fmt: skip


def _meet(side: int, x: float, y: float, other: int, left: float, low: float, length: float) -> bool:
    """Whether a name on a side of a point, in points, would run into a written one: two parallel lines."""
    apart = abs((x - left) - side * (y - low)) / 2**0.5
    return side == other and apart < 1.2 * points(_SMALL) and abs(x - left) < length


def _style(row: dict[str, Any], marks: dict[str, str]) -> dict[str, Any]:
    if row["answer"] == "reference":
        return {"marker": "s", "color": _GREY}
    mark = {"marker": marks[row["condition"]]}
    if "equivalent" in str(row["answer"]):
        return {**mark, "color": look(2).color}
    return {**mark, "color": look(1).color, "markerfacecolor": "white"}


def _legend(axis: Axes, margin: float, marks: dict[str, str]) -> tuple[list[Artist], list[str]]:
    entries: list[tuple[dict[str, Any], str]] = [
        ({"marker": "s", "color": _GREY, "linestyle": "none"}, REFERENCE),
        ({"color": _GREY, "linewidth": points(1.2)}, "front: none costs less and scores more"),
        (
            {"marker": "o", "color": look(2).color, "linestyle": "none"},
            f"equivalent to fp32 within {100 * margin:.3g} %",
        ),
        (
            {"marker": "o", "color": look(1).color, "markerfacecolor": "white", "linestyle": "none"},
            "not shown to be equivalent",
        ),
    ]
    named = marks.items() if len(marks) > 1 else ()
    entries += [({"marker": mark, "color": "#999999", "linestyle": "none"}, condition) for condition, mark in named]
    drawn = [axis.plot([], [], **style)[0] for style, _ in entries]
    return list(drawn), [name for _, name in entries]


def _told(row: dict[str, Any]) -> str:
    mean = with_interval(row["mean"], row["ci_low"], row["ci_high"])
    where = "on the front" if row["front"] else "not on the front"
    return f"{row['series']}\ncost {number(row['cost'])}, mean {mean}\n{row['answer']}, {where}"
