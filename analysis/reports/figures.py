"""Puts figures of ``roundoff plot`` into the report, with captions."""

from __future__ import annotations

import pandas as pd

from roundoff.runs.metric import Metric

from ..plot import inline_svg
from .markup import Safe, element

_CAPTIONS = {
    "degradation": (
        "{m.title} against significand bits\n"
        "Mean {m.name} over seeds against significand bits, with 95\u2009% stratified bootstrap intervals (bands)."
        " Each dot is a run, next to its mean."
    ),
    "comparison": (
        "{m.title} by condition\n"
        "Mean {m.name} over seeds, 95\u2009% bootstrap interval (bar), and every run; crosses are crashed runs"
        " ({m.scored})."
    ),
    "settings": (
        "{m.title} against {row.setting}\n"
        "Mean {m.name} over seeds against {row.setting}, with 95\u2009% bootstrap intervals. Each dot is a run."
    ),
    "pareto": (
        "{m.title} against {row.label}\n"
        "Mean {m.name} over seeds with its 95\u2009% interval against {row.label}. The line is the Pareto front: no"
        " point costs less and scores more than those on it. Filled points were shown to be equivalent to fp32 within"
        " the margin, which is the band."
    ),
    "curves": (
        "Learning curves\n"
        "Mean {m.name} over seeds {when}, with 95\u2009% bootstrap intervals. A crashed run {counts} from its crash on,"
        " where it has a cross; runs that have not ended are drawn as far as they are."
    ),
    "profiles": ("Score distributions\nShare of runs that {better} \u03c4 (performance profile): higher is better."),
    "gradients": (
        "Magnitudes of results\n"
        "The distribution of nonzero results over magnitudes, in the last interval between evaluations."
    ),
}
"""A line of title and one of caption by the name of the figure, up to a hyphen."""


def figure(name: str, table: pd.DataFrame | None, metric: Metric) -> list[Safe]:
    """Draws a figure from its table in :mod:`..figures`, with a caption; nothing without a row."""
    if table is None or table.empty:
        return []
    words = {
        "when": "at each evaluation" if metric.of_agents else "as logged",
        "counts": "has no score" if metric.crash is None else f"counts as {metric.crash:g}",
        "better": "return more than" if metric.of_agents else f"have {metric.name} {metric.better}",
    }
    lines = _CAPTIONS[name.partition("-")[0]].split("\n")
    title, caption = (line.format(m=metric, row=table.iloc[0], **words) for line in lines)
    svg = inline_svg(name, table, f"{title}. Arrow keys read out the values.", metric)
    return [element("figure", Safe(svg), element("figcaption", caption))]
