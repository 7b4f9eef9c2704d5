"""Learning curves: return against environment steps, a line per format."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

import numpy as np
from scipy.optimize import isotonic_regression

from roundoff.analysis.statistics import bootstrap_interval
from roundoff.analysis.style import REFERENCE, Look, figure, ordered_looks, return_limits
from roundoff.analysis.summary import REFERENCE as FP32
from roundoff.analysis.summary import conditions, exponent_bits, significand_bits

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from roundoff.analysis.store import Experiment

_MAX_COLUMNS = 3
_LABEL_GAP = 0.045  # of the height of a panel, between labels at the ends of lines


def draw_curves(experiment: Experiment) -> Figure:
    """Draws the mean return over seeds with its 95 % bootstrap interval, a panel per task and condition.

    Runs that have not ended are drawn as far as they are. At each step the mean is over the runs that were evaluated
    there; a crashed run counts as 0 from its crash on, and has a cross at 0 where it crashed.
    """
    runs = experiment.runs
    keys = conditions(runs)
    panels = list(runs.groupby(["task", *keys], dropna=False))
    columns = min(_MAX_COLUMNS, len(panels))
    rows = -(-len(panels) // columns)
    with figure(columns, rows, width=6.0, height=4.4) as canvas:
        axes = list(canvas.subplots(rows, columns, squeeze=False, sharey=True).flat)
        here = experiment.curves[experiment.curves["id"].isin(runs["id"])]
        axes[0].set_ylim(return_limits(set(runs["task"]), here["return"]))  # of all panels
        for axis, (where, group) in zip(axes, panels, strict=False):
            _panel(axis, group, experiment.curves)
            names = [str(where[0]), *(f"{key} {value}" for key, value in zip(keys, where[1:], strict=True))]
            axis.set_title(f"{', '.join(names)} ({group['seed'].nunique()} seeds)", fontsize=11)
        for axis in axes[len(panels) :]:
            axis.set_axis_off()
        crosses = "; a cross: crashed (scored 0)" if (runs["status"] == "crashed").any() else ""
        canvas.suptitle(
            f"{experiment.name}: learning curves\nmean and 95 % bootstrap interval over seeds{crosses}", fontsize=12
        )
        return canvas


def _panel(axis: Axes, runs: pd.DataFrame, curves: pd.DataFrame) -> None:
    formats = sorted(runs["format"].unique(), key=lambda f: (f != FP32, -exponent_bits(f), -significand_bits(f)))
    ends: list[tuple[float, float, str, Look]] = []
    looks = iter(ordered_looks(len(formats) - (FP32 in formats)))
    for name in formats:
        style = REFERENCE if name == FP32 else next(looks)
        mine = runs[runs["format"] == name]
        crashes = mine.loc[mine["status"] == "crashed", "crash_step"].to_numpy(float)
        if len(crashes):
            axis.plot(crashes, np.zeros_like(crashes), color=style.color, marker="x", linestyle="none", markersize=8,
                      markeredgewidth=1.8, zorder=3)  # fmt: skip
        table = _on_grid(mine, curves)
        if table.empty:
            if len(crashes):  # before the first evaluation, all of them: no line, but a name
                ends.append((0.0, crashes.max(), str(name), style))
            continue
        generator = np.random.default_rng(zlib.crc32(str(name).encode()))
        scores = [row.dropna().to_numpy(float) for _, row in table.iterrows()]
        bands = np.array([bootstrap_interval([values], generator, replicates=2000) for values in scores])
        steps, means = table.index.to_numpy(float), np.array([values.mean() for values in scores])
        axis.fill_between(steps, bands[:, 0], bands[:, 1], color=style.color, alpha=0.15, linewidth=0)
        axis.plot(
            steps, means, color=style.color, linestyle=style.line, marker=style.marker, markersize=4.5, label=name
        )
        ends.append((means[-1], steps[-1], str(name), style))
    axis.set_xlabel("environment steps")
    axis.set_ylabel("return per episode")
    axis.xaxis.set_major_formatter(lambda x, _: f"{x:,.0f}".replace(",", "\u2009"))
    if not axis.collections and "steps" in runs:  # no evaluation to say how long runs are
        axis.set_xlim(0, float(runs["steps"].max()))
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
        axis.annotate(name, (x, y), xytext=(8, 0), textcoords="offset points", va="center", color=style.color,
                      fontsize=10, annotation_clip=False)  # fmt: skip


def _on_grid(runs: pd.DataFrame, curves: pd.DataFrame) -> pd.DataFrame:
    """Returns by step (rows) and run (columns), NaN where a run was not evaluated."""
    here = curves[curves["id"].isin(runs["id"])].drop_duplicates(["id", "step"], keep="last")
    table = here.pivot_table(index="step", columns="id", values="return").reindex(columns=sorted(runs["id"]))
    crashed = runs[runs["status"] == "crashed"]
    for identity, step in zip(crashed["id"], crashed["crash_step"], strict=True):
        table.loc[table.index >= step, identity] = 0.0
    return table.dropna(how="all").sort_index()
