"""Every figure that ``roundoff plot`` can draw: what it is drawn from, as a table, and how."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from ..statistics.summary import REFERENCE, conditions
from .axes import (
    comparison_points,
    curve_points,
    degradation_points,
    exponent_points,
    profile_points,
)
from .comparison import draw_comparison
from .curves import draw_curves
from .degradation import draw_degradation
from .differences import differences, draw_differences
from .exponents import draw_exponents, exponents_over_time
from .gradients import draw_gradients
from .hyperparameters import draw_hyperparameters, hyperparameter_points
from .logged_values import draw_training, training_points
from .plane import draw_plane, plane_points
from .profiles import draw_profiles

if TYPE_CHECKING:
    from collections.abc import Callable

    import pandas as pd

    from ..runs.experiment import Experiment

    Table = Callable[[Experiment, pd.DataFrame, list[str]], pd.DataFrame | None]


class Kind(NamedTuple):
    """A figure.

    Attributes:
        table: of an experiment and its summary; also gets the list that warnings are added to. None: there is nothing
            to draw.
        draw: name of the experiment, table and size to a figure.
    """

    table: Table
    draw: Callable[..., Any]


def _exponent_sweep(experiment: Experiment, summary: pd.DataFrame, _warnings: list[str]) -> pd.DataFrame | None:
    table = degradation_points(experiment, summary, across="exponent_bits")
    narrow = table[table["format"] != REFERENCE]
    several = any(len(set(widths)) > 1 for _, widths in narrow.groupby(["task", "series"])["exponent_bits"])
    return table if several else None


def _comparison(experiment: Experiment, summary: pd.DataFrame, _warnings: list[str]) -> pd.DataFrame | None:
    return comparison_points(experiment, summary) if conditions(experiment.runs) else None


def _exponents(experiment: Experiment, _summary: pd.DataFrame, _warnings: list[str]) -> pd.DataFrame:
    return exponents_over_time(experiment)


def _gradients(experiment: Experiment, _summary: pd.DataFrame, _warnings: list[str]) -> pd.DataFrame:
    table = exponent_points(experiment)
    return table[table["role"] == "backward"]


# By the name of the file; those without rows are not drawn, but for the first two, which say so by being empty.
FIGURES = {
    "degradation": Kind(lambda experiment, summary, _: degradation_points(experiment, summary), draw_degradation),
    "curves": Kind(lambda experiment, _summary, _: curve_points(experiment), draw_curves),
    "degradation-exponent": Kind(_exponent_sweep, partial(draw_degradation, x="exponent_bits")),
    "plane": Kind(lambda experiment, summary, _: plane_points(degradation_points(experiment, summary)), draw_plane),
    "comparison": Kind(_comparison, draw_comparison),
    "hyperparameters": Kind(lambda experiment, _summary, _: hyperparameter_points(experiment), draw_hyperparameters),
    "profiles": Kind(lambda experiment, _summary, _: profile_points(experiment), draw_profiles),
    "training": Kind(lambda experiment, _summary, _: training_points(experiment), draw_training),
    "exponents": Kind(_exponents, draw_exponents),
    "gradients": Kind(_gradients, draw_gradients),
    "differences": Kind(lambda experiment, _summary, warnings: differences(experiment, warnings), draw_differences),
}
ALWAYS = {"degradation", "curves"}
