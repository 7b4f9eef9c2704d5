"""Plot scores relative to fp32 over significand bits: one panel, and a line per task and condition."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from roundoff.runs.metric import RETURN, Metric

from ..runs.conditions import NO_POLICY, References, as_text
from ..runs.experiment import Experiment
from ..statistics.intervals import NO_INTERVAL, Interval, generator_for, percentiles, resampled_means
from ..tables.summary import REFERENCE, ended, exponent_bits, records, significand_bits
from ..tables.wording import with_interval
from .drawing.style import SCREEN, Size, figure, legend_under, look, points
from .drawing.tooltips import add_mean_tooltips

_COLUMNS = ["task", "series", "format", "significand_bits", "runs", "share", "share_low", "share_high", "reference"]
_REPLICATES = 10_000
_SPREAD = 0.5  # of the step from one width to the next, over which marks of all lines are beside each other
_NEAREST = 0.06  # steps between marks, at most
_HIGHEST = 2.0  # ends of intervals for which there is room; longer ones leave the figure


def relative_table(experiment: Experiment, left_out: list[str] | None = None) -> pd.DataFrame:
    """The mean score of each float format relative to fp32's on the same task, under the same condition.

    If fp32 is run under only one condition on a task, it is the reference of all there, as in
    :func:`~..tables.against_fp32.against_reference`. A share says something where scores are counted from 0 and more is
    better; rows with an fp32 mean of 0 or less are left out. Crashed runs count with the metric's score for a crash.

    Columns: ``task``, ``series`` (exponent bits and condition), ``format``, ``significand_bits``, ``runs``, ``share``,
    ``share_low`` and ``share_high`` (95 % bootstrap interval, the runs of the format and of fp32 resampled
    separately), ``reference`` (fp32's mean).

    Args:
        experiment: the runs.
        left_out: a list that receives descriptions of the missing rows.
    """
    said = [] if left_out is None else left_out
    runs, keys = ended(experiment.runs), experiment.conditions.keys
    runs = runs[runs["return"].notna()]
    rows: list[dict[str, Any]] = []
    planned = experiment.runs.loc[experiment.runs["format"] == REFERENCE, ["task", *keys]].drop_duplicates()
    references = {str(task): References(records(of_task), keys) for task, of_task in planned.groupby("task")}
    scores_of = {
        (where[0], *map(as_text, where[1:])): of_fp32["return"].to_numpy(float)
        for where, of_fp32 in runs[runs["format"] == REFERENCE].groupby(["task", *keys], dropna=False)
    }
    for where, group in runs.groupby(["task", *keys], dropna=False, sort=False):
        task, condition = where[0], dict(zip(keys, where[1:], strict=True))
        if set(group["format"]) == {REFERENCE} and condition.get("policy") == NO_POLICY:
            continue  # the reference of the other policies
        reference = references[str(task)].of(condition) if str(task) in references else None
        plain = np.array([]) if reference is None else scores_of.get((task, *reference), np.array([]))
        named = f"{task}, {experiment.conditions.label(condition)}" if keys else task
        floats = [name for name in dict.fromkeys(group["format"].astype(str)) if significand_bits(name) >= 0]
        if not plain.size or plain.mean() <= 0:
            mean = f"the mean of {REFERENCE} is {plain.mean():.4g}, not above 0, and has" if plain.size else ""
            said.append(f"{named}: {mean or f'no {REFERENCE} run has ended, so there are'} no shares; left out")
            continue
        if not set(floats) - {REFERENCE}:
            said.append(f"{named}: no run in another floating-point format than {REFERENCE} has ended; left out")
        for name in floats:
            if name == REFERENCE:
                continue
            scores = group.loc[group["format"] == name, "return"].to_numpy(float)
            family = f"e{exponent_bits(name):.0f}mX"
            series = experiment.conditions.series({"format": family, **condition})
            interval = _interval(scores, plain, generator_for("relative", task, name, *map(str, where[1:])))
            rows.append(
                {
                    "task": task, "series": series, "format": name, "significand_bits": significand_bits(name),
                    "runs": scores.size, "share": scores.mean() / plain.mean(), "share_low": interval.low,
                    "share_high": interval.high, "reference": plain.mean(),
                }
            )  # fmt: skip
    table = pd.DataFrame(rows, columns=_COLUMNS)
    return table.sort_values(["task", "series", "significand_bits"], ignore_index=True)


def _interval(scores: np.ndarray, plain: np.ndarray, generator: np.random.Generator) -> Interval:
    """The interval of the quotient of two means; infinite where fp32's may be 0."""
    if min(scores.size, plain.size) < 2:
        return NO_INTERVAL
    means = [resampled_means(one[:, None], generator, _REPLICATES)[:, 0] for one in (scores, plain)]
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
            at = line["significand_bits"].to_numpy(float) + step * (number - (len(lines) - 1) / 2)
            high = np.minimum(line["share_high"].to_numpy(float), 2 * top)  # infinite ones, too
            axis.vlines(at, line["share_low"], high, color=style.color, alpha=0.6, linewidth=points(1.2))
            (mark,) = axis.plot(
                at, line["share"], color=style.color, linestyle=style.line, marker=style.marker, markersize=points(6)
            )
            called = f"{task}: {series}" if tasks[series] > 1 else series
            columns = line[["significand_bits", "share", "share_low", "share_high"]].to_numpy(float)
            add_mean_tooltips(
                axis, at, line["share"], [f"{called}, m = {m:g}\n{with_interval(*of)}" for m, *of in columns]
            )
            entries.append((mark, called))
        axis.set_xticks(sorted(set(table["significand_bits"])))
        axis.set_xlabel("significand bits m")
        axis.set_ylabel(f"{metric.name}, share of fp32's")
        axis.set_ylim(0, top)
        handles, labels = zip(*entries, strict=True)
        legend_under(canvas, handles, labels)
        return canvas
