"""``roundoff against``: every format against fp32, and whether they are equivalent."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .errors import AnalysisError
from .plot import about_open_runs
from .runs.conditions import as_text
from .runs.experiment import read_experiment
from .statistics import markdown
from .statistics.against_fp32 import against_reference
from .statistics.equivalence import MARGIN
from .statistics.summary import ALL_TASKS, REFERENCE, failed, records

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import pandas as pd

    from .runs.experiment import Experiment


def against(
    directory: str | Path, margin: float = MARGIN, reference: Mapping[str, str] | None = None
) -> tuple[pd.DataFrame, str, tuple[str, ...]]:
    """Compares every format and condition in a folder with fp32, by two tests: of a difference, and of equivalence.

    Args:
        directory: the folder of a sweep, or of runs.
        margin: what difference is too small to matter, as a fraction of the reference's mean score.
        reference: settings of the runs that others are compared with, in place of ``format`` fp32: what each is, as
            text, ``none`` where there is none; of a policy or storage also the name of its case.

    Returns:
        The numbers (:func:`~.statistics.against_fp32.against_reference`), the same for people as a table in Markdown,
        and warnings about what was left out.

    Raises:
        AnalysisError: there is no run in the folder that has ended, or none of the reference and another one, or a
            setting of the reference does not vary.
    """
    path = Path(directory)
    experiment = read_experiment(path)
    warnings = [*experiment.said, *about_open_runs(path, experiment, "the comparison")]
    settings = _values(path, experiment, reference) if reference else None
    table = against_reference(experiment, margin, settings)
    if table.empty:
        name = ", ".join(f"{key} {value}" for key, value in reference.items()) if reference else REFERENCE
        raise AnalysisError(f"{path}: no run in {name}, or none to compare with it, has ended; see --reference")
    known = bool(table["learnable"].any())
    rows = [_in_words(row, experiment, learning=known) for row in records(table)]
    return table, markdown.table(rows), tuple(warnings)


def _values(path: Path, experiment: Experiment, reference: Mapping[str, str]) -> dict[str, str]:
    """The reference with values in full, where a case gives them a name; raises AnalysisError where no run has them."""
    varying = ("format", *experiment.conditions.keys)
    values = {}
    for key, value in reference.items():
        if key not in varying:
            raise AnalysisError(f"{path}: {key} does not vary; a reference is of {', '.join(varying)}")
        found = {as_text(one): experiment.conditions.name_of(key, one) for one in experiment.runs[key].unique()}
        texts = {name: text for text, name in found.items() if name} | {text: text for text in found}
        if value not in texts:
            there = ", ".join(sorted(name or text for text, name in found.items()))
            raise AnalysisError(f"{path}: no run has {key} {value}; there are {there}")
        values[key] = texts[value]
    return values


def _in_words(row: dict[str, Any], experiment: Experiment, *, learning: bool) -> dict[str, str]:
    cells = {"task": "mean over tasks" if row["task"] == ALL_TASKS else row["task"], "format": row["format"]}
    cells |= {"condition": experiment.conditions.label(row)} if experiment.conditions.keys else {}
    cells |= {"crashed": f"{row['crashed']} of {row['runs']}" if row["crashed"] else ""}
    if len(failed(experiment.runs)):
        cells |= {"failed": str(row["failed"] or "")}
    cells |= {"difference": _number(row["difference"]), "95 % interval": _between(row, "difference", _number)}
    cells |= {"pairs": str(row["pairs"] or ""), "p (Holm)": _p(row["p_holm"])}
    cells |= {"share": _percent(row["share"]), "90 % interval": _between(row, "share", _percent)}
    cells |= {"p of equivalence": _p(row["p_equivalent"])}
    if learning:
        learnable = row["learnable"]
        shares = f" ({_between(row, 'unlearned', _share)})" if learnable else ""
        cells |= {"did not learn": f"{row['unlearned']} of {learnable}{shares}" if learnable else ""}
        cells |= {"difference of those that did": _number(row["learned_difference"])}
        cells |= {"its 95 % interval": _between(row, "learned_difference", _number)}
    return cells | {"answer": row["answer"]}


def _between(row: dict[str, Any], name: str, shown: Callable[[float], str]) -> str:
    low, high = (shown(row[f"{name}_{end}"]) for end in ("low", "high"))
    return f"{low or 'below'} to {high or 'above'}" if low or high else ""


def _number(value: float) -> str:
    return "" if math.isnan(value) else f"{value:+.4g}"


def _percent(share: float) -> str:
    return "" if math.isnan(share) else f"{round(100 * share, 1) + 0.0:+.1f} %"


def _share(share: float) -> str:
    return "" if math.isnan(share) else f"{round(100 * share, 1):g} %"


def _p(value: float) -> str:
    return "" if math.isnan(value) else f"{value:.2g}"
