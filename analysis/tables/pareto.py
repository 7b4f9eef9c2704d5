"""The score and cost of each format and condition, and the Pareto front."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import pandas as pd

from ..runs.conditions import as_text
from ..runs.experiment import Experiment
from ..runs.files import COST_COLUMNS
from ..statistics.equivalence import MARGIN
from .against_fp32 import against_reference
from .summary import ALL_TASKS, REFERENCE, bits_per_number, records, summarize


class CostKind(NamedTuple):
    """One of the costs that a front can be of."""

    column: str
    """The name of the cost in what was counted of a run; empty where the name of the format says it."""
    label: str


KINDS = {
    "bits": CostKind("", "bits of a number"),
    "bytes": CostKind("bytes_moved", "bytes moved in a step"),
    "bops": CostKind("bops", "bit operations of a step"),
    "memory": CostKind("bytes_kept", "bytes kept between steps"),
    "sent": CostKind("bytes_sent", "size in bytes of a message: weights to an actor, or gradients of a learner"),
    "energy": CostKind("models", "energy of the products of a step"),
}
"""The costs by which ``roundoff pareto`` and the figures go, by name."""

_MODEL = "horowitz-45nm"
_OF_POINTS = ["series", "cost", "mean", "ci_low", "ci_high", "n", "crashed", "front", "answer", "margin", "label"]


def pareto_table(
    experiment: Experiment,
    kind: str,
    margin: float = MARGIN,
    model: str | None = None,
    reference: Mapping[str, str] | None = None,
) -> pd.DataFrame:
    """Every format and condition with its score and its cost, by task and cost.

    Columns: ``task``, ``format``, the conditions, ``series`` (format and condition in words), ``cost`` of a step,
    ``mean``, ``ci_low`` and ``ci_high`` (95 %), ``n``, ``crashed``, ``front`` (1 if no other one of the task costs as
    little or less and scores as much or more, one strictly; else 0), ``answer`` (of the test against the reference, or
    ``reference`` for the reference itself), ``margin`` and ``label`` (of the cost, with a model's name, unit and
    source). Rows without a score or a cost are not on a Pareto front. The mean over tasks is left out, since a step
    costs another amount on each.

    Args:
        experiment: with its costs, but for ``bits``.
        kind: one of :data:`KINDS`.
        margin: the margin of equivalence.
        model: the source of the figures for ``energy``; None for Horowitz's, or the only other one there is.
        reference: settings of the runs that others are compared with, as text; None: ``format`` fp32.
    """
    keys = experiment.conditions.keys
    summary = summarize(experiment)
    against = records(against_reference(experiment, margin, reference))
    answers = {place(row, keys): str(row["answer"]) for row in against}
    wanted = reference or {"format": REFERENCE}
    chosen = _model_of(experiment, model) if kind == "energy" else None
    rows = []
    for row in records(summary[summary["task"] != ALL_TASKS]):
        itself = all(as_text(row[key]) == text for key, text in wanted.items())
        answer = answers.get(place(row, keys), "reference" if itself else "")
        rows.append(
            {
                **{key: row[key] for key in ("task", "format", *keys, "mean", "ci_low", "ci_high", "n", "crashed")},
                "series": experiment.conditions.series(row),
                "cost": _cost(row, experiment, kind, chosen),
                "answer": answer,
                "margin": margin,
                "label": _label(experiment, kind, chosen),
            }
        )
    table = pd.DataFrame(rows, columns=["task", "format", *keys, *_OF_POINTS])
    table["front"] = [int(on) for on in _front(table, experiment.metric.sign)]
    return table.sort_values(["task", "cost"], kind="stable", ignore_index=True)


def models_of(experiment: Experiment) -> list[str]:
    """The models that were used for the cost of products, by name."""
    return list(dict.fromkeys(name for cost in experiment.costs.values() for name in cost["models"]))


def _model_of(experiment: Experiment, model: str | None) -> str | None:
    there = models_of(experiment)
    if model is not None:
        return model if model in there else None
    own = [name for name in there if name not in (_MODEL, "array-multiplier")]
    return own[0] if len(own) == 1 else _MODEL if _MODEL in there else None


def _cost(row: dict[str, Any], experiment: Experiment, kind: str, model: str | None) -> float:
    if kind == "bits":
        return bits_per_number(str(row["format"]))
    run = _first_run(row, experiment)
    if run is None:
        return math.nan
    cost = experiment.costs[run]
    if kind != "energy":
        return float(cost[KINDS[kind].column])
    told = cost["models"].get(model)
    complete = told is not None and told["value"] is not None and not told["without"]
    return float(told["value"]) if complete else math.nan


def _label(experiment: Experiment, kind: str, model: str | None) -> str:
    if kind != "energy" or model is None:
        return KINDS[kind].label
    told = next(cost["models"][model] for cost in experiment.costs.values() if model in cost["models"])
    return f"{KINDS[kind].label} in {told['unit']}, by the model {model} ({told['source']})"


def place(row: dict[str, Any], keys: Sequence[str]) -> tuple[str, ...]:
    """The task, format and condition of a row, as text."""
    return (str(row["task"]), str(row["format"]), *(as_text(row[key]) for key in keys))


def _front(table: pd.DataFrame, sign: float) -> list[bool]:
    """Whether no other row of the task is as good in both, and better in one."""
    rows = [(str(row["task"]), float(row["cost"]), sign * float(row["mean"])) for row in records(table)]

    known = [row for row in rows if not (math.isnan(row[1]) or math.isnan(row[2]))]
    return [
        one in known
        and not any(a[0] == one[0] and a[1] <= one[1] and a[2] >= one[2] and a[1:] != one[1:] for a in known)
        for one in rows
    ]


def with_costs(summary: pd.DataFrame, experiment: Experiment) -> pd.DataFrame:
    """A summary with what ``roundoff cost`` has counted, of a run of each row; as it is where nothing was counted."""
    costs = experiment.costs
    if not costs or summary.empty:
        return summary
    found = [_first_run(row, experiment) for row in records(summary)]
    return summary.assign(
        **{name: [math.nan if run is None else costs[run][name] for run in found] for name in COST_COLUMNS}
    )


def _first_run(row: dict[Any, Any], experiment: Experiment) -> str | None:
    """A run of a row of the summary with a counted cost; None if no run has one."""
    runs = experiment.runs
    here = runs["id"].isin(list(experiment.costs)) & (runs["task"] == row["task"]) & (runs["format"] == row["format"])
    for key in experiment.conditions.keys:
        value = row[key]
        is_missing = value is None or (isinstance(value, float) and math.isnan(value))
        here &= runs[key].isna() if is_missing else runs[key] == value
    found = runs.loc[here, "id"]
    return None if found.empty else str(found.iloc[0])
