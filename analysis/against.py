"""Carries out ``roundoff against``: compares every format with fp32, and tests their equivalence."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from .errors import AnalysisError
from .plot import open_run_warnings
from .runs.experiment import Experiment, read_experiment
from .statistics.equivalence import MARGIN
from .statistics.power import FAILING, WANTED
from .tables import markdown
from .tables.against_fp32 import against_reference, reference_values
from .tables.answer import answer
from .tables.summary import ALL_TASKS, REFERENCE, failed, records
from .tables.wording import change

_NAMED = 5  # conditions that a warning names at most


def against(
    directory: str | Path, margin: float = MARGIN, reference: Mapping[str, str] | None = None
) -> tuple[pd.DataFrame, str, tuple[str, ...]]:
    """Compares every format and condition in a folder with fp32, by two tests: of a difference, and of equivalence.

    Args:
        directory: the folder of a sweep, or of runs.
        margin: the largest difference that does not matter, as a fraction of the reference's mean score.
        reference: settings of the runs to compare with, as text, in place of ``format`` fp32; ``none`` for a missing
            setting. The name of a case also selects its policy or storage.

    Returns:
        The table (:func:`~.tables.against_fp32.against_reference`), its text in Markdown with sentences for people,
        and warnings about omissions.

    Raises:
        AnalysisError: no run has ended, either the reference or the runs to compare are missing, or a setting of the
            reference does not vary.
    """
    path = Path(directory)
    experiment = read_experiment(path)
    warnings = [*experiment.said, *open_run_warnings(path, experiment, "the comparison")]
    settings = reference_values(path, experiment, reference) if reference else None
    left_out: list[dict[str, Any]] = []
    table = against_reference(experiment, margin, settings, left_out)
    name = ", ".join(f"{key} {value}" for key, value in reference.items()) if reference else REFERENCE
    if left_out:
        names = [experiment.conditions.series(values) for values in left_out]
        rest = [f"{len(names) - _NAMED} more"] if len(names) > _NAMED else []
        warnings.append(f"{path}: no run in {name} that can be compared with {'; '.join([*names[:_NAMED], *rest])}")
    if table.empty:
        raise AnalysisError(f"{path}: no run in {name}, or none to compare with it, has ended; see --reference")
    return table, _report_text(table, experiment), tuple(warnings)


def answer_of(directory: str | Path) -> str:
    """Returns the answer of a folder (:func:`~.tables.answer.answer`); empty if no runs can be compared."""
    try:
        experiment = read_experiment(directory)
    except AnalysisError:
        return ""
    return answer(against_reference(experiment), experiment)


def _report_text(table: pd.DataFrame, experiment: Experiment) -> str:
    """Writes the answer and tables for people: differences; learning and the power of the tests, where known."""
    rows = records(table)
    learning = [row for row in rows if row["learnable"] or not math.isnan(row["area_difference"])]
    powered = [row for row in rows if not math.isnan(row["equivalent_if_equal"])]
    parts = [answer(table, experiment), markdown.table([_difference_cells(row, experiment) for row in rows])]
    if learning:
        parts += ["How often runs learn, the scores of those that learn, and the mean return over the learning curve:"]
        parts += [markdown.table([_learning_cells(row, experiment) for row in learning])]
    if powered:
        parts += [
            "The power of the equivalence test, from hypothetical formats with the same number of runs and spread:"
        ]
        parts += [markdown.table([_power_cells(row, experiment) for row in powered])]
    return "\n\n".join(parts)


def _condition_cells(row: dict[str, Any], experiment: Experiment) -> dict[str, str]:
    normalized = ", normalized" if row["normalized"] else ""
    cells = {"task": f"mean over tasks{normalized}" if row["task"] == ALL_TASKS else row["task"]}
    cells |= {"format": row["format"]}
    return cells | ({"condition": experiment.conditions.label(row)} if experiment.conditions.keys else {})


def _difference_cells(row: dict[str, Any], experiment: Experiment) -> dict[str, str]:
    cells = _condition_cells(row, experiment)
    cells |= {"crashed": f"{row['crashed']} of {row['runs']}" if row["crashed"] else ""}
    if len(failed(experiment.runs)):
        cells |= {"failed": str(row["failed"] or "")}
    cells |= {"difference": _number(row["difference"]), "95 % interval": _interval_text(row, "difference", _number)}
    cells |= {"pairs": str(row["pairs"] or ""), "p (Holm)": _p(row["p_holm"])}
    cells |= {"relative difference": change(row["share"]), "90 % interval": _interval_text(row, "share", change)}
    return cells | {"p of equivalence": _p(row["p_equivalent"]), "answer": row["answer"]}


def _learning_cells(row: dict[str, Any], experiment: Experiment) -> dict[str, str]:
    learnable = row["learnable"]
    shares = f" ({_interval_text(row, 'unlearned', _share)})" if learnable else ""
    cells = _condition_cells(row, experiment)
    cells |= {"ended below half way": f"{row['unlearned']} of {learnable}{shares}" if learnable else ""}
    cells |= {"difference of the others": _number(row["learned_difference"])}
    cells |= {"95 % interval": _interval_text(row, "learned_difference", _number)}
    cells |= {"difference over the curve": _number(row["area_difference"])}
    cells |= {"its 95 % interval": _interval_text(row, "area_difference", _number), "p (Holm)": _p(row["area_p_holm"])}
    return cells | {"normalized IQM (95 %)": _iqm(row)}


def _power_cells(row: dict[str, Any], experiment: Experiment) -> dict[str, str]:
    cells = _condition_cells(row, experiment) | {"runs": str(row["runs"])}
    cells |= {f"equivalent if {100 * row['margin']:.3g} % lower": _share(row["equivalent_if_lower"])}
    cells |= {f"if {100 * FAILING:.0f} % more fail": _share(row["equivalent_if_failing"])}
    cells |= {"if as good": _share(row["equivalent_if_equal"])}
    seeds = row["seeds_needed"]
    cells |= {f"seeds for {100 * WANTED:.0f} %": "more than 256" if math.isnan(seeds) else f"{seeds:.0f}"}
    correlation, p = row["correlation"], row["correlation_p"]
    return cells | {"correlation of pairs": "" if math.isnan(correlation) else f"{correlation:.2f} (p {p:.2g})"}


def _iqm(row: dict[str, Any]) -> str:
    ends = [row[f"normalized_iqm_{end}"] for end in ("low", "high")]
    if math.isnan(row["normalized_iqm"]):
        return ""
    interval = "" if any(map(math.isnan, ends)) else f" ({ends[0]:.2f} to {ends[1]:.2f})"
    return f"{row['normalized_iqm']:.2f}{interval}"


def _interval_text(row: dict[str, Any], name: str, format_end: Callable[[float], str]) -> str:
    low, high = (format_end(row[f"{name}_{end}"]) for end in ("low", "high"))
    return f"{low or 'below'} to {high or 'above'}" if low or high else ""


def _number(value: float) -> str:
    return "" if math.isnan(value) else f"{value:+.4g}"


def _share(share: float) -> str:
    return "" if math.isnan(share) else f"{round(100 * share, 1):g} %"


def _p(value: float) -> str:
    return "" if math.isnan(value) else f"{value:.2g}"
