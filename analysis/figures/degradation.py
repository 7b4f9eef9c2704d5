"""The degradation plot: return against significand bits, or against exponent bits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from ..statistics.summary import ALL_TASKS, ended, exponent_bits, records, significand_bits
from ..statistics.summary import REFERENCE as FP32
from .axes import return_limits, titles
from .style import CRASH, REFERENCE, SCREEN, Size, figure, look, points

if TYPE_CHECKING:
    from collections.abc import Callable

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from ..runs.experiment import Experiment

_WORDS = {"significand_bits": "significand bits m", "exponent_bits": "exponent bits e"}


_MARKS = ["task", "series", "format", "exponent_bits", "significand_bits", "kind", "seed", "status", "n", "crashed"]
_MARKS += ["return", "ci_low", "ci_high"]


def degradation_table(experiment: Experiment, summary: pd.DataFrame, across: str = "significand_bits") -> pd.DataFrame:
    """The marks of the degradation plot: a row of ``kind`` mean for each row of the summary, and one for each run.

    Args:
        experiment: the runs.
        summary: of the same experiment, from :func:`roundoff.analysis.statistics.summary.summarize`.
        across: the column that varies along a series: ``significand_bits``, or ``exponent_bits``.

    Columns: ``task``, ``series`` (the other width, and condition; or fp32), ``format``,
    ``exponent_bits``, ``significand_bits``, ``kind`` (mean or run), ``seed`` and ``status`` of runs, ``n`` and
    ``crashed`` of means, ``return``, ``ci_low`` and ``ci_high`` of means. Formats that are no floats are left out.
    """

    def series(row: dict[str, Any]) -> str:
        width = (
            f"e{row['exponent_bits']:.0f}mX" if across == "significand_bits" else f"eXm{row['significand_bits']:.0f}"
        )
        return experiment.conditions.series(row if row["format"] == FP32 else row | {"format": width})

    runs = ended(experiment.runs)
    runs = runs.assign(
        exponent_bits=runs["format"].map(exponent_bits), significand_bits=runs["format"].map(significand_bits)
    )
    return marks(summary[summary["significand_bits"].notna()], runs[runs["significand_bits"].notna()], series)


def marks(summary: pd.DataFrame, runs: pd.DataFrame, series: Callable[[dict[str, Any]], str]) -> pd.DataFrame:
    """A row of ``kind`` mean for each row of the summary, then one of ``kind`` run for each run, seed by seed.

    Means come first, in the summary's order, which becomes the order of the series.

    Args:
        summary: the means.
        runs: those that have ended.
        series: names the series that a row of either belongs to.
    """
    ordered = runs.sort_values([key for key in ("task", "format", "seed", "id") if key in runs])
    rows = [
        {**{key: row.get(key) for key in _MARKS}, "kind": kind, "series": series(row), "return": row[value]}
        for kind, table, value in (("mean", summary, "mean"), ("run", ordered, "return"))
        for row in records(table)
    ]
    return pd.DataFrame(rows, columns=_MARKS)


def draw_degradation(name: str, table: pd.DataFrame, size: Size = SCREEN, x: str = "significand_bits") -> Figure:
    """Draws mean return with its 95 % interval against bits, every run as a dot, crashes as crosses.

    A panel per task, and one for their mean if there are several. fp32 is a band across. A line for each
    ``series``: width of the other part of the number, and condition (keys other than task, format and seed that vary).

    Args:
        name: of the experiment.
        table: from :func:`degradation_table`.
        size: of the figure.
        x: the column across: ``significand_bits``, or ``exponent_bits``.
    """
    tasks = sorted(dict.fromkeys(table["task"]), key=lambda task: task == ALL_TASKS)
    columns = min(size.columns, max(len(tasks), 1))
    rows = -(-max(len(tasks), 1) // columns)
    lines = [series for series in dict.fromkeys(table["series"]) if not _is_reference(series)]
    with figure(columns, rows, size=size) as canvas:
        axes = list(canvas.subplots(rows, columns, squeeze=False, sharey=True).flat)
        axes[0].set_ylim(return_limits(tasks, table["return"]))  # of all panels
        for axis, task, title in zip(axes, tasks, titles(tasks), strict=False):
            _panel(axis, table[table["task"] == task], lines, x)
            seeds = table.loc[table["task"] == task, "n"].max()
            axis.set_title(title if task == ALL_TASKS else f"{title} ({seeds:.0f} seeds)")
        for axis in axes[len(tasks) :]:
            axis.set_axis_off()
        _legend(canvas, axes[0], lines, size)
        if size.titled:
            canvas.suptitle(f"{name}: return against {_WORDS[x][:-2]}")
        return canvas


def _is_reference(series: str) -> bool:
    return series.partition(",")[0] == FP32


def _panel(axis: Axes, here: pd.DataFrame, lines: list[str], x: str) -> None:
    means = here[here["kind"] == "mean"]
    for _, row in means[means["series"].map(_is_reference)].iterrows():
        axis.axhspan(row["ci_low"], row["ci_high"], color=REFERENCE.color, alpha=0.18, linewidth=0)
        axis.axhline(row["return"], color=REFERENCE.color, linestyle=REFERENCE.line, linewidth=points(1.4))
    bits: set[int] = set()
    for number, series in enumerate(lines):
        style = look(number)
        line = means[means["series"] == series].sort_values(x)
        at = line[x].to_numpy(float)
        bits |= set(at.astype(int))
        low, high = line["ci_low"].to_numpy(float), line["ci_high"].to_numpy(float)
        axis.fill_between(at, low, high, color=style.color, alpha=0.2, linewidth=0)
        axis.plot(
            at, line["return"], color=style.color, linestyle=style.line, marker=style.marker, markersize=points(7)
        )
        offset = min(0.12, 0.7 / len(lines)) * (number - (len(lines) - 1) / 2)
        _dots(axis, here[(here["kind"] == "run") & (here["series"] == series)], style.color, offset, x)
    axis.set_xlabel(_WORDS[x])
    axis.set_ylabel("return per episode")
    if bits:
        axis.set_xticks(sorted(bits))
        axis.set_xlim(min(bits) - 0.6, max(bits) + 0.6)


def _dots(axis: Axes, runs: pd.DataFrame, color: str, offset: float, x: str) -> None:
    """Every run, beside its mean; where seeds stand says nothing."""
    for at in sorted(set(runs[x].astype(float))):
        group = runs[runs[x] == at]
        spread = np.linspace(-0.16, 0.16, len(group)) if len(group) > 1 else np.zeros(1)
        places = at + spread + offset
        crashed = (group["status"] == "crashed").to_numpy()
        y = group["return"].to_numpy(float)
        axis.plot(places[~crashed], y[~crashed], "o", color=color, markersize=points(4), alpha=0.75,
                  markeredgecolor="white", markeredgewidth=points(0.5), zorder=3)  # fmt: skip
        axis.plot(places[crashed], y[crashed], "x", color=CRASH, markersize=points(7), markeredgewidth=points(1.6),
                  zorder=4)  # fmt: skip


def _legend(canvas: Figure, axis: Axes, lines: list[str], size: Size) -> None:
    """One legend for all panels, under them: every kind of mark once."""
    entries: list[tuple[Any, str]] = []
    for number, series in enumerate(lines):
        style = look(number)
        mark = axis.plot([], [], color=style.color, linestyle=style.line, marker=style.marker, markersize=points(7))[0]
        entries.append((mark, f"{series}: mean, 95 % bootstrap interval"))
    entries += [
        (axis.plot([], [], color=REFERENCE.color, linestyle=REFERENCE.line)[0], "fp32: mean, 95 % interval"),
        (axis.plot([], [], "o", color="#888888", markersize=points(4))[0], "one run"),
    ]
    cross = axis.plot([], [], "x", color=CRASH, markersize=points(7), markeredgewidth=points(1.6))[0]
    entries.append((cross, "crashed (scored 0)"))
    handles, labels = zip(*entries, strict=True)
    columns = 1 if len(lines) > 2 or size.columns == 1 else 2
    canvas.legend(handles, labels, loc="outside lower center", ncols=columns, fontsize="small")
