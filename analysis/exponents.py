"""Where the numbers of a training run lie: exponent histograms per role over training, and what the format can hold."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from matplotlib.colors import LogNorm
from matplotlib.patheffects import withStroke

from roundoff.analysis.style import figure
from roundoff.analysis.summary import exponent_bits, significand_bits
from roundoff.formats import FloatFormat, Format

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.collections import QuadMesh
    from matplotlib.figure import Figure

    from roundoff.analysis.store import Experiment

_ROLES = ("forward", "backward", "optimizer")
_LEAST = 1e-6  # share of the results of an interval below which a bin stays white


def draw_exponents(experiment: Experiment) -> Figure:
    """Draws how the results of operations are spread over binary exponents, a row per format and a column per role.

    Each column of pixels is one interval between evaluations, over all observed runs of the format; its shade is the
    share of the interval's results that are not zero. Lines mark the largest and the smallest normal number of the
    format, and its smallest subnormal one. (Low-precision SAC, Figure 6, is the column ``backward``.)
    """
    table = experiment.exponents.merge(experiment.runs[["id", "format"]], on="id")
    formats = sorted(table["format"].unique(), key=lambda name: (-exponent_bits(name), -significand_bits(name)))
    low, high = int(table["exponent"].min()) - 1, int(table["exponent"].max()) + 2
    with figure(len(_ROLES), len(formats), width=3.6, height=2.8) as canvas:
        axes = canvas.subplots(len(formats), len(_ROLES), squeeze=False, sharex=True, sharey=True)
        drawn = None
        for name, row in zip(formats, axes, strict=True):
            for role, axis in zip(_ROLES, row, strict=True):
                here = table[table["format"] == name]
                drawn = _panel(axis, here[here["role"] == role], np.unique(here["step"]), low, high) or drawn
                _mark_range(axis, name)
                axis.set_title(f"{name}: {role}", fontsize=11)
                axis.set_ylim(low, high)
            row[0].set_ylabel("exponent k of the magnitude")
        for axis in axes[-1]:
            axis.set_xlabel("environment steps")
        if drawn is not None:
            canvas.colorbar(drawn, ax=axes, label="share of results in [2^k, 2^(k+1))", shrink=0.8)
        canvas.suptitle(f"{experiment.name}: where results lie", fontsize=12)
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
        axis.axhline(height, color="#000000", linewidth=1, linestyle=line)
        axis.text(
            0.99, height, label, transform=axis.get_yaxis_transform(), ha="right", va="bottom", fontsize=8,
            path_effects=[withStroke(linewidth=2, foreground="#ffffff")],
        )  # fmt: skip
