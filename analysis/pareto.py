"""Carries out ``roundoff pareto``: the score of each format against its cost, and the Pareto front."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from .errors import AnalysisError
from .plot import check_known, open_run_warnings
from .runs.experiment import Experiment, read_experiment
from .runs.files import COSTS
from .statistics.equivalence import MARGIN
from .tables import markdown
from .tables.against_fp32 import reference_values
from .tables.pareto import KINDS, models_of, pareto_table
from .tables.summary import records
from .tables.wording import interval, number


def pareto(
    directory: str | Path,
    cost: str = "bytes",
    margin: float = MARGIN,
    model: str | None = None,
    reference: Mapping[str, str] | None = None,
) -> tuple[pd.DataFrame, str, tuple[str, ...]]:
    """Compares every format and condition in a folder by score and cost.

    Args:
        directory: the folder of a sweep with costs counted by ``roundoff cost``; ``bits`` needs no costs.
        cost: ``bits``, ``bytes``, ``bops``, ``memory``, ``sent`` or ``energy``.
        margin: the largest difference that is too small to matter, as a fraction of the fp32 mean score.
        model: the source of the figures for ``energy``.
        reference: settings of the runs that others are compared with, as for ``against``; None: ``format`` fp32.

    Returns:
        The numbers (:func:`~.tables.pareto.pareto_table`), the same in Markdown, and warnings about omissions.

    Raises:
        AnalysisError: no run in the folder has ended, the cost does not exist, or was not counted; or a
            setting of the reference does not vary.
    """
    check_known("cost", [cost], KINDS)
    path = Path(directory)
    experiment = read_experiment(path)
    warnings = [*experiment.said, *open_run_warnings(path, experiment, "the comparison")]
    if cost != "bits" and not experiment.costs:
        if damaged := [warning for warning in experiment.said if warning.startswith(f"{path / COSTS}: ")]:
            raise AnalysisError(f"{damaged[0]}; `roundoff cost` counts again")
        raise AnalysisError(
            f"{path}: no cost was counted here; count it with `roundoff cost`, for programs with their sweep file"
        )
    if model is not None and model not in (known := models_of(experiment)):
        raise AnalysisError(
            f"{path}: the model {model} was not used; there are {', '.join(known)}: --cost-model adds one"
        )
    settings = reference_values(path, experiment, reference) if reference else None
    table = pareto_table(experiment, cost, margin, model, settings)
    if table["cost"].isna().all():
        raise AnalysisError(
            f"{path}: no format has a {KINDS[cost].label}"
            + (" by this model, which has no number for their products" if cost == "energy" else "")
        )
    uncounted = sorted({name for cost_of_run in experiment.costs.values() for name in cost_of_run["uncounted"]})
    if uncounted and cost in ("bops", "energy"):
        warnings.append(f"{path}: not counted, since their products have no formula: {', '.join(uncounted)}")
    uncosted = [str(row["series"]) for row in records(table) if math.isnan(row["cost"])]
    if uncosted:
        warnings.append(f"{path}: without a cost, and on no Pareto front: {', '.join(dict.fromkeys(uncosted))}")
    name = "the reference" if reference else "fp32"
    text = markdown.table([_row_cells(row, experiment, name) for row in records(table)])
    return table, f"Cost: {table['label'].iloc[0]}.\n\n{text}", tuple(warnings)


def _row_cells(row: dict[str, Any], experiment: Experiment, reference: str) -> dict[str, str]:
    cells = {"task": str(row["task"]), "format": str(row["format"])}
    if experiment.conditions.keys:
        cells["condition"] = experiment.conditions.label(row)
    cells |= {"cost": number(row["cost"]), "mean": number(row["mean"])}
    cells |= {"95 % interval": interval(row["ci_low"], row["ci_high"])}
    return cells | {"Pareto front": "on it" if row["front"] else "", f"against {reference}": str(row["answer"])}
