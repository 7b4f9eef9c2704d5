"""Draws the returns of random hyper-parameters: of every draw in every format, and their spread over draws."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from roundoff.runs.metric import RETURN, Metric

from ..runs.experiment import Experiment
from ..statistics.intervals import bootstrap_interval, generator_for, mean_and_std
from ..tables.summary import REFERENCE, ended
from ..tables.wording import number, percent, with_interval
from .drawing.axes import sort_formats
from .drawing.style import REFERENCE as REFERENCE_LOOK
from .drawing.style import SCREEN, Size, figure, legend_under, ordered_looks, points
from .drawing.tooltips import add_mean_tooltips

_FEWEST = 3  # draws that make a distribution


def hyperparameters_table(experiment: Experiment) -> pd.DataFrame:
    """Computes the mean return of every draw of hyper-parameters in every format, over seeds and tasks.

    Columns: ``draw`` (1, 2, ... in the order of the values), the numeric keys that vary, ``format``, ``n``,
    ``return``, ``std`` (aggregated over tasks as the paper does), ``ci_low``, ``ci_high``. No rows unless two numeric
    keys or more vary, in at least three combinations.

    Source:
        Low-precision SAC, Appendix F, Tables 6 and 7.
    """
    runs = ended(experiment.runs).dropna(subset="return")
    keys = list(runs[list(experiment.conditions.keys)].select_dtypes("number"))
    columns = ["draw", *keys, "format", "n", "return", "std", "ci_low", "ci_high"]
    if len(keys) < 2 or len(runs[keys].drop_duplicates()) < _FEWEST:
        return pd.DataFrame(columns=columns)
    rows = []
    for draw, (values, rows_of_draw) in enumerate(runs.groupby(keys, dropna=False), 1):
        for fmt in sort_formats(name for name in experiment.formats if name in set(rows_of_draw["format"])):
            scored = rows_of_draw[rows_of_draw["format"] == fmt]
            groups = [scores.to_numpy(float) for _, scores in scored.groupby("task")["return"]]
            mean, std = mean_and_std(groups)
            low, high = bootstrap_interval(groups, generator_for("draw", draw, fmt))
            rows.append(
                {"draw": draw, **dict(zip(keys, values, strict=True)), "format": fmt, "n": len(scored)}
                | {"return": mean, "std": std, "ci_low": low, "ci_high": high}
            )
    return pd.DataFrame(rows, columns=columns)


def draw_hyperparameters(name: str, table: pd.DataFrame, size: Size = SCREEN, metric: Metric = RETURN) -> Figure:
    """Draws :func:`hyperparameters_table`: every draw, and next to it the fraction of draws above each return."""
    formats = sort_formats(table["format"])
    narrow = [fmt for fmt in formats if fmt != REFERENCE]
    looks = dict.fromkeys([fmt for fmt in formats if fmt == REFERENCE], REFERENCE_LOOK)
    looks |= dict(zip(narrow, ordered_looks(len(narrow)), strict=True))
    title = f"{name}: {table['draw'].max()} draws of hyper-parameters (mean, 95 % interval)"
    with figure(2, title, size=size) as (canvas, (left, right)):
        for place, (fmt, style) in enumerate(looks.items()):
            rows = table[table["format"] == fmt]
            x = rows["draw"] + 0.5 * (place - (len(looks) - 1) / 2) / len(looks)
            marker = "o" if style.marker == "none" else style.marker
            left.vlines(x, rows["ci_low"], rows["ci_high"], color=style.color, linewidth=points(3), alpha=0.35)
            left.plot(x, rows["return"], marker, color=style.color, markersize=points(6), label=fmt)
            columns = rows[["draw", "return", "ci_low", "ci_high"]].to_numpy(float)
            add_mean_tooltips(
                left, x, rows["return"], [f"{fmt}, draw {n:.0f}\nmean {with_interval(*ends)}" for n, *ends in columns]
            )
            returns = metric.sign * np.sort(metric.sign * rows["return"].to_numpy(float))  # the worst first
            above = 1 - np.arange(len(returns) + 1) / len(returns)
            right.step(np.append(returns, returns[-1]), above, where="pre", color=style.color, linestyle=style.line)
            texts = [
                f"{fmt}: {percent(share)} of draws {metric.better} {number(tau)}"
                for tau, share in zip(returns, above[1:], strict=True)
            ]
            add_mean_tooltips(right, returns, above[1:], texts)
        left.set_xlabel("draw of hyper-parameters")
        left.set_xticks(sorted(set(table["draw"])))
        left.set_ylabel(f"mean {metric.label}")
        legend_under(canvas, *left.get_legend_handles_labels())
        right.set_xlabel(f"{metric.name} \u03c4")
        right.set_ylabel(f"share of draws {metric.better} \u03c4")
        right.set_ylim(-0.03, 1.03)
        return canvas
