"""Draws scores relative to fp32 over significand bits: one panel, and a line per task and condition."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from roundoff.runs.metric import RETURN, Metric

from ..runs.conditions import NO_POLICY, References, value_text
from ..runs.experiment import Experiment
from ..statistics.intervals import NO_INTERVAL, Interval, generator_for, percentiles, resampled_means
from ..tables.summary import REFERENCE, ended, exponent_bits, records, significand_bits
from ..tables.wording import with_interval
from .drawing.style import SCREEN, Size, figure, legend_under, look, points
from .drawing.tooltips import add_mean_tooltips

_COLUMNS = ["task", "series", "format", "significand_bits", "runs", "share", "share_low", "share_high", "reference"]
_REPLICATES = 10_000
_SPREAD = 0.5  # share of the step from one width to the next that the marks of all lines take side by side
_NEAREST = 0.06  # largest distance between marks, in steps
_HIGHEST = 2.0  # highest end of an interval that the figure makes room for


def relative_table(experiment: Experiment, left_out: list[str] | None = None) -> pd.DataFrame:
    """Computes the mean score of each float format relative to fp32's on the same task, under the same condition.

    If fp32 is run under only one condition on a task, it is the reference of all there, as in
    :func:`~..tables.against_fp32.against_reference`. Shares need scores that are counted from 0, and more must be
    better; rows with an fp32 mean of 0 or less are left out. Crashed runs count with the metric's score for a crash.

    Columns: ``task``, ``series`` (exponent bits and condition), ``format``, ``significand_bits``, ``runs``, ``share``,
    ``share_low`` and ``share_high`` (95 % bootstrap interval, the runs of the format and of fp32 resampled
    separately), ``reference`` (fp32's mean).

    Args:
        experiment: the runs.
        left_out: a list that receives descriptions of the missing rows.
    """
    omissions = [] if left_out is None else left_out
    runs, keys = ended(experiment.runs), experiment.conditions.keys
    runs = runs[runs["return"].notna()]
    rows: list[dict[str, Any]] = []
    # The conditions that fp32 is planned under, and its scores
    planned = experiment.runs.loc[experiment.runs["format"] == REFERENCE, ["task", *keys]].drop_duplicates()
    references = {str(task): References(records(rows), keys) for task, rows in planned.groupby("task")}
    scores_of_fp32 = {
        (values[0], *map(value_text, values[1:])): rows["return"].to_numpy(float)
        for values, rows in runs[runs["format"] == REFERENCE].groupby(["task", *keys], dropna=False)
    }
    for values, group in runs.groupby(["task", *keys], dropna=False, sort=False):
        task, condition = values[0], dict(zip(keys, values[1:], strict=True))
        if set(group["format"]) == {REFERENCE} and condition.get("policy") == NO_POLICY:
            continue  # the reference of the other policies
        reference = references[str(task)].reference_of(condition) if str(task) in references else None
        fp32 = np.array([]) if reference is None else scores_of_fp32.get((task, *reference), np.array([]))
        label = f"{task}, {experiment.conditions.label(condition)}" if keys else task
        floats = [name for name in dict.fromkeys(group["format"].astype(str)) if significand_bits(name) >= 0]
        if not fp32.size or fp32.mean() <= 0:
            mean = f"the mean of {REFERENCE} is {fp32.mean():.4g}, not above 0, and has" if fp32.size else ""
            omissions.append(f"{label}: {mean or f'no {REFERENCE} run has ended, so there are'} no shares; left out")
            continue
        if not set(floats) - {REFERENCE}:
            omissions.append(f"{label}: no run in another floating-point format than {REFERENCE} has ended; left out")
        for name in floats:
            if name == REFERENCE:
                continue
            scores = group.loc[group["format"] == name, "return"].to_numpy(float)
            family = f"e{exponent_bits(name):.0f}mX"
            series = experiment.conditions.series({"format": family, **condition})
            interval = _quotient_interval(scores, fp32, generator_for("relative", task, name, *map(str, values[1:])))
            rows.append(
                {
                    "task": task, "series": series, "format": name, "significand_bits": significand_bits(name),
                    "runs": scores.size, "share": scores.mean() / fp32.mean(), "share_low": interval.low,
                    "share_high": interval.high, "reference": fp32.mean(),
                }
            )  # fmt: skip
    table = pd.DataFrame(rows, columns=_COLUMNS)
    return table.sort_values(["task", "series", "significand_bits"], ignore_index=True)


def _quotient_interval(scores: np.ndarray, reference_scores: np.ndarray, generator: np.random.Generator) -> Interval:
    """Computes the interval of the quotient of two means; infinite if fp32's may be 0."""
    if min(scores.size, reference_scores.size) < 2:
        return NO_INTERVAL
    means = [resampled_means(sample[:, None], generator, _REPLICATES)[:, 0] for sample in (scores, reference_scores)]
    with np.errstate(divide="ignore", invalid="ignore"):
        shares = np.where(means[1] > 0, means[0] / means[1], np.inf)
    return percentiles(shares, 0.95)


def draw_relative(name: str, table: pd.DataFrame, size: Size = SCREEN, metric: Metric = RETURN) -> Figure:
    """Draws the score relative to fp32 against significand bits, with its 95 % interval as a bar.

    Marks of several lines are moved a little across, so that their bars do not overlap.

    Args:
        name: the name of the experiment.
        table: from :func:`relative_table`, or several such tables together, with distinct series.
        size: the size of the figure.
        metric: the metric of the scores.
    """
    lines = list(dict.fromkeys(zip(table["task"], table["series"], strict=True)))
    tasks = Counter(series for _, series in lines)
    step = min(_NEAREST, _SPREAD / len(lines))
    ends = table["share_high"][table["share_high"] < _HIGHEST]
    top = 1.05 * max(1.2, *table["share"], *ends)
    with figure(1, f"{name}: {metric.name} as a share of fp32's", 6.4, 4.2, size) as (canvas, (axis,)):
        axis.axhline(1, color="#888888", linestyle="--", linewidth=points(1.2))
        entries = []
        for number, (task, series) in enumerate(lines):
            style = look(number)
            line = table[(table["task"] == task) & (table["series"] == series)]
            x = line["significand_bits"].to_numpy(float) + step * (number - (len(lines) - 1) / 2)
            high = np.minimum(line["share_high"].to_numpy(float), 2 * top)  # infinite ones, too
            axis.vlines(x, line["share_low"], high, color=style.color, alpha=0.6, linewidth=points(1.2))
            (mark,) = axis.plot(
                x, line["share"], color=style.color, linestyle=style.line, marker=style.marker, markersize=points(6)
            )
            label = f"{task}: {series}" if tasks[series] > 1 else series
            columns = line[["significand_bits", "share", "share_low", "share_high"]].to_numpy(float)
            add_mean_tooltips(
                axis, x, line["share"], [f"{label}, m = {m:g}\n{with_interval(*ends)}" for m, *ends in columns]
            )
            entries.append((mark, label))
        axis.set_xticks(sorted(set(table["significand_bits"])))
        axis.set_xlabel("significand bits m")
        axis.set_ylabel(f"{metric.name}, share of fp32's")
        axis.set_ylim(0, top)
        handles, labels = zip(*entries, strict=True)
        legend_under(canvas, handles, labels)
        return canvas
