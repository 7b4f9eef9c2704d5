"""Learning curves: return against environment steps, a line per format."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from scipy.optimize import isotonic_regression

from ..statistics.summary import REFERENCE as FP32
from .axes import return_limits
from .style import REFERENCE, SCREEN, Look, Size, figure, ordered_looks, points

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_LABEL_GAP = 0.045  # of the height of a panel, between labels at the ends of lines


def draw_curves(name: str, table: pd.DataFrame, size: Size = SCREEN) -> Figure:
    """Draws the mean return over seeds with its 95 % bootstrap interval, a panel per task and condition.

    A crashed run has a cross at 0 where it crashed.

    Args:
        name: of the experiment.
        table: from :func:`roundoff.analysis.figures.axes.curve_points`.
        size: of the figure.
    """
    panels = list(table.groupby("panel", sort=False))
    columns = min(size.columns, max(len(panels), 1))
    rows = -(-max(len(panels), 1) // columns)
    with figure(columns, rows, width=6.0, height=4.4, size=size) as canvas:
        axes = list(canvas.subplots(rows, columns, squeeze=False, sharey=True).flat)
        axes[0].set_ylim(return_limits(set(table["task"]), table["return"]))  # of all panels
        for axis, (title, group) in zip(axes, panels, strict=False):
            _panel(axis, group)
            axis.set_title(f"{title} ({group['seeds'].max()} seeds)")
        for axis in axes[len(panels) :]:
            axis.set_axis_off()
        if size.titled:
            crosses = "; a cross: crashed (scored 0)" if (table["kind"] == "crash").any() else ""
            canvas.suptitle(f"{name}: learning curves\nmean and 95 % bootstrap interval over seeds{crosses}")
        return canvas


def _panel(axis: Axes, table: pd.DataFrame) -> None:
    formats = list(dict.fromkeys(table["format"]))  # fp32, then from wide to narrow
    ends: list[tuple[float, float, str, Look]] = []
    looks = iter(ordered_looks(len(formats) - (FP32 in formats)))
    for name in formats:
        style = REFERENCE if name == FP32 else next(looks)
        here = table[table["format"] == name]
        line, crashes = here[here["kind"] == "mean"], here[here["kind"] == "crash"]
        if len(crashes):
            axis.plot(crashes["step"], crashes["return"], "x", color=style.color, markersize=points(8),
                      markeredgewidth=points(1.8), clip_on=False, zorder=3)  # fmt: skip
        if line.empty:  # crashed before the first evaluation, all of them: no line, but a name
            ends.append((0.0, float(crashes["step"].max()), str(name), style))
            continue
        steps, means = line["step"].to_numpy(float), line["return"].to_numpy(float)
        low, high = line["ci_low"].to_numpy(float), line["ci_high"].to_numpy(float)
        axis.fill_between(steps, low, high, color=style.color, alpha=0.15, linewidth=0)
        axis.plot(
            steps, means, color=style.color, linestyle=style.line, marker=style.marker, markersize=points(4.5),
            label=name,
        )  # fmt: skip
        ends.append((means[-1], steps[-1], str(name), style))
    axis.set_xlabel("environment steps")
    axis.set_ylabel("return per episode")
    axis.xaxis.set_major_formatter(lambda x, _: f"{x:,.0f}".replace(",", "\u2009"))
    if (table["kind"] == "crash").any() and table["step"].max() < table["steps"].max():
        axis.set_xlim(0, table["steps"].max())  # all of it: how much of their time runs had when they crashed
    if ends:
        _label_ends(axis, ends)


def _label_ends(axis: Axes, ends: list[tuple[float, float, str, Look]]) -> None:
    """Writes the names beside the ends of the lines, moved no further than needed not to overlap."""
    x = max(step for _, step, _, _ in ends)
    low, high = axis.get_ylim()
    ends = sorted(ends, key=lambda end: end[0])
    offsets = _LABEL_GAP * (high - low) * np.arange(len(ends))
    heights = isotonic_regression([mean for mean, _, _, _ in ends] - offsets).x + offsets
    for y, (_, _, name, style) in zip(heights, ends, strict=True):
        axis.annotate(name, (x, y), xytext=(points(8), 0), textcoords="offset points", va="center", color=style.color,
                      fontsize="small", annotation_clip=False)  # fmt: skip
