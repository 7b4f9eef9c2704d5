"""Draws learning curves: score against steps, a line for each format, or for each value of another setting."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy.optimize import isotonic_regression

from roundoff.runs.metric import RETURN, Metric

from ..runs.conditions import PLAIN, is_less_telling, without_determined
from ..runs.experiment import Experiment
from ..statistics.intervals import bootstrap_intervals, generator_for
from ..tables.summary import REFERENCE as FP32
from ..tables.wording import plural, tick
from .drawing.axes import is_logarithmic, limits_by_task, sort_formats, titles
from .drawing.style import REFERENCE, SCREEN, Look, Size, figure, legend_under, ordered_looks, points, takes_half
from .drawing.tooltips import add_line_tooltips, add_run_tooltips

_MOST = 200  # rows of a line
_GAP = 0.045  # of the height of a panel, between names
_FIT = int(1 / _GAP)
_LONGEST_LABEL = 60  # characters of a name that a panel has room for beside its lines

End = tuple[float, float, str, Look]
"""The end of a line: height, place across, name, look."""
_MOST_SHARED = 6  # lines of a panel at most, if conditions share it
_MARKED = 30  # points of a line with a marker, about


def curves_table(experiment: Experiment, across: str = "format") -> pd.DataFrame:
    """Computes learning curves: a row of ``kind`` mean per task, condition, format and step, and one for each crash.

    Args:
        experiment: the runs.
        across: the key with a line for each of its values: the format, or a numeric setting. A panel then has one
            task, one format, and one value of each setting that ``across`` does not determine.

    Columns: ``task``, ``panel`` (the task and condition, in words; only the task where formats settle conditions, or
    there are few enough of both to share it), ``seeds`` (of the panel: of runs that were evaluated or crashed),
    ``steps`` (how many the panel's longest run was to have), ``format`` (or the setting), ``line`` (its name: the
    format, or the setting, and the condition where the format has several in the panel), ``kind`` (mean or crash),
    ``step``, ``n`` (runs evaluated there; a crashed run counts as its score from its crash on, if it has one),
    ``return`` (mean score over them), ``ci_low``, ``ci_high`` (95 %, bootstrap over runs). A crash has its ``step``
    and, as ``return``, its score.

    Of programs that log more often than 200 times, a row summarizes several consecutive records: the mean
    of each run over them, and the last of their steps.
    """
    metric = experiment.metric
    runs, keys = _lines(experiment) if across == "format" else _lines_across(experiment, across)
    rows: list[dict[str, Any]] = []
    curves = experiment.curves.drop_duplicates(["id", "step"], keep="last")
    evaluated = set(curves["id"])
    for condition, group in runs.groupby(["task", *keys], dropna=False):
        distinguishing = [(key, value) for key, value in zip(keys, condition[1:], strict=True) if value != PLAIN]
        words = [str(value) if key in ("format", "condition") else f"{key} {value}" for key, value in distinguishing]
        panel = ", ".join([str(condition[0]), *words])
        shown = group[group["id"].isin(evaluated) | (group["status"] == "crashed")]
        seeds = shown["seed"].nunique() if "seed" in group else len(shown)
        steps = group["steps"].map(_length).max() if "steps" in group and metric.of_agents else np.nan
        values = set(group[across].dropna())
        names = sort_formats(name for name in experiment.formats if name in values)
        order = names if across == "format" else sorted(values)
        lines = [(value, line) for value in order for line in sorted(set(group.loc[group[across] == value, "line"]))]
        for value, name in lines:
            members = group[group["line"] == name]
            table = _scores_by_step(members, curves, metric)
            band = bootstrap_intervals(table.to_numpy(float).T, generator_for(name), replicates=2000)
            fields = {"task": condition[0], "panel": panel, "seeds": seeds, "steps": steps, across: value, "line": name}
            counts, means = table.count(axis=1), table.mean(axis=1)
            for step, count, mean, (low, high) in zip(table.index, counts, means, band, strict=True):
                point = {"n": count, "return": mean, "ci_low": low, "ci_high": high}
                rows.append({**fields, "kind": "mean", "step": step, **point})
            score = np.nan if metric.crash is None else metric.crash
            crashes = sorted(members.loc[members["status"] == "crashed", "crash_step"].dropna())
            rows += [{**fields, "kind": "crash", "step": int(step), "n": 1, "return": score} for step in crashes]
    columns = ["task", "panel", "seeds", "steps", across, "line", "kind", "step", "n", "return", "ci_low", "ci_high"]
    return pd.DataFrame(rows, columns=columns)


def draw_curves(name: str, table: pd.DataFrame, size: Size = SCREEN, metric: Metric = RETURN) -> Figure:
    """Draws :func:`curves_table`: means over seeds with 95 % bootstrap intervals, a panel per task and condition.

    A crashed run has a cross where it crashed: at its score, or at the edge of the panel if it lacks one.
    """
    panels = list(table.groupby("panel", sort=False))
    crosses = f"; a cross: crashed ({metric.scored})" if (table["kind"] == "crash").any() else ""
    title = f"{name}: learning curves\nmean and 95 % bootstrap interval over seeds{crosses}"
    limits, tasks = limits_by_task(metric, table), list(dict.fromkeys(table["task"]))
    task_titles = dict(zip(tasks, titles(tasks, metric), strict=True))
    shared = len(set(limits.values())) < 2
    with figure(len(panels), title, width=6.0, height=4.4, size=size, sharey=shared) as (canvas, axes):
        if is_logarithmic(metric, table["return"]):
            axes[0].set_yscale("log")
        room = True
        for axis, (panel, group) in zip(axes, panels, strict=False):
            axis.set_ylim(limits[group["task"].iloc[0]])
            room = _draw_lines_of(axis, group, metric, size) and room
            task = group["task"].iloc[0]
            words = ", ".join(filter(None, [task_titles[task], str(panel).removeprefix(task).removeprefix(", ")]))
            axis.set_title(f"{words} ({plural(group['seeds'].max(), 'seed')})")
        if not room:
            lines = {line.get_label(): line for axis in axes for line in axis.get_legend_handles_labels()[0]}
            legend_under(canvas, list(lines.values()), [str(name) for name in lines])
        return canvas


def _lines(experiment: Experiment) -> tuple[pd.DataFrame, list[str]]:
    """Returns the runs with the name of their line, and the keys that distinguish panels besides the task."""
    conditions, runs = experiment.conditions, experiment.runs.copy()
    settings: list[dict[str, Any]] = runs[["format", *conditions.keys]].to_dict("records")  # type: ignore[assignment]
    runs["condition"] = [conditions.label(row) for row in settings]
    pairs = runs.drop_duplicates(["format", "condition"])
    repeated = pairs["format"].duplicated(keep=False)
    if len(pairs) > _MOST_SHARED and repeated.any():
        return runs.assign(line=runs["format"].astype(str)), ["condition"]
    ambiguous = set(pairs.loc[repeated, "format"])
    lines = [conditions.series(row) if row["format"] in ambiguous else str(row["format"]) for row in settings]
    return runs.assign(line=lines), []


def _lines_across(experiment: Experiment, across: str) -> tuple[pd.DataFrame, list[str]]:
    """Returns the runs with a line for each value of a setting, and the settings that distinguish panels."""
    runs, keys = experiment.runs, [key for key in experiment.conditions.keys if key != across]
    # Chooses keys that determine all others together with ``across``; less telling keys only if necessary.
    less_telling = [key for key in keys if is_less_telling(runs[key])]
    candidates = [*less_telling, *(key for key in keys if key not in less_telling)]
    lines = [f"{across} {value:g}" for value in runs[across]]
    return runs.assign(line=lines), ["format", *without_determined(runs, keys, candidates, [across])]


def _draw_lines_of(axis: Axes, table: pd.DataFrame, metric: Metric, size: Size) -> bool:
    """Draws a panel; returns whether the names of its lines are written next to them."""
    labels = list(dict.fromkeys(table["line"]))  # fp32, then from wide to narrow; or numbers, the smallest first
    ends: list[tuple[float, float, str, Look]] = []
    looks = iter(ordered_looks(len(labels) - (FP32 in labels)))
    for label in labels:
        style = REFERENCE if label == FP32 else next(looks)
        rows = table[table["line"] == label]
        line, crashes = rows[rows["kind"] == "mean"], rows[rows["kind"] == "crash"]
        if len(crashes):
            edge = axis.get_ylim()[0 if metric.sign > 0 else 1]
            axis.plot(crashes["step"], crashes["return"].fillna(edge), "x", color=style.color, markersize=points(8),
                      markeredgewidth=points(1.8), clip_on=False, zorder=3)  # fmt: skip
            texts = [f"{label}: crashed at step {tick(step)}" for step in crashes["step"]]
            add_run_tooltips(axis, crashes["step"], crashes["return"].fillna(edge), texts)
        if line.empty:  # all crashed before the first evaluation: no line, but a name
            height = crashes["return"].fillna(edge).iloc[-1]
            ends.append((float(height), float(crashes["step"].max()), label, style))
            continue
        steps, means = line["step"].to_numpy(float), line["return"].to_numpy(float)
        low, high = line["ci_low"].to_numpy(float), line["ci_high"].to_numpy(float)
        axis.fill_between(steps, low, high, color=style.color, alpha=0.15, linewidth=0)
        axis.plot(
            steps, means, color=style.color, linestyle=style.line, marker=style.marker, markersize=points(4.5),
            label=label, markevery=max(1, len(line) // _MARKED),
        )  # fmt: skip
        add_line_tooltips(axis, label, "step", list(zip(steps, means, low, high, strict=True)))
        ends.append((means[-1], steps[-1], label, style))
    axis.set_xlabel(metric.steps)
    axis.set_ylabel(metric.label)
    axis.xaxis.set_major_formatter(lambda x, _: f"{x:,.0f}".replace(",", "\u2009"))
    if (table["kind"] == "crash").any() and table["step"].max() < table["steps"].max():
        axis.set_xlim(0, table["steps"].max())  # the planned steps, to show how early runs crashed
    beside = not takes_half(labels, size) and max(map(len, labels), default=0) <= _LONGEST_LABEL
    return beside and label_ends(axis, ends)


def _length(steps: Any) -> float:
    """Returns the planned steps of a run as a number; NaN if its config lacks a sensible value."""
    return float(steps) if isinstance(steps, int | float) and abs(steps) < 1e15 else np.nan


def _scores_by_step(runs: pd.DataFrame, curves: pd.DataFrame, metric: Metric) -> pd.DataFrame:
    """Scores by step (rows) and run (columns), NaN where a run was not evaluated."""
    runs = runs.sort_values("id")
    evaluations = curves[curves["id"].isin(runs["id"])]
    table = evaluations.pivot_table(index="step", columns="id", values="return").reindex(columns=runs["id"])
    crashed = table.index.to_numpy()[:, None] >= runs["crash_step"].where(runs["status"] == "crashed").to_numpy(float)
    table = table.mask(crashed, np.nan if metric.crash is None else metric.crash).dropna(how="all")
    return table if metric.of_agents else thin(table)


def thin(table: pd.DataFrame, most: int = _MOST) -> pd.DataFrame:
    """Averages consecutive rows, so that few enough remain; each gets the last of their steps.

    Args:
        table: values by step.
        most: rows there may be.
    """
    if len(table) <= most:
        return table
    part = np.arange(len(table)) * most // len(table)
    means = table.groupby(part).mean()
    return means.set_axis(table.index.to_series().groupby(part).last())


def label_ends(axis: Axes, ends: Sequence[End]) -> bool:
    """Writes names next to the ends of lines, moved as little as possible so that they do not overlap.

    Args:
        axis: to write on; its limits and scale are final.
        ends: the ends of the lines.

    Returns:
        Whether there is room for the names; else nothing is written.
    """
    if not ends or len(ends) > _FIT:
        return not ends
    across = max(x for _, x, _, _ in ends)
    heights = axis.transAxes.inverted().transform(axis.transData.transform([(across, y) for y, *_ in ends]))[:, 1]
    order = np.argsort(heights, kind="stable")
    offsets = _GAP * np.arange(len(ends))
    places = isotonic_regression(heights[order] - offsets).x + offsets
    for place, i in zip(places, order, strict=True):
        *_, name, style = ends[i]
        axis.annotate(name, (across, place), xycoords=("data", "axes fraction"), xytext=(points(8), 0),
                      textcoords="offset points", va="center", color=style.color, fontsize="small",
                      annotation_clip=False)  # fmt: skip
    return True
