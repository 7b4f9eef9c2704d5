"""Return over the plane of exponent bits and significand bits, as a heat map."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..statistics.summary import ALL_TASKS, REFERENCE, records
from .axes import return_limits, titles
from .style import SCREEN, Size, figure

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.collections import QuadMesh
    from matplotlib.figure import Figure


def plane_table(marks: pd.DataFrame) -> pd.DataFrame:
    """The means of formats with both widths, and of fp32, for the heat map.

    Args:
        marks: from :func:`roundoff.analysis.figures.degradation.degradation_table`.

    Returns:
        Its rows of ``kind`` mean, with ``condition`` (in words; empty if none varies) for ``series``; none unless there
        are two widths of the exponent and two of the significand.
    """
    means = marks[marks["kind"] == "mean"].drop(columns=["kind", "seed", "status"])
    means = means.assign(condition=means["series"].str.partition(", ")[2]).drop(columns="series")
    narrow = means[means["format"] != REFERENCE]
    plane = min(len(set(narrow["exponent_bits"])), len(set(narrow["significand_bits"]))) > 1
    return means if plane else means.head(0)


def draw_plane(name: str, table: pd.DataFrame, size: Size = SCREEN) -> Figure:
    """Draws :func:`plane_table`: a panel per task and condition, a cell per format with its mean, x for crashed runs.

    Widths that were run stand side by side; formats that were not stay white. The mean of fp32 is in the title.
    """
    pairs = sorted(dict.fromkeys(zip(table["condition"], table["task"], strict=True)), key=lambda p: p[1] == ALL_TASKS)
    groups = [(*pair, table[(table["condition"] == pair[0]) & (table["task"] == pair[1])]) for pair in pairs]
    columns = min(size.columns, len(groups))
    rows = -(-len(groups) // columns)
    limits = return_limits(set(table["task"]), table["return"], margin=0)
    with figure(columns, rows, width=4.4, height=3.2, size=size) as canvas:
        axes = list(canvas.subplots(rows, columns, squeeze=False).flat)
        drawn = None
        for axis, (condition, task, here) in zip(axes, groups, strict=False):
            drawn = _panel(axis, here[here["format"] != REFERENCE], limits)
            reference = here.loc[here["format"] == REFERENCE, "return"]
            (title,) = titles([task])
            about = [title, condition, *(f"fp32: {value:.0f}" for value in reference)]
            axis.set_title(", ".join(filter(None, about)))
        for axis in axes[len(groups) :]:
            axis.set_axis_off()
        if drawn is not None:
            canvas.colorbar(drawn, ax=axes, label="mean return per episode", shrink=0.8)
        if size.titled:
            canvas.suptitle(f"{name}: return over exponent and significand bits")
        return canvas


def _panel(axis: Axes, rows: pd.DataFrame, limits: tuple[float, float]) -> QuadMesh:
    across, up = sorted(set(rows["significand_bits"].astype(int))), sorted(set(rows["exponent_bits"].astype(int)))
    values = np.full((len(up), len(across)), np.nan)
    for row in records(rows):
        values[up.index(row["exponent_bits"]), across.index(row["significand_bits"])] = row["return"]
    drawn = axis.pcolormesh(np.ma.masked_invalid(values), vmin=limits[0], vmax=limits[1], cmap="viridis")
    for row in records(rows):
        dark = row["return"] < limits[0] + 0.6 * (limits[1] - limits[0])
        crashed = f"\n{row['crashed']:.0f} x" if row["crashed"] else ""
        x, y = across.index(row["significand_bits"]) + 0.5, up.index(row["exponent_bits"]) + 0.5
        color = "white" if dark else "black"
        axis.text(x, y, f"{row['return']:.0f}{crashed}", ha="center", va="center", fontsize="small", color=color)
    axis.set_xticks(np.arange(len(across)) + 0.5, map(str, across))
    axis.set_yticks(np.arange(len(up)) + 0.5, map(str, up))
    axis.grid(visible=False)
    axis.set_xlabel("significand bits m")
    axis.set_ylabel("exponent bits e")
    return drawn
