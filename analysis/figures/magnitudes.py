"""Draws the magnitudes of the results of observed runs: by role over training, and of gradients at its end."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.collections import QuadMesh
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke

from roundoff.runs.metric import RETURN, Metric

from ...formats import FloatFormat
from ..runs.experiment import Experiment
from ..tables.summary import parsed, records
from .drawing.axes import sort_formats
from .drawing.style import SCREEN, Size, figure, legend_under, ordered_looks, points
from .drawing.tooltips import add_box_tooltips, add_mean_tooltips

ROLES = ("forward", "backward", "optimizer", "averages", "targets")
NETWORK_PREFIX = "gradients of "
"""Prefix of the name under which runs count the gradients of a network, without the loss scale."""
_LEAST = 1e-6  # share of the results of an interval below which a bin stays white


def exponents_table(experiment: Experiment) -> pd.DataFrame:
    """Returns the spread of a role's results over binary exponents during training, over all observed runs of a series.

    Columns: ``format``, ``series`` (the format, and the condition if there are several), ``role``, ``step``,
    ``exponent`` k, ``results`` in [2^k, 2^(k+1)) since the step before.
    """
    table = _with_series(experiment)
    table = table[table["role"].isin(ROLES)]
    return table.groupby(["format", "series", "role", "step", "exponent"], as_index=False).agg({"results": "sum"})


def magnitudes_table(experiment: Experiment) -> pd.DataFrame:
    """Returns the spread of results over binary exponents in the last interval of each observed format and condition.

    Columns: ``role`` (also ``gradients of critic`` and so on, of each network), ``format``, ``series`` (the format, and
    the condition if there are several), ``exponent`` k, ``results`` with a magnitude in [2^k, 2^(k+1)), of all runs of
    the series, ``share`` of all results of the role that are neither zero nor infinite.
    """
    table = _with_series(experiment)
    last = table[table["step"] == table.groupby("id")["step"].transform("max")]
    counts = last.groupby(["role", "format", "series", "exponent"], as_index=False)["results"].sum()
    counts = counts[counts["results"] > 0]
    counts["share"] = counts["results"] / counts.groupby(["role", "series"])["results"].transform("sum")
    places = {name: i for names in (sort_formats(experiment.formats), ROLES) for i, name in enumerate(names)}
    sorted_: pd.DataFrame = counts.sort_values(
        ["role", "format", "series", "exponent"],
        key=lambda column: column if column.name == "series" else column.map(lambda value: places.get(value, value)),
        ignore_index=True,
    )
    return sorted_


def gradients_table(experiment: Experiment) -> pd.DataFrame:
    """Selects rows of :func:`magnitudes_table`: the gradients of each network; for programs, the backward pass."""
    table = magnitudes_table(experiment)
    network_rows = table[table["role"].str.startswith(NETWORK_PREFIX)]
    return network_rows if len(network_rows) else table[table["role"] == "backward"]


def _with_series(experiment: Experiment) -> pd.DataFrame:
    """Adds the format and the series of each run to the exponents, to separate results of different conditions."""
    series = [experiment.conditions.series(row) for row in records(experiment.runs)]
    return experiment.exponents.merge(experiment.runs[["id", "format"]].assign(series=series), on="id")


def draw_exponents(name: str, table: pd.DataFrame, size: Size = SCREEN, metric: Metric = RETURN) -> Figure:
    """Draws :func:`exponents_table`: a row per series and a column per role that operations had.

    Each column of pixels is one interval between evaluations, over all observed runs of the series; its shade is the
    share of the interval's results that are not zero. Lines mark the largest and the smallest normal number of the
    format, and its smallest subnormal one.
    """
    pairs = table[["format", "series"]].drop_duplicates()
    series = [
        (fmt, x) for fmt in sort_formats(pairs["format"]) for x in sorted(pairs.loc[pairs["format"] == fmt, "series"])
    ]
    low, high = int(table["exponent"].min()) - 1, int(table["exponent"].max()) + 2
    roles = [role for role in ROLES if (table["role"] == role).any()]
    panels = [(fmt, label, role) for fmt, label in series for role in roles]
    columns = len(roles) if size.width is None else min(len(roles), size.columns)  # a journal's column is narrow
    with figure(
        len(panels), f"{name}: where results lie", 3.6, 2.8, size, columns=columns, sharex=True, sharey=True
    ) as (canvas, axes):
        drawn = None
        for axis, (fmt, label, role) in zip(axes, panels, strict=True):
            rows = table[table["series"] == label]
            drawn = (
                _histogram(axis, rows[rows["role"] == role], f"{label}: {role}", low, high, np.unique(rows["step"]))
                or drawn
            )
            _mark_range(axis, fmt)
            axis.set_title(f"{label}: {role}")
            axis.set_ylim(low, high)
        for axis in axes[::columns]:
            axis.set_ylabel("exponent k of the magnitude")
        for axis in axes[-columns:]:
            axis.set_xlabel(metric.steps)
        if drawn is not None:
            canvas.colorbar(drawn, ax=axes, label="share of results in [2^k, 2^(k+1))", shrink=0.8)
        return canvas


def draw_gradients(name: str, table: pd.DataFrame, size: Size = SCREEN, metric: Metric = RETURN) -> Figure:  # noqa: ARG001
    """Draws shares of results against their magnitude, both logarithmic: a panel per role, a line per series.

    Args:
        name: the name of the experiment.
        table: from :func:`magnitudes_table`; ``roundoff plot`` shows :func:`gradients_table`.
        size: the size of the figure.
        metric: the metric of the scores, which the figure does not show.

    Source:
        Low-precision SAC, Figure 6.
    """
    series, roles = list(dict.fromkeys(table["series"])), list(dict.fromkeys(table["role"]))
    has_only_gradients = roles == ["backward"] or all(role.startswith(NETWORK_PREFIX) for role in roles)
    subject = "gradients" if has_only_gradients else "magnitudes of results"
    with figure(len(roles), f"{name}: {subject}", size=size) as (canvas, axes):
        for axis, role in zip(axes, roles, strict=False):
            for name_of_line, style in zip(series, ordered_looks(len(series)), strict=True):
                rows = table[(table["series"] == name_of_line) & (table["role"] == role)].sort_values("exponent")
                if rows.empty:
                    continue
                axis.step(np.exp2(rows["exponent"]), rows["share"], where="post", color=style.color,
                          linestyle=style.line, linewidth=points(1.6))  # fmt: skip
                texts = [
                    f"{name_of_line}: {share:.2g} of results in [2^{k}, 2^{k + 1})"
                    for k, share in zip(rows["exponent"], rows["share"], strict=True)
                ]
                add_mean_tooltips(axis, np.exp2(rows["exponent"] + 0.5), rows["share"], texts)
            axis.set_xscale("log", base=2)
            axis.set_yscale("log")
            axis.set_title(role if len(roles) > 1 else "")
            axis.set_xlabel(f"magnitude of a {'gradient' if subject == 'gradients' else 'result'}")
            axis.set_ylabel("share of results in [2^k, 2^(k+1))")
        styles = ordered_looks(len(series))
        lines = [axes[0].plot([], [], color=x.color, linestyle=x.line, linewidth=points(1.6))[0] for x in styles]
        legend_under(canvas, lines, series)
        return canvas


def _histogram(axis: Axes, rows: pd.DataFrame, name: str, low: int, high: int, steps: np.ndarray) -> QuadMesh | None:
    if rows.empty:
        axis.text(0.5, 0.5, "no results", transform=axis.transAxes, ha="center", va="center")
        return None
    counts = rows.pivot_table(index="exponent", columns="step", values="results", aggfunc="sum", fill_value=0)
    numbers = counts.reindex(index=range(low, high), columns=steps, fill_value=0).to_numpy(float)
    shares = numbers / np.maximum(numbers.sum(axis=0), 1)
    edges = np.concatenate([[0.0], steps])  # counts of a step are of the interval that ends there
    columns = [(edges[i], 0, edges[i + 1], 1) for i in range(len(steps))]
    texts = [_spread_text(f"{name}, step {step}", column, low) for step, column in zip(steps, shares.T, strict=True)]
    add_box_tooltips(axis, columns, texts, axis.get_xaxis_transform())
    return axis.pcolormesh(
        edges, np.arange(low, high + 1), np.ma.masked_less(shares, _LEAST), norm=LogNorm(_LEAST, 1), cmap="viridis_r"
    )


def _spread_text(name: str, shares: np.ndarray, low: int) -> str:
    """Describes the magnitudes of the results of one interval; the first share belongs to [2^low, 2^(low+1))."""
    exponents = np.flatnonzero(shares >= _LEAST) + low
    if not len(exponents):
        return f"{name}: no results"
    median = int(np.searchsorted(np.cumsum(shares), 0.5)) + low
    return f"{name}: results from 2^{exponents[0]} to 2^{exponents[-1] + 1}, half of them below 2^{median + 1}"


def _mark_range(axis: Axes, name: str) -> None:
    fmt = parsed(name)
    if not isinstance(fmt, FloatFormat):
        return
    lines = {
        "largest": (fmt.emax + 1, "-"),  # values of the largest exponent end there
        "smallest normal": (fmt.emin, "--"),
        "smallest": (float(np.log2(fmt.smallest_subnormal)), ":"),
    }
    for label, (height, line) in lines.items():
        axis.axhline(height, color="#000000", linewidth=points(1), linestyle=line)
        axis.text(
            0.99, height, label, transform=axis.get_yaxis_transform(), ha="right", va="bottom", fontsize="x-small",
            clip_on=True,
            path_effects=[withStroke(linewidth=points(2), foreground="#ffffff")],
        )  # fmt: skip
