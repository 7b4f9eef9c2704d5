"""The degradation plot: return against significand bits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from roundoff.analysis.style import CRASH, REFERENCE, figure, look, return_limits
from roundoff.analysis.summary import ALL_TASKS, condition_label, conditions, ended, exponent_bits, significand_bits
from roundoff.analysis.summary import REFERENCE as FP32

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from roundoff.analysis.store import Experiment

_MAX_COLUMNS = 3


def draw_degradation(experiment: Experiment, summary: pd.DataFrame) -> Figure:
    """Draws mean return with its 95 % interval against significand bits, every run as a dot, crashes as crosses.

    A panel per task, and one for their mean if there are several. fp32 is a band across. A line for each
    width of the exponent and each condition (keys other than task, format and seed that vary).

    Args:
        experiment: the runs.
        summary: of the same experiment, from :func:`roundoff.analysis.summary.summarize`.
    """
    tasks = [task for task in dict.fromkeys(summary["task"]) if task != ALL_TASKS]
    panels = [*tasks, ALL_TASKS] if ALL_TASKS in set(summary["task"]) else tasks
    columns = min(_MAX_COLUMNS, len(panels))
    rows = -(-len(panels) // columns)
    runs = ended(experiment.runs)
    series = list(_series(summary, experiment.runs))
    with figure(columns, rows) as canvas:
        axes = list(canvas.subplots(rows, columns, squeeze=False, sharey=True).flat)
        axes[0].set_ylim(return_limits(tasks, [*summary["min"], *summary["max"]]))  # of all panels
        for axis, task in zip(axes, panels, strict=False):
            _panel(axis, task, summary, runs, series)
        for axis in axes[len(panels) :]:
            axis.set_axis_off()
        _legend(canvas, axes[0], series)
        canvas.suptitle(f"{experiment.name}: return against significand bits", fontsize=13)
        return canvas


def _series(summary: pd.DataFrame, runs: pd.DataFrame) -> Iterator[tuple[str, dict[str, Any]]]:
    """Label and distinguishing columns of every line."""
    keys = conditions(runs)
    narrow = summary[(summary["format"] != FP32) & summary["significand_bits"].notna()]
    for where in narrow[["exponent_bits", *keys]].drop_duplicates().itertuples(index=False):
        values = dict(zip(["exponent_bits", *keys], where, strict=True))
        label = f"e{values['exponent_bits']:.0f}mX"
        yield f"{label}, {condition_label(runs, values)}" if keys else label, values


def _where(table: pd.DataFrame, values: dict[str, Any]) -> pd.DataFrame:
    for key, value in values.items():
        table = table[table[key] == value]
    return table


def _panel(
    axis: Axes, task: str, summary: pd.DataFrame, runs: pd.DataFrame, series: list[tuple[str, dict[str, Any]]]
) -> None:
    here = summary[summary["task"] == task]
    seeds = here["n"].max() if task != ALL_TASKS else None
    for _, row in here[here["format"] == FP32].iterrows():
        axis.axhspan(row["ci_low"], row["ci_high"], color=REFERENCE.color, alpha=0.18, linewidth=0)
        axis.axhline(row["mean"], color=REFERENCE.color, linestyle=REFERENCE.line, linewidth=1.4)
    bits: set[int] = set()
    for number, (_, values) in enumerate(series):
        style = look(number)
        line = _where(here[here["format"] != FP32], values).sort_values("significand_bits")
        x = line["significand_bits"].to_numpy(float)
        bits |= set(x.astype(int))
        axis.fill_between(
            x,
            line["ci_low"].to_numpy(float),
            line["ci_high"].to_numpy(float),
            color=style.color,
            alpha=0.2,
            linewidth=0,
        )
        axis.plot(x, line["mean"], color=style.color, linestyle=style.line, marker=style.marker, markersize=7)
        offset = min(0.12, 0.7 / len(series)) * (number - (len(series) - 1) / 2)
        _dots(axis, _runs_of(runs, task, values), style.color, offset)
    axis.set_title("mean over tasks" if task == ALL_TASKS else f"{task} ({seeds:.0f} seeds)", fontsize=11)
    axis.set_xlabel("significand bits m")
    axis.set_ylabel("return per episode")
    if bits:
        axis.set_xticks(sorted(bits))
        axis.set_xlim(min(bits) - 0.6, max(bits) + 0.6)


def _runs_of(runs: pd.DataFrame, task: str, values: dict[str, Any]) -> pd.DataFrame:
    conditions_here = {key: value for key, value in values.items() if key != "exponent_bits"}
    chosen = _where(runs[(runs["task"] == task) & (runs["format"] != FP32)], conditions_here)
    result: pd.DataFrame = chosen[chosen["format"].map(exponent_bits) == values["exponent_bits"]]
    return result


def _dots(axis: Axes, runs: pd.DataFrame, color: str, offset: float) -> None:
    """Every run, beside its mean; where seeds stand says nothing."""
    for name, group in runs.groupby("format"):
        spread = np.linspace(-0.16, 0.16, len(group)) if len(group) > 1 else np.zeros(1)
        x = significand_bits(str(name)) + spread + offset
        crashed = (group.sort_values("seed")["status"] == "crashed").to_numpy()
        y = group.sort_values("seed")["return"].to_numpy(float)
        axis.plot(x[~crashed], y[~crashed], "o", color=color, markersize=4, alpha=0.75, markeredgecolor="white",
                  markeredgewidth=0.5, zorder=3)  # fmt: skip
        axis.plot(x[crashed], y[crashed], "x", color=CRASH, markersize=7, markeredgewidth=1.6, zorder=4)


def _legend(canvas: Figure, axis: Axes, series: list[tuple[str, dict[str, Any]]]) -> None:
    """One legend for all panels, under them: every kind of mark once."""
    entries: list[tuple[Any, str]] = []
    for number, (label, _) in enumerate(series):
        style = look(number)
        entries.append(
            (
                axis.plot([], [], color=style.color, linestyle=style.line, marker=style.marker, markersize=7)[0],
                f"{label}: mean, 95 % bootstrap interval",
            )
        )
    entries += [
        (axis.plot([], [], color=REFERENCE.color, linestyle=REFERENCE.line)[0], "fp32: mean, 95 % interval"),
        (axis.plot([], [], "o", color="#888888", markersize=4)[0], "one run"),
        (axis.plot([], [], "x", color=CRASH, markersize=7, markeredgewidth=1.6)[0], "crashed (scored 0)"),
    ]
    handles, labels = zip(*entries, strict=True)
    canvas.legend(handles, labels, loc="outside lower center", ncols=1 if len(series) > 2 else 2, fontsize=10)
