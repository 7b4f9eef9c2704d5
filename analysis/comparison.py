"""Conditions beside each other: baselines, selections of fixes, policies, at one glance."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from roundoff.analysis.style import CRASH, figure, look, return_limits
from roundoff.analysis.summary import ALL_TASKS, condition_label, conditions, ended

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from roundoff.analysis.store import Experiment


def draw_comparison(experiment: Experiment, summary: pd.DataFrame) -> Figure:
    """Draws a line of the page for each format and condition: mean, 95 % bootstrap interval, every run, crashes.

    A panel per task, and one for their mean if there are several; the best stands on top.

    Args:
        experiment: the runs; something besides task, format and seed varies.
        summary: of the same experiment, from :func:`roundoff.analysis.summary.summarize`.
    """
    keys = conditions(experiment.runs)
    tasks = [task for task in dict.fromkeys(summary["task"]) if task != ALL_TASKS]
    panels = [*tasks, ALL_TASKS] if ALL_TASKS in set(summary["task"]) else tasks
    means = summary.groupby(["format", *keys], dropna=False)["mean"].mean().sort_values()
    series = [dict(zip(["format", *keys], where, strict=True)) for where in means.index]
    labels = [f"{values['format']}, {condition_label(experiment.runs, values)}" for values in series]
    runs = ended(experiment.runs)
    width = 4.0 + 0.09 * max(map(len, labels)) / len(panels)
    with figure(len(panels), 1, width=width, height=1.2 + 0.36 * len(series)) as canvas:
        axes = list(canvas.subplots(1, len(panels), squeeze=False, sharey=True).flat)
        for axis, task in zip(axes, panels, strict=True):
            here = summary[summary["task"] == task]
            for height, values in enumerate(series):
                _line(axis, height, _where(here, values), _where(runs[runs["task"] == task], values))
            axis.set_title("mean over tasks" if task == ALL_TASKS else task, fontsize=11)
            axis.set_xlabel("return per episode")
            axis.set_xlim(return_limits(tasks if task == ALL_TASKS else [task], [*here["min"], *here["max"]]))
            axis.set_ylim(-0.6, len(series) - 0.4)
        axes[0].set_yticks(range(len(series)), labels)
        count = int(summary.loc[summary["task"] != ALL_TASKS, "n"].max())
        subtitle = f"mean, 95 % bootstrap interval, every run\n({count} seeds; x: crashed, scored 0)"
        canvas.suptitle(f"{experiment.name}: {subtitle}", fontsize=11)
        return canvas


def _line(axis: Axes, height: int, row: pd.DataFrame, runs: pd.DataFrame) -> None:
    color = look(0).color
    for _, scores in row.iterrows():
        axis.plot([scores["ci_low"], scores["ci_high"]], [height, height], color=color, linewidth=5, alpha=0.3)
        axis.plot(scores["mean"], height, "o", color=color, markersize=8)
    runs = runs.sort_values("seed")
    spread = np.linspace(-0.22, 0.22, len(runs)) if len(runs) > 1 else np.zeros(len(runs))
    crashed = (runs["status"] == "crashed").to_numpy()
    returns = runs["return"].to_numpy(float)
    axis.plot(returns[~crashed], height + spread[~crashed], "o", color="#444444", markersize=3.5, zorder=3)
    axis.plot(returns[crashed], height + spread[crashed], "x", color=CRASH, markersize=6, zorder=4)


def _where(table: pd.DataFrame, values: dict[str, object]) -> pd.DataFrame:
    for key, value in values.items():
        table = table[table[key] == value]
    return table
