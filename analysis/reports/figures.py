"""The figures of ``roundoff plot`` in the report, with captions."""

from __future__ import annotations

import pandas as pd

from roundoff.runs.metric import Metric

from ..plot import inline_svg
from .markup import Safe, element


def degradation_figure(points: pd.DataFrame, metric: Metric) -> Safe:
    """Score against significand bits; from :func:`~.figures.degradation.degradation_table`."""
    caption = (
        f"Mean {metric.name} over seeds against significand bits, with 95\u2009% stratified bootstrap intervals"
        " (bands). Every run is a dot, beside its mean."
    )
    return _figure("degradation", points, f"{metric.title} against significand bits", caption, metric)


def comparison_figure(points: pd.DataFrame, metric: Metric) -> Safe:
    """Comparison of formats and conditions; from :func:`~.figures.comparison.comparison_table`."""
    caption = (
        f"Mean {metric.name} over seeds, 95\u2009% bootstrap interval (bar), and every run;"
        f" crosses are crashed runs ({metric.scored})."
    )
    return _figure("comparison", points, f"{metric.title} by condition", caption, metric)


def settings_figure(points: pd.DataFrame, metric: Metric) -> Safe:
    """Score against a number that varies; from :func:`~.figures.catalogue.settings_table`."""
    setting = str(points["setting"].iloc[0])
    caption = (
        f"Mean {metric.name} over seeds against {setting}, with 95\u2009% bootstrap intervals. Every run is a dot."
    )
    return _figure("settings", points, f"{metric.title} against {setting}", caption, metric)


def pareto_figure(kind: str, front: pd.DataFrame, metric: Metric) -> Safe:
    """Score against cost; from :func:`~.figures.pareto.pareto_figure_table`."""
    label = str(front["label"].iloc[0])
    caption = (
        f"Mean {metric.name} over seeds with its 95\u2009% interval against {label}. The line is the front: no point"
        " costs less and scores more than those on it. Filled points were shown to be equivalent to fp32 within the"
        " margin, which is the band."
    )
    return _figure(f"pareto-{kind}", front, f"{metric.title} against {label}", caption, metric)


def curves_figure(points: pd.DataFrame, metric: Metric) -> Safe:
    """Learning curves; from :func:`roundoff.analysis.figures.curves.curves_table`."""
    counts = "has no score" if metric.crash is None else f"counts as {metric.crash:g}"
    caption = (
        f"Mean {metric.name} over seeds {'at each evaluation' if metric.of_agents else 'as logged'},"
        f" with 95\u2009% bootstrap intervals. A crashed run {counts} from its crash on, where it has a cross;"
        " runs that have not ended are drawn as far as they are."
    )
    return _figure("curves", points, "Learning curves", caption, metric)


def profiles_figure(profiles: pd.DataFrame, metric: Metric) -> Safe:
    """Score distributions; from :func:`roundoff.analysis.figures.profiles.profiles_table`."""
    told = "return more than" if metric.of_agents else f"have {metric.name} {metric.better}"
    caption = f"Share of runs that {told} \u03c4 (performance profile): the higher line is the better one."
    return _figure("profiles", profiles, "Score distributions", caption, metric)


def magnitudes_figure(shares: pd.DataFrame, metric: Metric) -> Safe:
    """The spread of results at the end of training; from :func:`.magnitudes_table`."""
    caption = "How results that are not zero are spread over magnitudes, in the last interval between evaluations."
    return _figure("gradients", shares, "Magnitudes of results", caption, metric)


def _figure(name: str, table: pd.DataFrame, title: str, caption: str, metric: Metric) -> Safe:
    svg = inline_svg(name, table, f"{title}. Arrow keys read out the values.", metric)
    return element("figure", Safe(svg), element("figcaption", caption))
