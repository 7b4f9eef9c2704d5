"""Learning curves: return against environment steps, a line per format."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from scipy.optimize import isotonic_regression

from ..statistics.intervals import bootstrap_interval, generator_for
from ..statistics.summary import REFERENCE as FP32
from .axes import from_wide_to_narrow, return_limits
from .style import REFERENCE, SCREEN, Look, Size, figure, ordered_looks, points

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from ..runs.experiment import Experiment

_LABEL_GAP = 0.045  # of the height of a panel, between labels at the ends of lines


def curves_table(experiment: Experiment) -> pd.DataFrame:
    """The learning curves: a row of ``kind`` mean per task, condition, format and step, and one for each crash.

    Columns: ``task``, ``panel`` (the task and condition, in words), ``seeds`` and ``steps`` (of the panel; how many
    its longest run was to have), ``format``, ``kind`` (mean or crash), ``step``, ``n`` (runs evaluated there; a
    crashed run counts as 0 from its crash on), ``return`` (mean over them), ``ci_low``, ``ci_high`` (95 %, bootstrap
    over runs). A crash has its ``step`` and the ``return`` 0.
    """
    runs = experiment.runs
    keys = experiment.conditions.keys
    rows: list[dict[str, Any]] = []
    curves = dict(list(experiment.curves.drop_duplicates(["id", "step"], keep="last").groupby("id")))
    for where, group in runs.groupby(["task", *keys], dropna=False):
        panel = ", ".join([str(where[0]), *(f"{key} {value}" for key, value in zip(keys, where[1:], strict=True))])
        seeds = group["seed"].nunique() if "seed" in group else len(group)
        steps = group["steps"].map(_length).max() if "steps" in group else np.nan
        for name in sorted(group["format"].unique(), key=from_wide_to_narrow):
            mine = group[group["format"] == name]
            table = _on_grid(mine, curves)
            generator = generator_for(name)
            about = {"task": where[0], "panel": panel, "seeds": seeds, "steps": steps, "format": name}
            for step, row in table.iterrows():
                scores = row.dropna().to_numpy(float)
                low, high = bootstrap_interval([scores], generator, replicates=2000)
                point = {"n": scores.size, "return": scores.mean(), "ci_low": low, "ci_high": high}
                rows.append({**about, "kind": "mean", "step": step, **point})
            crashes = sorted(mine.loc[mine["status"] == "crashed", "crash_step"].dropna())
            rows += [{**about, "kind": "crash", "step": int(step), "n": 1, "return": 0.0} for step in crashes]
    columns = ["task", "panel", "seeds", "steps", "format", "kind", "step", "n", "return", "ci_low", "ci_high"]
    return pd.DataFrame(rows, columns=columns)


def draw_curves(name: str, table: pd.DataFrame, size: Size = SCREEN) -> Figure:
    """Draws the mean return over seeds with its 95 % bootstrap interval, a panel per task and condition.

    A crashed run has a cross at 0 where it crashed.

    Args:
        name: of the experiment.
        table: from :func:`curves_table`.
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


def _length(steps: Any) -> float:
    """As planned; NaN if the config of a run says nothing sensible."""
    return float(steps) if isinstance(steps, int | float) and abs(steps) < 1e15 else np.nan


def _on_grid(runs: pd.DataFrame, curves: dict[Any, pd.DataFrame]) -> pd.DataFrame:
    """Returns by step (rows) and run (columns), NaN where a run was not evaluated."""
    runs = runs.sort_values("id")
    columns = {
        run: curves[run].set_index("step")["return"] if run in curves else pd.Series(dtype=float) for run in runs["id"]
    }
    table = pd.DataFrame(columns).sort_index()
    crashed = runs[runs["status"] == "crashed"]
    for identity, step in zip(crashed["id"], crashed["crash_step"], strict=True):
        table.loc[table.index >= step, identity] = 0.0
    return table.dropna(how="all")
