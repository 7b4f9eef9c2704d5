"""Makes tables of the score and cost of each format and condition, and finds the Pareto front."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import pandas as pd

from ..runs.conditions import value_text
from ..runs.experiment import Experiment
from ..runs.files import COST_COLUMNS
from ..statistics.equivalence import MARGIN
from .against_fp32 import against_reference
from .summary import ALL_TASKS, REFERENCE, bits_per_number, records, summarize


class CostKind(NamedTuple):
    """A kind of cost."""

    column: str
    """The name of the cost among a run's counted costs; empty if the cost follows from the format's name."""
    label: str


KINDS = {
    "bits": CostKind("", "bits of a number"),
    "bytes": CostKind("bytes_moved", "bytes moved in a step"),
    "bops": CostKind("bops", "bit operations of a step"),
    "memory": CostKind("bytes_kept", "bytes kept between steps"),
    "sent": CostKind("bytes_sent", "size in bytes of a message: weights to an actor, or gradients of a learner"),
    "energy": CostKind("models", "energy of the products of a step"),
}
"""The costs of ``roundoff pareto`` and its figures, by name."""

_MODEL = "horowitz-45nm"
_POINT_COLUMNS = ["series", "cost", "mean", "ci_low", "ci_high", "n", "crashed", "front", "answer", "margin", "label"]


def pareto_table(
    experiment: Experiment,
    kind: str,
    margin: float = MARGIN,
    model: str | None = None,
    reference: Mapping[str, str] | None = None,
) -> pd.DataFrame:
    """Makes a row for every format and condition with its score and cost, sorted by task and cost.

    Columns: ``task``, ``format``, the conditions, ``series`` (format and condition in words), ``cost`` of a step,
    ``mean``, ``ci_low`` and ``ci_high`` (95 %), ``n``, ``crashed``, ``front`` (1 if no other one of the task costs as
    little or less and scores as much or more, one strictly; else 0), ``answer`` (of the test against the reference, or
    ``reference`` for the reference itself), ``margin`` and ``label`` (of the cost, with a model's name, unit and
    source). Rows without a score or a cost are not on a Pareto front. The mean over tasks is left out, since a step
    costs another amount on each.

    Args:
        experiment: the experiment, with counted costs unless ``kind`` is ``bits``.
        kind: one of :data:`KINDS`.
        margin: the margin of equivalence.
        model: the source of the figures for ``energy``; None for Horowitz's, or the only other model.
        reference: settings of the runs that others are compared with, as text; None: ``format`` fp32.
    """
    keys = experiment.conditions.keys
    summary = summarize(experiment)
    against = records(against_reference(experiment, margin, reference))
    answers = {row_key(row, keys): str(row["answer"]) for row in against}
    reference_settings = reference or {"format": REFERENCE}
    chosen_model = _choose_model(experiment, model) if kind == "energy" else None
    rows = []
    for row in records(summary[summary["task"] != ALL_TASKS]):
        is_reference = all(value_text(row[key]) == text for key, text in reference_settings.items())
        answer = answers.get(row_key(row, keys), "reference" if is_reference else "")
        rows.append(
            {
                **{key: row[key] for key in ("task", "format", *keys, "mean", "ci_low", "ci_high", "n", "crashed")},
                "series": experiment.conditions.series(row),
                "cost": _cost(row, experiment, kind, chosen_model),
                "answer": answer,
                "margin": margin,
                "label": _label(experiment, kind, chosen_model),
            }
        )
    table = pd.DataFrame(rows, columns=["task", "format", *keys, *_POINT_COLUMNS])
    table["front"] = [int(on) for on in _front(table, experiment.metric.sign)]
    return table.sort_values(["task", "cost"], kind="stable", ignore_index=True)


def models_of(experiment: Experiment) -> list[str]:
    """The models that were used for the cost of products, by name."""
    return list(dict.fromkeys(name for cost in experiment.costs.values() for name in cost["models"]))


def _choose_model(experiment: Experiment, model: str | None) -> str | None:
    known = models_of(experiment)
    if model is not None:
        return model if model in known else None
    others = [name for name in known if name not in (_MODEL, "array-multiplier")]  # the two of this package
    return others[0] if len(others) == 1 else _MODEL if _MODEL in known else None


def _cost(row: dict[str, Any], experiment: Experiment, kind: str, model: str | None) -> float:
    if kind == "bits":
        return bits_per_number(str(row["format"]))
    run = _first_run(row, experiment)
    if run is None:
        return math.nan
    cost = experiment.costs[run]
    if kind != "energy":
        return float(cost[KINDS[kind].column])
    entry = cost["models"].get(model)
    # A sum without some of its products would look cheap.
    complete = entry is not None and entry["value"] is not None and not entry["without"]
    return float(entry["value"]) if complete else math.nan


def _label(experiment: Experiment, kind: str, model: str | None) -> str:
    if kind != "energy" or model is None:
        return KINDS[kind].label
    entry = next(cost["models"][model] for cost in experiment.costs.values() if model in cost["models"])
    return f"{KINDS[kind].label} in {entry['unit']}, by the model {model} ({entry['source']})"


def row_key(row: dict[str, Any], keys: Sequence[str]) -> tuple[str, ...]:
    """Identifies a row by its task, format and condition, as texts."""
    return (str(row["task"]), str(row["format"]), *(value_text(row[key]) for key in keys))


def _front(table: pd.DataFrame, sign: float) -> list[bool]:
    """Marks the rows that no other row of the task dominates: as good in score and cost, and better in one."""
    rows = [(str(row["task"]), float(row["cost"]), sign * float(row["mean"])) for row in records(table)]

    known = [row for row in rows if not (math.isnan(row[1]) or math.isnan(row[2]))]
    return [
        row in known
        and not any(a[0] == row[0] and a[1] <= row[1] and a[2] >= row[2] and a[1:] != row[1:] for a in known)
        for row in rows
    ]


def with_costs(summary: pd.DataFrame, experiment: Experiment) -> pd.DataFrame:
    """Adds the costs that ``roundoff cost`` has counted to a summary, from a run of each row, if any were counted."""
    costs = experiment.costs
    if not costs or summary.empty:
        return summary
    run_ids = [_first_run(row, experiment) for row in records(summary)]
    return summary.assign(
        **{name: [math.nan if run is None else costs[run][name] for run in run_ids] for name in COST_COLUMNS}
    )


def _first_run(row: dict[Any, Any], experiment: Experiment) -> str | None:
    """Finds a run of a row of the summary with a counted cost; None if no run has one."""
    runs = experiment.runs
    mask = runs["id"].isin(list(experiment.costs)) & (runs["task"] == row["task"]) & (runs["format"] == row["format"])
    for key in experiment.conditions.keys:
        value = row[key]
        is_missing = value is None or (isinstance(value, float) and math.isnan(value))
        mask &= runs[key].isna() if is_missing else runs[key] == value  # NaN equals nothing, not even NaN
    ids = runs.loc[mask, "id"]
    return None if ids.empty else str(ids.iloc[0])
