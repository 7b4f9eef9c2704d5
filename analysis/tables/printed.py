"""The summary as a table for people, in Markdown and LaTeX."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pandas as pd

from . import markdown
from .first_failures import first_failures
from .summary import ALL_TASKS, records

if TYPE_CHECKING:
    from ..runs.experiment import Experiment

FORMATS = ("md", "tex")
"""The formats of tables for people."""

_FAILED = "first non-finite operation"


def printed(experiment: Experiment, summary: pd.DataFrame) -> pd.DataFrame:
    """The summary in words: a row per task, format and condition, with what failed first where observed runs crashed.

    Columns: ``task`` if there are several, ``format``, ``condition`` if there are any, ``runs``, ``crashed``,
    ``failed`` if any did, the mean of the metric with its standard deviation, its 95 % interval, how much worse than
    fp32 it is, and the first non-finite operation if any run names one.
    """
    metric, conditions = experiment.metric, experiment.conditions
    where = ["task", "format", *conditions.keys]
    failures = first_failures(experiment)
    failed = {tuple(str(row[key]) for key in where): row["first_non_finite"] for row in records(failures)}
    several = len(set(summary["task"])) > 1
    rows = []
    for row in records(summary):
        cells = {"task": "mean over tasks" if row["task"] == ALL_TASKS else row["task"]} if several else {}
        cells |= {"format": row["format"]} | ({"condition": conditions.label(row)} if conditions.keys else {})
        cells |= {"runs": str(row["n"]), "crashed": str(row["crashed"])}
        cells |= {"failed": str(row["failed"])} if summary["failed"].any() else {}
        cells[metric.label] = _number(row["mean"]) + (f" ± {row['std']:.2g}" if _there(row["std"]) else "")
        ends = [_number(row[name]) for name in ("ci_low", "ci_high")]
        cells["95 % interval"] = " to ".join(ends) if all(ends) else ""
        cells["fp32 - this" if metric.sign > 0 else "this - fp32"] = _number(row["drop"])
        rows.append(cells | {_FAILED: failed.get(tuple(str(row[key]) for key in where), "")})
    table = pd.DataFrame(rows)
    return table if any(failed.values()) else table.drop(columns=_FAILED, errors="ignore")


def as_text(table: pd.DataFrame, kind: str) -> str:
    """A table of text as a file.

    Args:
        table: from :func:`printed`.
        kind: ``md``; or ``tex``, for the package ``booktabs``.
    """
    if kind == "md":
        return markdown.table(records(table)) + "\n"
    numbers = {"runs", "crashed", "failed", "95 % interval"}
    aligned = "".join("r" if name in numbers or "fp32" in name else "l" for name in table.columns)
    return table.to_latex(index=False, escape=True, column_format=aligned).replace("±", r"$\pm$")


def _there(value: Any) -> bool:
    return not math.isnan(value)


def _number(value: float) -> str:
    return f"{value:.4g}" if _there(value) else ""
