"""Where the numbers of a training run lie: exponent histograms per role over training, and what the format can hold."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from matplotlib.colors import LogNorm
from matplotlib.patheffects import withStroke

from ...formats import FloatFormat, Format
from ..statistics.summary import exponent_bits, significand_bits
from .style import SCREEN, Size, figure, points

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.collections import QuadMesh
    from matplotlib.figure import Figure

    from ..runs.experiment import Experiment

_ROLES = ("forward", "backward", "optimizer")
_LEAST = 1e-6  # share of the results of an interval below which a bin stays white


def exponents_over_time(experiment: Experiment) -> pd.DataFrame:
    """How results are spread over binary exponents during training, all observed runs of a format together.

    Columns: ``format``, ``role``, ``step``, ``exponent`` k, ``results`` in [2^k, 2^(k+1)) since the step before.
    """
    table = experiment.exponents.merge(experiment.runs[["id", "format"]], on="id")
    return table.groupby(["format", "role", "step", "exponent"], as_index=False).agg({"results": "sum"})


def draw_exponents(name: str, table: pd.DataFrame, size: Size = SCREEN) -> Figure:
    """Draws :func:`exponents_over_time`: a row per format and a column per role.

    Each column of pixels is one interval between evaluations, over all observed runs of the format; its shade is the
    share of the interval's results that are not zero. Lines mark the largest and the smallest normal number of the
    format, and its smallest subnormal one.
    """
    formats = sorted(table["format"].unique(), key=lambda name: (-exponent_bits(name), -significand_bits(name)))
    low, high = int(table["exponent"].min()) - 1, int(table["exponent"].max()) + 2
    panels = [(fmt, role) for fmt in formats for role in _ROLES]
    columns = min(len(_ROLES), size.columns)
    with figure(columns, len(panels) // columns, width=3.6, height=2.8, size=size) as canvas:
        axes = canvas.subplots(len(panels) // columns, columns, squeeze=False, sharex=True, sharey=True)
        drawn = None
        for axis, (fmt, role) in zip(axes.flat, panels, strict=True):
            here = table[table["format"] == fmt]
            drawn = _panel(axis, here[here["role"] == role], np.unique(here["step"]), low, high) or drawn
            _mark_range(axis, fmt)
            axis.set_title(f"{fmt}: {role}")
            axis.set_ylim(low, high)
        for row in axes:
            row[0].set_ylabel("exponent k of the magnitude")
        for axis in axes[-1]:
            axis.set_xlabel("environment steps")
        if drawn is not None:
            canvas.colorbar(drawn, ax=axes, label="share of results in [2^k, 2^(k+1))", shrink=0.8)
        if size.titled:
            canvas.suptitle(f"{name}: where results lie")
        return canvas


def _panel(axis: Axes, rows: pd.DataFrame, steps: np.ndarray, low: int, high: int) -> QuadMesh | None:
    if rows.empty:
        axis.text(0.5, 0.5, "no results", transform=axis.transAxes, ha="center", va="center")
        return None
    counts = rows.pivot_table(index="exponent", columns="step", values="results", aggfunc="sum", fill_value=0)
    numbers = counts.reindex(index=range(low, high), columns=steps, fill_value=0).to_numpy(float)
    shares = numbers / np.maximum(numbers.sum(axis=0), 1)
    edges = np.concatenate([[0.0], steps])
    return axis.pcolormesh(
        edges, np.arange(low, high + 1), np.ma.masked_less(shares, _LEAST), norm=LogNorm(_LEAST, 1), cmap="viridis_r"
    )


def _mark_range(axis: Axes, name: str) -> None:
    fmt = Format.parse(name)
    if not isinstance(fmt, FloatFormat):
        return
    lines = {
        "largest": (fmt.emax + 1, "-"),
        "smallest normal": (fmt.emin, "--"),
        "smallest": (float(np.log2(fmt.smallest_subnormal)), ":"),
    }
    for label, (height, line) in lines.items():
        axis.axhline(height, color="#000000", linewidth=points(1), linestyle=line)
        axis.text(
            0.99, height, label, transform=axis.get_yaxis_transform(), ha="right", va="bottom", fontsize="x-small",
            path_effects=[withStroke(linewidth=points(2), foreground="#ffffff")],
        )  # fmt: skip
