"""Draws heat maps: scores over two settings that vary, such as format and accumulator, or over both widths."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.collections import QuadMesh
from matplotlib.colors import LogNorm, Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from roundoff.runs.metric import RETURN, Metric

from ..runs.conditions import MAPPINGS, value_text
from ..runs.experiment import Experiment
from ..tables.summary import ALL_TASKS, REFERENCE, records
from ..tables.wording import number, plural
from .drawing.axes import is_logarithmic, score_limits, sort_formats, titles
from .drawing.style import FAILED, SCREEN, Size, figure, wrap_names, write_names_under
from .drawing.tooltips import add_box_tooltips


def shades(metric: Metric, table: pd.DataFrame) -> Normalize:
    """Maps scores to shades: for agents over the range of their tasks, else over the existing scores."""
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
        scored = cell["return"] == cell["return"]  # not NaN
        shade = norm(cell["return"]) if scored else 1.0
        dark = (shade < 0.6 if bright else shade > 0.4) and scored  # the darkness of the cell under the text
        crashed = f"{cell['crashed']:.0f} x" if cell["crashed"] else ""
        failed = f"{cell['failed']:.0f} failed" if cell.get("failed", 0) > 0 else ""
        text = "\n".join(filter(None, [metric.shown(cell["return"]) if scored else "", crashed, failed]))
        if failed and not scored and not crashed:
            axis.add_patch(Rectangle((cell["column"], cell["row"]), 1, 1, **FAILED))
        axis.text(cell["column"] + 0.5, cell["row"] + 0.5, text, ha="center", va="center", fontsize="small",
                  color="white" if dark else "black")  # fmt: skip
        box = cell["column"], cell["row"], cell["column"] + 1, cell["row"] + 1
        mean = f"mean {number(cell['return'])}" if scored else "no score"
        crashes = f"{cell['crashed']:.0f} crashed" if cell["crashed"] else ""
        description = ", ".join(filter(None, [mean, plural(cell["n"], "run"), crashes, failed]))
        add_box_tooltips(
            axis, box, [f"{across_label} {across[cell['column']]}, {up_label} {up[cell['row']]}: {description}"]
        )
    write_names_under(axis, [place + 0.5 for place in range(len(across))], across)
    axis.set_yticks(np.arange(len(up)) + 0.5, wrap_names(up))
    axis.grid(visible=False)
    return drawn


_MOST = 12  # panels


def heatmap_table(experiment: Experiment, summary: pd.DataFrame, warnings: list[str]) -> pd.DataFrame | None:
    """Computes the mean of every cell; None unless two settings other than task and seed vary.

    The horizontal axis shows the format if it varies, else the first key that does; the vertical axis ``accumulate`` if
    it varies, else the key with the most values. Other varying keys have a panel for each combination.

    Args:
        experiment: the runs.
        summary: the summary of the same experiment.
        warnings: gets a line if there are more panels than are drawn.

    Columns: ``task``, ``condition`` (the other varying keys, in words), ``x`` and ``y`` (the two keys), ``across`` and
    ``up`` (their values), ``column`` and ``row`` (their places from 0), ``n``, ``crashed``, ``failed``, ``return`` (the
    mean score).
    """
    # Puts names or texts in place of policies and storages
    conditions = experiment.conditions
    summary = summary.assign(
        **{
            key: [conditions.name_of(key, value) or value_text(value) for value in summary[key]]
            for key in conditions.independent
            if key in MAPPINGS and not pd.api.types.is_numeric_dtype(summary[key])
        }
    )
    # Chooses the keys of both axes and of the panels
    keys = [key for key in ("format", *conditions.independent) if len(_places(experiment, summary, key)) > 1]
    if len(keys) < 2:
        return None
    x, *others = keys
    y = "accumulate" if "accumulate" in others else max(others, key=lambda key: len(_places(experiment, summary, key)))
    panel_keys = [key for key in others if key != y]
    across, up = _places(experiment, summary, x), _places(experiment, summary, y)
    rows = [
        {
            "task": row["task"],
            "condition": ", ".join(f"{key} {row[key]}" for key in panel_keys),
            "x": x,
            "y": y,
            "across": str(row[x]),
            "up": str(row[y]),
            "column": across[str(row[x])],
            "row": up[str(row[y])],
            "n": row["n"],
            "crashed": row["crashed"],
            "failed": row["failed"],
            "return": row["mean"],
        }
        for row in records(summary)
    ]
    table = pd.DataFrame(rows).sort_values(["condition", "row", "column"], kind="stable", ignore_index=True)
    # Limits the number of panels
    panels = dict.fromkeys(zip(table["condition"], table["task"], strict=True))
    if len(panels) > _MOST:
        warnings.append(f"heatmap: {len(panels)} panels would be too many; the first {_MOST} are drawn")
        kept = pd.MultiIndex.from_tuples(list(panels)[:_MOST])
        table = table[pd.MultiIndex.from_frame(table[["condition", "task"]]).isin(kept)]
    return table


def draw_heatmap(name: str, table: pd.DataFrame, size: Size = SCREEN, metric: Metric = RETURN) -> Figure:
    """Draws :func:`heatmap_table`: a panel per task and condition, a cell with its mean score, x for crashed runs."""
    across, up = _labels(table, "column", "across"), _labels(table, "row", "up")
    x, y = str(table["x"].iloc[0]), str(table["y"].iloc[0])
    panels = sorted(table.groupby(["condition", "task"], sort=False), key=lambda panel: panel[0][1] == ALL_TASKS)
    drawn = [
        Cells(cells, across, up, ", ".join(filter(None, [*titles([str(task)], metric), str(condition)])))
        for (condition, task), cells in panels
    ]
    # The panel grows with its cells, and with the names at its left, in inches.
    names = [name.split("\n") for name in wrap_names(up)]
    longest = max(len(line) for name in names for line in name)
    width = 1.2 + 0.62 * len(across) + 0.07 * longest
    height = 1.2 + max(0.45, 0.21 * max(map(len, names))) * len(up)
    return draw_heat_maps(
        drawn, f"{name}: {metric.name} over {x} and {y}", (x, y), shades(metric, table), metric,
        width=max(width, 3.2), height=max(height, 2.6), size=size,
    )  # fmt: skip


def _places(experiment: Experiment, summary: pd.DataFrame, key: str) -> dict[str, int]:
    """Numbers the values of a key: formats from wide to narrow, numbers in order, other values by the alphabet."""
    present = {str(value) for value in summary[key]}
    values: list[Any] = []
    if key == "format":
        values = sort_formats(experiment.formats)
    elif pd.api.types.is_numeric_dtype(summary[key]):
        values = sorted(set(summary[key].dropna()))
    names = [str(value) for value in values if str(value) in present]
    return {name: place for place, name in enumerate(dict.fromkeys([*names, *sorted(present)]))}


def _labels(table: pd.DataFrame, place: str, label: str) -> list[str]:
    """Returns the labels of the places from 0 on."""
    labels = dict(zip(table[place], table[label], strict=True))
    return [str(labels.get(i, "")) for i in range(int(table[place].max()) + 1)]


def plane_table(marks: pd.DataFrame) -> pd.DataFrame:
    """Selects the means of formats with both widths, and of fp32, for the heat map.

    Args:
        marks: from :func:`roundoff.analysis.figures.degradation.degradation_table`.

    Returns:
        Its rows of ``kind`` mean, with ``condition`` (in words; empty if none varies) for ``series``; none unless there
        are two widths of the exponent and two of the significand.
    """
    means = marks[marks["kind"] == "mean"].drop(columns=["kind", "seed", "status"])
    means = means.assign(condition=means["series"].map(lambda series: series.partition(", ")[2])).drop(columns="series")
    narrow = means[means["format"] != REFERENCE]
    plane = min(len(set(narrow["exponent_bits"])), len(set(narrow["significand_bits"]))) > 1
    return means if plane else means.head(0)


def draw_plane(name: str, table: pd.DataFrame, size: Size = SCREEN, metric: Metric = RETURN) -> Figure:
    """Draws :func:`plane_table`: a panel per task and condition, a cell per format with its mean, x for crashed runs.

    Only widths with runs have a place; formats without runs stay white. The mean of fp32, under the same or the only
    condition, is in the title.
    """
    pairs = sorted(dict.fromkeys(zip(table["condition"], table["task"], strict=True)), key=lambda p: p[1] == ALL_TASKS)
    groups = [(*pair, table[(table["condition"] == pair[0]) & (table["task"] == pair[1])]) for pair in pairs]
    references = table[table["format"] == REFERENCE]
    panels = [
        _plane(condition, task, cells, references[references["task"] == task], metric)
        for condition, task, cells in groups
        if set(cells["format"]) != {REFERENCE}
    ]
    title = f"{name}: {metric.name} over exponent and significand bits"
    labels = "significand bits m", "exponent bits e"
    return draw_heat_maps(panels, title, labels, shades(metric, table), metric, width=4.4, height=3.2, size=size)


def _plane(condition: str, task: str, rows_of_panel: pd.DataFrame, references: pd.DataFrame, metric: Metric) -> Cells:
    same_condition = rows_of_panel.loc[rows_of_panel["format"] == REFERENCE, "return"]
    reference = references["return"] if same_condition.empty and len(references) == 1 else same_condition
    title = [*titles([task], metric), condition, *(f"fp32: {metric.shown(value)}" for value in reference)]
    rows = rows_of_panel[rows_of_panel["format"] != REFERENCE]
    across, up = (sorted(set(rows[name].astype(int))) for name in ("significand_bits", "exponent_bits"))
    cells = rows.assign(column=rows["significand_bits"].map(across.index), row=rows["exponent_bits"].map(up.index))
    return Cells(cells, [*map(str, across)], [*map(str, up)], ", ".join(filter(None, title)))
