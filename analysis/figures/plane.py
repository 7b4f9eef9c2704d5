"""Return over the plane of exponent bits and significand bits, as a heat map."""

from __future__ import annotations

from typing import TYPE_CHECKING

from roundoff.runs.metric import RETURN, Metric

from ..tables.summary import ALL_TASKS, REFERENCE
from .drawing.axes import titles
from .drawing.cells import Cells, draw_heat_maps, shades
from .drawing.style import SCREEN, Size

if TYPE_CHECKING:
    import pandas as pd
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
    means = means.assign(condition=means["series"].map(lambda series: series.partition(", ")[2])).drop(columns="series")
    narrow = means[means["format"] != REFERENCE]
    plane = min(len(set(narrow["exponent_bits"])), len(set(narrow["significand_bits"]))) > 1
    return means if plane else means.head(0)


def draw_plane(name: str, table: pd.DataFrame, size: Size = SCREEN, metric: Metric = RETURN) -> Figure:
    """Draws :func:`plane_table`: a panel per task and condition, a cell per format with its mean, x for crashed runs.

    Widths that were run stand side by side; formats that were not stay white. The mean of fp32, under the same
    condition or the only one that there is, is in the title.
    """
    pairs = sorted(dict.fromkeys(zip(table["condition"], table["task"], strict=True)), key=lambda p: p[1] == ALL_TASKS)
    groups = [(*pair, table[(table["condition"] == pair[0]) & (table["task"] == pair[1])]) for pair in pairs]
    plain = table[table["format"] == REFERENCE]
    panels = [
        _panel(condition, task, here, plain[plain["task"] == task], metric)
        for condition, task, here in groups
        if set(here["format"]) != {REFERENCE}
    ]
    title = f"{name}: {metric.name} over exponent and significand bits"
    labels = "significand bits m", "exponent bits e"
    return draw_heat_maps(panels, title, labels, shades(metric, table), metric, width=4.4, height=3.2, size=size)


def _panel(condition: str, task: str, here: pd.DataFrame, plain: pd.DataFrame, metric: Metric) -> Cells:
    own = here.loc[here["format"] == REFERENCE, "return"]
    reference = plain["return"] if own.empty and len(plain) == 1 else own
    about = [*titles([task]), condition, *(f"fp32: {metric.shown(value)}" for value in reference)]
    rows = here[here["format"] != REFERENCE]
    across, up = (sorted(set(rows[name].astype(int))) for name in ("significand_bits", "exponent_bits"))
    cells = rows.assign(column=rows["significand_bits"].map(across.index), row=rows["exponent_bits"].map(up.index))
    return Cells(cells, [*map(str, across)], [*map(str, up)], ", ".join(filter(None, about)))
