"""Heat maps: a panel of cells, each with its mean score and the runs that crashed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.collections import QuadMesh
from matplotlib.colors import LogNorm, Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from roundoff.runs.metric import Metric

from ...tables.summary import records
from ...tables.wording import number, plural
from .axes import is_logarithmic, score_limits
from .style import FAILED, Size, figure, in_lines, names_under
from .tooltips import add_box_tooltips


def shades(metric: Metric, table: pd.DataFrame) -> Normalize:
    """Maps scores to shades: for agents over the range of their tasks, else over the scores there are."""
    scores = table["return"]
    if not metric.of_agents and scores.notna().any():
        low, high = float(scores.min()), float(scores.max())
    else:
        low, high = score_limits(metric, set(table["task"]), scores, margin=0)
    return LogNorm(low, high) if is_logarithmic(metric, scores) else Normalize(low, high)


class Cells(NamedTuple):
    """The content of one panel."""

    rows: pd.DataFrame
    """The cells: ``column`` and ``row`` (places from 0), ``return`` (NaN: no score), ``crashed``, and ``failed`` if it
    is known how many runs were."""
    across: Sequence[str]
    """Label under the columns."""
    up: Sequence[str]
    """Label next to the rows."""
    title: str


def draw_heat_maps(
    panels: Sequence[Cells],
    title: str,
    labels: tuple[str, str],
    norm: Normalize,
    metric: Metric,
    *,
    width: float,
    height: float,
    size: Size,
) -> Figure:
    """Draws panels next to one bar of shades; cells without a row stay white, cells with only failed runs are hatched.

    Args:
        panels: at least one.
        title: the title of the figure.
        labels: the labels of the horizontal and the vertical axis.
        norm: from :func:`shades`.
        metric: the metric of the scores. The best are bright.
        width: the width of a panel on the screen, in inches.
        height: the height of a panel on the screen, in inches.
        size: the size of the figure.
    """
    with figure(len(panels), title, width, height, size) as (canvas, axes):
        for axis, cells in zip(axes, panels, strict=False):
            drawn = _draw(axis, cells, labels, norm, metric)
            axis.set_title(cells.title)
            axis.set_xlabel(labels[0])
            axis.set_ylabel(labels[1])
        canvas.colorbar(drawn, ax=axes, label=f"mean {metric.label}", shrink=0.8)
        return canvas


def _draw(axis: Axes, cells: Cells, labels: tuple[str, str], norm: Normalize, metric: Metric) -> QuadMesh:
    (rows, across, up, _), (across_label, up_label) = cells, labels
    values = np.full((len(up), len(across)), np.nan)
    for cell in records(rows):
        values[cell["row"], cell["column"]] = cell["return"]
    bright = metric.sign > 0
    drawn = axis.pcolormesh(np.ma.masked_invalid(values), norm=norm, cmap="viridis" if bright else "viridis_r")
    for cell in records(rows):
        scored = cell["return"] == cell["return"]
        shade = norm(cell["return"]) if scored else 1.0
        dark = (shade < 0.6 if bright else shade > 0.4) and scored
        crashed = f"{cell['crashed']:.0f} x" if cell["crashed"] else ""
        failed = f"{cell['failed']:.0f} failed" if cell.get("failed", 0) > 0 else ""
        told = "\n".join(filter(None, [metric.shown(cell["return"]) if scored else "", crashed, failed]))
        if failed and not scored and not crashed:
            axis.add_patch(Rectangle((cell["column"], cell["row"]), 1, 1, **FAILED))
        axis.text(cell["column"] + 0.5, cell["row"] + 0.5, told, ha="center", va="center", fontsize="small",
                  color="white" if dark else "black")  # fmt: skip
        where = cell["column"], cell["row"], cell["column"] + 1, cell["row"] + 1
        mean = f"mean {number(cell['return'])}" if scored else "no score"
        crashes = f"{cell['crashed']:.0f} crashed" if cell["crashed"] else ""
        about = ", ".join(filter(None, [mean, plural(cell["n"], "run"), crashes, failed]))
        add_box_tooltips(
            axis, where, [f"{across_label} {across[cell['column']]}, {up_label} {up[cell['row']]}: {about}"]
        )
    names_under(axis, [place + 0.5 for place in range(len(across))], across)
    axis.set_yticks(np.arange(len(up)) + 0.5, in_lines(up))
    axis.grid(visible=False)
    return drawn
