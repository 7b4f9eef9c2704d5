"""Makes the table of marks, a row for each mean and each run, and draws single runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from roundoff.runs.metric import Metric

from ...tables.summary import records
from .style import CRASH, points
from .tooltips import add_run_tooltips, run_tooltip

_MARKS = ["task", "series", "format", "exponent_bits", "significand_bits", "kind", "seed", "status", "n"]
_MARKS += ["crashed", "failed", "return", "ci_low", "ci_high"]
_EDGE = 0.02  # distance from the end of an axis, as a share of its length


def marks(
    summary: pd.DataFrame, runs: pd.DataFrame, series: Callable[[dict[str, Any]], str], extra: tuple[str, ...] = ()
) -> pd.DataFrame:
    """Makes a row of ``kind`` mean for each row of the summary, then one of ``kind`` run for each run, by seed.

    Means come first, in the summary's order, which becomes the order of the series.

    Args:
        summary: the means.
        runs: the ended runs.
        series: names the series that a row of either belongs to.
        extra: further columns to copy from both.
    """
    ordered = runs.sort_values([key for key in ("task", "format", "seed", "id") if key in runs])
    columns = [*_MARKS, *extra]
    rows = [
        {**{key: row.get(key) for key in columns}, "kind": kind, "series": series(row), "return": row[value]}
        for kind, table, value in (("mean", summary, "mean"), ("run", ordered, "return"))
        for row in records(table)
    ]
    return pd.DataFrame(rows, columns=columns)


def all_failed_rows(means: pd.DataFrame) -> pd.DataFrame:
    """Selects means over no run, because all runs failed; none in tables of older versions, which lack ``failed``."""
    return means[(means["n"] == 0) & (means["failed"] > 0)] if "failed" in means else means.head(0)


def place_side_by_side(count: int, center: float = 0.0, width: float = 0.16) -> np.ndarray:
    """Returns the places of the marks of a number of runs side by side."""
    return center + (np.linspace(-width, width, count) if count > 1 else np.zeros(count))


def draw_crashes(
    axis: Axes, places: np.ndarray, scores: np.ndarray, metric: Metric, *, up: bool = True, size: float = 7
) -> None:
    """Draws crashed runs as crosses: at their score, or at the worse edge of the axis if they lack one.

    Args:
        axis: to draw on.
        places: the places of the runs, on the axis perpendicular to the scores.
        scores: NaN for a missing score.
        metric: the metric of the scores.
        up: whether scores go up; else to the right.
        size: the size of the crosses.
    """
    style: dict[str, Any] = {"color": CRASH, "markersize": points(size), "markeredgewidth": points(1.6), "zorder": 4}
    scored = ~np.isnan(scores)
    edge = np.full((~scored).sum(), _EDGE if metric.sign > 0 else 1 - _EDGE)
    across = axis.get_xaxis_transform() if up else axis.get_yaxis_transform()
    for x, values, space in ((places[scored], scores[scored], axis.transData), (places[~scored], edge, across)):
        if len(x):
            axis.plot(*((x, values) if up else (values, x)), "x", transform=space, **style)


def add_score_tooltips(axis: Axes, runs: pd.DataFrame, places: np.ndarray, metric: Metric, *, up: bool = True) -> None:
    """Adds the tooltips of single runs where they are drawn: runs without a score at the worse edge of the axis.

    Args:
        axis: to write on.
        runs: rows of :func:`marks`.
        places: the places of the runs, on the axis perpendicular to the scores.
        metric: the metric of the scores.
        up: whether scores go up; else to the right.
    """
    scores = runs["return"].to_numpy(float)
    texts = np.array([run_tooltip(row, metric) for row in records(runs)])
    edge = _EDGE if metric.sign > 0 else 1 - _EDGE
    across = axis.get_xaxis_transform() if up else axis.get_yaxis_transform()
    for selected, space in ((~np.isnan(scores), axis.transData), (np.isnan(scores), across)):
        x, values = places[selected], np.nan_to_num(scores[selected], nan=edge)
        add_run_tooltips(axis, *((x, values) if up else (values, x)), list(texts[selected]), space)
