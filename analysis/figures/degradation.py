"""Draws the degradation plot: scores against bits of several kinds, against formats, or against a number."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from roundoff.runs.metric import RETURN, Metric

from ..runs.experiment import Experiment
from ..tables.summary import ALL_TASKS, bits_per_number, ended, exponent_bits, parsed, records, significand_bits
from ..tables.summary import REFERENCE as FP32
from ..tables.wording import plural
from .drawing.axes import is_logarithmic, limits_by_task, sort_formats, titles
from .drawing.marks import add_score_tooltips, all_failed_rows, draw_crashes, marks, place_side_by_side
from .drawing.style import CRASH, FAILED, REFERENCE, SCREEN, Size, figure, legend_under, look, points, write_names_under
from .drawing.tooltips import add_box_tooltips, add_mean_tooltips, mean_tooltip

_WORDS = {
    "significand_bits": "significand bits m",
    "exponent_bits": "exponent bits e",
    "bits": "bits per number",
    "format": "format",
}
_MOST_REFERENCES = 6  # references with separate entries in a legend
_CLOSEST = 0.04  # smallest distance of two numbers under an axis, as a share of its length
_WIDEST = 4  # largest distance, in bits, of two formats that a line connects
_FAMILIAR = {7: "bf16", 10: "fp16"}  # by their significand bits


def degradation_table(experiment: Experiment, summary: pd.DataFrame, across: str = "significand_bits") -> pd.DataFrame:
    """Makes the marks of the degradation plot: a row of ``kind`` mean for each row of the summary, one for each run.

    Args:
        experiment: the runs.
        summary: the summary of the same experiment, from :func:`roundoff.analysis.tables.summary.summarize`.
        across: the quantity along a series: ``significand_bits`` or ``exponent_bits`` (formats other than floats are
            left out), ``bits`` (per number, with their share of a block's scale; formats that cannot be read are left
            out), ``format``, or a numeric setting.

    Columns: ``task``, ``series`` (the other width or the family of the format, and condition; or fp32), ``format``,
    ``exponent_bits``, ``significand_bits``, ``kind`` (mean or run), ``seed`` and ``status`` of runs, ``n`` and
    ``crashed`` and ``failed`` of means, ``return`` (the score), ``ci_low`` and ``ci_high`` of means; and ``bits``, or
    ``setting`` and its ``value``, if these vary.
    """
    is_setting = across not in _WORDS

    def series(row: dict[str, Any]) -> str:
        if is_setting:
            return experiment.conditions.series(row, but=across)
        if row["format"] == FP32:
            return experiment.conditions.series(row)
        if across == "format":
            return experiment.conditions.label(row) if experiment.conditions.keys else ""
        return experiment.conditions.series(row | {"format": _family(row, across)})

    def with_widths(table: pd.DataFrame) -> pd.DataFrame:
        names = table["format"]
        if is_setting:
            return table.assign(setting=across, value=table[across])
        table = table.assign(exponent_bits=names.map(exponent_bits), significand_bits=names.map(significand_bits))
        if across == "format":
            return table
        if across == "bits":
            table = table.assign(bits=names.map(bits_per_number))
        return table[table["bits" if across == "bits" else "significand_bits"].notna()]

    extra = ("setting", "value") if is_setting else ("bits",) if across == "bits" else ()
    return marks(with_widths(summary), with_widths(ended(experiment.runs)), series, extra)


def are_floats(formats: tuple[str, ...]) -> bool:
    """Whether every format has significand bits."""
    return all(significand_bits(name) >= 0 for name in formats)


def _family(row: dict[str, Any], across: str) -> str:
    """Names the formats of a series by their common width or family, such as ``e5mX``."""
    if across == "exponent_bits":
        return f"eXm{row['significand_bits']:.0f}"
    if across == "significand_bits" or exponent_bits(row["format"]) >= 0:
        return f"e{row['exponent_bits']:.0f}mX"
    return re.split(r"[^a-z]", str(parsed(row["format"])))[0] + "X"


def draw_degradation(
    name: str, table: pd.DataFrame, size: Size = SCREEN, x: str | None = "significand_bits", metric: Metric = RETURN
) -> Figure:
    """Draws the mean score with its 95 % interval against bits, every run as a dot, crashes as crosses.

    Places where all runs failed are hatched.

    A panel per task, and one for their mean if there are several. fp32 is a band across, for each condition; against
    a number it is a line as others are. A line for each ``series``: width of the other part of the number, and
    condition (keys other than task, format and seed that vary).

    Args:
        name: the name of the experiment.
        table: from :func:`degradation_table`.
        size: the size of the figure.
        x: the column across; None: ``significand_bits``, or ``format`` if some formats lack it. A ``value`` is placed
            by its logarithm where that spreads the values more evenly.
        metric: the metric of the scores.
    """
    if x is None:
        x = "format" if table["significand_bits"].isna().any() else "significand_bits"
    tasks = sorted(dict.fromkeys(table["task"]), key=lambda task: task == ALL_TASKS)
    lines = [series for series in dict.fromkeys(table["series"]) if x == "value" or not _is_reference(series)]
    words = str(table["setting"].iloc[0]) if x == "value" else _WORDS[x]
    title = f"{name}: {metric.name} against {words.removesuffix(' m').removesuffix(' e')}"
    limits = limits_by_task(metric, table)
    with figure(len(tasks), title, size=size, sharey=len(set(limits.values())) < 2) as (canvas, axes):
        if is_logarithmic(metric, table["return"]):
            axes[0].set_yscale("log")
        for axis, task, title_of_panel in zip(axes, tasks, titles(tasks, metric), strict=False):
            axis.set_ylim(limits[task])
            _draw_series(axis, table[table["task"] == task], lines, x, metric)
            axis.set_xlabel(words)
            seeds = table.loc[table["task"] == task, "n"].max()
            axis.set_title(title_of_panel if task == ALL_TASKS else f"{title_of_panel} ({plural(seeds, 'seed')})")
        _legend(canvas, axes[0], table, lines, x, metric)
        return canvas


def _is_reference(series: str) -> bool:
    return series.partition(",")[0] == FP32


def _reference_colors(lines: list[str], table: pd.DataFrame) -> dict[str, str]:
    """Chooses colours of fp32 by series: grey if there is one, else as the first line of the same condition."""
    references = [series for series in dict.fromkeys(table["series"]) if _is_reference(series) and series not in lines]
    conditions = [series.partition(", ")[2] for series in lines]
    return {
        series: look(conditions.index(condition)).color
        if len(references) > 1 and (condition := series.partition(", ")[2]) in conditions
        else REFERENCE.color
        for series in references
    }


def _draw_series(axis: Axes, rows: pd.DataFrame, lines: list[str], x: str, metric: Metric) -> None:
    # References: a band and a horizontal line
    means, colors = rows[rows["kind"] == "mean"], _reference_colors(lines, rows)
    for row in records(means[means["series"].isin(colors)]):
        color = colors[row["series"]]
        axis.axhspan(row["ci_low"], row["ci_high"], color=color, alpha=0.18, linewidth=0)
        axis.axhline(row["return"], color=color, linestyle=REFERENCE.line, linewidth=points(1.4))
        ends = np.nan_to_num([row["ci_low"], row["ci_high"]], nan=row["return"])
        add_box_tooltips(axis, [0, ends[0], 1, ends[1]], [mean_tooltip(row)], axis.get_yaxis_transform())
    # Horizontal places of all other rows
    rows = rows[rows["series"].isin(lines)]
    names = sort_formats(rows["format"])
    values = rows["format"].map(names.index) if x == "format" else rows[x].astype(float)
    rows = rows.assign(value=values, place=_even_places(values) if x == "value" else values)
    means = rows[rows["kind"] == "mean"]
    for number, series in enumerate(lines):
        style = look(number)
        line = means[means["series"] == series].sort_values("place")
        for place in all_failed_rows(line)["place"]:
            axis.axvspan(place - 0.3, place + 0.3, **FAILED)
            add_box_tooltips(
                axis, [place - 0.3, 0, place + 0.3, 1], [f"{series}: all runs failed"], axis.get_xaxis_transform()
            )
        # Places beside the other lines; NaN interrupts a line between formats that are far apart
        offset = min(0.12, 0.7 / len(lines)) * (number - (len(lines) - 1) / 2)
        positions = line["place"].to_numpy(float) + offset * (x == "format")
        drawn, joined = line[["ci_low", "ci_high", "return"]].to_numpy(float), x != "format" and len(positions) > 1
        gaps = np.flatnonzero(np.diff(positions) > (_WIDEST if x == "bits" else np.inf)) + 1
        spread, drawn = np.insert(positions, gaps, np.nan), np.insert(drawn, gaps, np.nan, axis=0)
        if joined:
            axis.fill_between(spread, drawn[:, 0], drawn[:, 1], color=style.color, alpha=0.2, linewidth=0)
        else:
            axis.vlines(positions, drawn[:, 0], drawn[:, 1], color=style.color, linewidth=points(5), alpha=0.3)
        line_style = style.line if joined else "none"
        axis.plot(spread, drawn[:, 2], style.marker, color=style.color, linestyle=line_style, markersize=points(7))
        _draw_runs(axis, rows[(rows["kind"] == "run") & (rows["series"] == series)], style.color, offset, metric)
        add_mean_tooltips(axis, positions, line["return"], [mean_tooltip(row) for row in records(line)])
    # Ticks; formats with familiar names are added to significand bits
    axis.set_ylabel(metric.label)
    places, texts = sorted(set(rows["place"])), [f"{value:g}" for value in sorted(set(rows["value"]))]
    if not places:
        return
    axis.set_xlim(min(places) - 0.6, max(places) + 0.6)
    if x == "format":
        write_names_under(axis, range(len(names)), names)
        return
    if x == "significand_bits":
        places = sorted({*places, *(bits for bits in _FAMILIAR if places[0] < bits < places[-1])})
        texts = [f"{bits:g}\n{_FAMILIAR.get(bits, '')}".rstrip() for bits in places]
    axis.set_xticks(places, _without_overlaps(places, texts))


def _even_places(values: pd.Series[float]) -> pd.Series[float]:
    """Places numbers, the closest two 1 apart: linearly, or by logarithms if these are spread more evenly."""
    numbers = values.to_numpy(float)
    candidates = []
    for scaled in (numbers, np.log10(numbers)) if (numbers > 0).all() else (numbers,):
        gaps = np.diff(np.unique(scaled))
        if len(gaps):
            candidates.append((gaps.max() / gaps.min(), (scaled - scaled.min()) / gaps.min()))
    return values if not candidates else pd.Series(min(candidates, key=lambda candidate: candidate[0])[1], values.index)


def _without_overlaps(places: list[float], texts: list[str]) -> list[str]:
    """Empties the texts under an axis that would overlap the text left of them."""
    shown: list[str] = []
    last = -float("inf")
    for place, text in zip(places, texts, strict=True):
        fits = place - last > _CLOSEST * (places[-1] - places[0])
        shown.append(text if fits else "")
        last = place if fits else last
    return shown


def _draw_runs(axis: Axes, runs: pd.DataFrame, color: str, offset: float, metric: Metric) -> None:
    """Draws every run next to its mean; the horizontal positions of seeds are arbitrary."""
    for place in sorted(set(runs["place"])):
        group = runs[runs["place"] == place]
        positions = place_side_by_side(len(group), place + offset)
        crashed = (group["status"] == "crashed").to_numpy()
        y = group["return"].to_numpy(float)
        axis.plot(positions[~crashed], y[~crashed], "o", color=color, markersize=points(4), alpha=0.75,
                  markeredgecolor="white", markeredgewidth=points(0.5), zorder=3)  # fmt: skip
        draw_crashes(axis, positions[crashed], y[crashed], metric)
        add_score_tooltips(axis, group, positions, metric)


def _legend(canvas: Figure, axis: Axes, table: pd.DataFrame, lines: list[str], x: str, metric: Metric) -> None:
    """Writes one legend for all panels under them, with every kind of mark once."""
    entries: list[tuple[Any, str]] = []
    for number, series in enumerate(lines):
        style = look(number)
        line = "none" if x == "format" else style.line
        mark = axis.plot([], [], color=style.color, linestyle=line, marker=style.marker, markersize=points(7))[0]
        entries.append((mark, f"{series}: mean, 95 % bootstrap interval".removeprefix(": ")))
    references = _reference_colors(lines, table)
    if len(references) > _MOST_REFERENCES:
        references = {f"{FP32} of each condition, in its colour": REFERENCE.color}
    for series, color in references.items():
        level = axis.plot([], [], color=color, linestyle=REFERENCE.line)[0]
        entries.append((level, f"{series}: mean, 95 % interval"))
    shown = table.loc[(table["kind"] == "run") & table["series"].isin(lines), "status"]
    if (shown == "done").any():
        entries.append((axis.plot([], [], "o", color="#888888", markersize=points(4))[0], "one run"))
    if (shown == "crashed").any():
        cross = axis.plot([], [], "x", color=CRASH, markersize=points(7), markeredgewidth=points(1.6))[0]
        entries.append((cross, f"crashed ({metric.scored})"))
    if len(all_failed_rows(table[table["kind"] == "mean"])):
        entries.append((Patch(**FAILED), "all runs failed"))
    handles, labels = zip(*entries, strict=True)
    legend_under(canvas, handles, labels, most=2)
