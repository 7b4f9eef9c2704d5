"""Lists every figure of ``roundoff plot`` by the name of its file: the function of its table, and of its drawing."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import pandas as pd

from ..runs.experiment import Experiment
from ..tables.pareto import KINDS
from ..tables.summary import REFERENCE
from .actor_time import actor_time_table, draw_actor_time
from .comparison import comparison_table, draw_comparison
from .curves import curves_table, draw_curves
from .degradation import are_floats, degradation_table, draw_degradation
from .differences import differences_table, draw_differences
from .heatmap import draw_heatmap, draw_plane, heatmap_table, plane_table
from .hyperparameters import draw_hyperparameters, hyperparameters_table
from .logged_values import draw_training, norms_table, training_table
from .magnitudes import draw_exponents, draw_gradients, exponents_table, gradients_table
from .pareto import draw_pareto, pareto_figure_table
from .profiles import draw_profiles, profiles_table
from .relative import draw_relative, relative_table

Table = Callable[[Experiment, pd.DataFrame, list[str]], pd.DataFrame | None]


_FEWEST = 3  # values of a setting that make a curve
_MOST = 24  # lines that can be distinguished in a figure across widths


class Drawable(NamedTuple):
    """A figure.

    Attributes:
        table: makes the table of an experiment and its summary, and adds warnings to a list; None without data.
        draw: draws the figure, given the name of the experiment, the table, the size and the metric.
    """

    table: Table
    draw: Callable[..., Any]


def _degradation(experiment: Experiment, summary: pd.DataFrame, _warnings: list[str]) -> pd.DataFrame:
    across = "significand_bits" if are_floats(experiment.formats) else "format"
    return degradation_table(experiment, summary, across)


def _widths(experiment: Experiment, summary: pd.DataFrame, warnings: list[str], across: str) -> pd.DataFrame | None:
    """Makes the table of the degradation plot across another width; None if that would show nothing new.

    Adds a warning, and draws no figure, if there are too many series to distinguish.
    """
    floats = are_floats(experiment.formats)
    if across == "significand_bits" and floats:
        return None
    table = degradation_table(experiment, summary, across)
    narrow = table[table["format"] != REFERENCE]
    if across == "bits" and floats and len(set(narrow["exponent_bits"])) < 2:
        return None  # the same figure as across significand bits
    several = any(len(set(widths)) > 1 for _, widths in narrow.groupby(["task", "series"])[across])
    lines = narrow["series"].nunique()
    if several and lines > _MOST:
        name = across.removesuffix("_bits")
        warnings.append(f"degradation-{name}: {lines} lines would be too many to tell apart; it is not drawn")
    return table if several and lines <= _MOST else None


def settings_table(experiment: Experiment, summary: pd.DataFrame, warnings: list[str]) -> pd.DataFrame | None:
    """Makes the table of scores against the numeric setting with the most values; None if none has three.

    Adds a warning, and draws no figure, if there are too many series to distinguish.
    """
    columns = summary[list(experiment.conditions.independent)].select_dtypes("number")
    value_counts = {str(key): summary[key].nunique() for key in columns}
    key = max(value_counts, key=lambda key: value_counts[key], default="")
    if value_counts.get(key, 0) < _FEWEST:
        return None
    table = degradation_table(experiment, summary, key)
    if (lines := table["series"].nunique()) > _MOST:
        warnings.append(f"settings: {lines} lines would be too many to tell apart; it is not drawn")
    return table if lines <= _MOST else None


def _relative(experiment: Experiment, _summary: pd.DataFrame, _warnings: list[str]) -> pd.DataFrame | None:
    """Compares conditions with scores of different size with one another; None if there is nothing to compare."""
    if not experiment.conditions.keys or experiment.metric.sign < 0:
        return None
    table = relative_table(experiment)
    return table if len(set(table["significand_bits"])) > 1 else None


def _curves_across(
    experiment: Experiment, _summary: pd.DataFrame, _warnings: list[str], across: str
) -> pd.DataFrame | None:
    """Makes the table of learning curves, a line for each value of a number; None if it does not vary."""
    varies = across in experiment.conditions.keys and pd.api.types.is_numeric_dtype(experiment.runs[across])
    return curves_table(experiment, across) if varies else None


def _comparison(experiment: Experiment, summary: pd.DataFrame, _warnings: list[str]) -> pd.DataFrame | None:
    return comparison_table(experiment, summary) if experiment.conditions.keys else None


# Figures without rows are not drawn, except for the first two, which are then empty.
FIGURES = {
    "degradation": Drawable(_degradation, partial(draw_degradation, x=None)),
    "curves": Drawable(lambda experiment, _summary, _: curves_table(experiment), draw_curves),
    **{
        f"degradation-{name}": Drawable(partial(_widths, across=across), partial(draw_degradation, x=across))
        for name, across in (("significand", "significand_bits"), ("exponent", "exponent_bits"), ("bits", "bits"))
    },
    **{
        f"curves-{across.rpartition('.')[2]}": Drawable(partial(_curves_across, across=across), draw_curves)
        for across in ("environments", "batch_size", "learners", "communicate_every", "actors.pull_every")
    },
    "settings": Drawable(settings_table, partial(draw_degradation, x="value")),
    "relative": Drawable(_relative, draw_relative),
    "plane": Drawable(lambda experiment, summary, _: plane_table(degradation_table(experiment, summary)), draw_plane),
    "heatmap": Drawable(heatmap_table, draw_heatmap),
    "comparison": Drawable(_comparison, draw_comparison),
    "hyperparameters": Drawable(
        lambda experiment, _summary, _: hyperparameters_table(experiment), draw_hyperparameters
    ),
    "profiles": Drawable(lambda experiment, _summary, _: profiles_table(experiment), draw_profiles),
    "training": Drawable(lambda experiment, _summary, _: training_table(experiment), draw_training),
    "norms": Drawable(lambda experiment, _summary, _: norms_table(experiment), draw_training),
    "actor-time": Drawable(lambda experiment, _summary, _: actor_time_table(experiment), draw_actor_time),
    "exponents": Drawable(lambda experiment, _summary, _: exponents_table(experiment), draw_exponents),
    "gradients": Drawable(lambda experiment, _summary, _: gradients_table(experiment), draw_gradients),
    **{
        f"pareto-{kind}": Drawable(lambda experiment, *_, kind=kind: pareto_figure_table(experiment, kind), draw_pareto)
        for kind in KINDS
    },
    "differences": Drawable(
        lambda experiment, _summary, warnings: differences_table(experiment, warnings), draw_differences
    ),
}
ALWAYS = {"degradation", "curves"}
