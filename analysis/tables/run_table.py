"""Makes a tidy table of runs, for notebooks and scripts."""

from __future__ import annotations

import re
import warnings as python_warnings
from collections import Counter
from pathlib import Path

import pandas as pd

from roundoff.runs.folder import RunDirectory

from ..runs.experiment import Experiment, read_experiment
from .summary import bits_per_number, ended, exponent_bits, significand_bits, sort_rows

FIRST = (
    "run", "task", "format", "significand_bits", "exponent_bits", "bits", "seed", "status", "metric", "score", "step",
    "crash_step", "reason", "first_non_finite", "seconds",
)  # fmt: skip
"""The columns that :func:`table` always has, in this order."""

_VALUE = "value_"


def table(directory: str | Path) -> pd.DataFrame:
    """The runs in a folder as a tidy table: a row per run, ended or not, in the order of their names.

    These columns are always there, and first:

    - ``run``: name of the run's folder; ``task``: of an agent its task, of a program its function.
    - ``format``; ``significand_bits`` and ``exponent_bits`` (missing for formats that are not floats); ``bits`` per
      number, with their share of a block's scale (missing for formats that this version does not know).
    - ``seed`` (missing if the run lacks one).
    - ``status``: ``done``, ``crashed``, ``failed`` or ``waiting``.
    - ``metric``: name of the score; ``score``: missing before the end, and for crashes without a score.
    - ``step`` (the last one), ``crash_step`` and ``reason`` of a crash or failure (empty for other runs).
    - ``first_non_finite``: the first operation with a result that was not finite, of an observed run that crashed.
    - ``seconds``: that the run took; missing before the end.

    Then come the keys of the runs, alphabetically, and then the numbers that programs returned, as ``value_loss``. A
    key of a program with the name of a table's column gets a trailing ``_`` (``step_``). A key that only some runs
    of programs were given is ``default`` in the others, and null is ``none``.

    Args:
        directory: the folder of a sweep, or of runs.

    Returns:
        The table. Python warnings name damaged files that were left out.

    Raises:
        AnalysisError: the folder does not contain runs.
    """
    experiment = read_experiment(directory)
    for warning in experiment.warnings:
        python_warnings.warn(warning, stacklevel=2)
    runs = experiment.runs
    formats = runs["format"]
    first = pd.DataFrame(
        {
            "run": runs["id"],
            "task": runs["task"],
            "format": formats,
            "significand_bits": formats.map(significand_bits).astype("Int64"),
            "exponent_bits": formats.map(exponent_bits).astype("Int64"),
            "bits": formats.map(bits_per_number),
            "seed": runs["seed"].astype("Int64") if "seed" in runs else pd.Series(pd.NA, runs.index, dtype="Int64"),
            "status": runs["status"],
            "metric": experiment.metric.name,
            "score": runs["return"].astype(float),
            "step": runs["step"],
            "crash_step": runs["crash_step"].astype("Int64"),
            "reason": runs["reason"],
            "first_non_finite": runs["reason"].map(first_non_finite),
            "seconds": [seconds_of(experiment, identity) for identity in runs["id"]],
        }
    )[list(FIRST)]
    keys = sorted(experiment.config_keys - {"task", "format", "seed"})
    returned = experiment.returned.set_index("id").add_prefix(_VALUE).sort_index(axis="columns")
    returned = returned.drop(columns=[name for name in returned if name in keys])  # a key has the name already
    return first.join(runs[keys]).join(returned, on="run")


def seconds_of(experiment: Experiment, identity: str) -> float:
    """Returns the wall-clock time of a run without time lost to interruptions; NaN if it is not recorded."""
    return RunDirectory(experiment.folders[identity]).seconds()


# The text of observers in the reason of a crash: the failure, its operation, and in brackets its role and module.
_REASON = re.compile(r"first non-finite result: ([^\n(]{1,200}\([^\n)]{1,200}\))(?: at ([^\n]{1,300}?:\d{1,9})\b)?")


def first_non_finite(reason: str) -> str:
    """Finds the operation in a crash's reason, such as ``overflow in aten.exp.default (forward)``; else empty."""
    return _operation_and_line(reason)[0]


def _operation_and_line(reason: str) -> tuple[str, str]:
    """Finds the operation in a reason, and the file and line of user code that called it; each may be empty."""
    match = _REASON.search(reason)
    return (match[1], match[2] or "") if match else ("", "")


def first_failures(experiment: Experiment) -> pd.DataFrame:
    """Finds the most frequent first failure of crashed runs, for each task, format and condition with crashes.

    Columns: ``task``, ``format``, the conditions, ``crashed`` (runs), ``runs`` (that have ended),
    ``first_step`` (of the earliest crash), ``first_non_finite`` (empty if no run was observed) and the ``line`` that it
    is of (the user's own, by file), ``observed`` (crashed runs that name an operation) and ``share`` (of them that name
    this one). Ordered as the summary.
    """
    runs, keys = ended(experiment.runs), experiment.conditions.keys
    rows = []
    for values, members in runs.groupby(["task", "format", *keys], dropna=False):
        group = members[members["status"] == "crashed"]
        if group.empty:
            continue
        operations = [operation for operation in map(_operation_and_line, group["reason"]) if operation[0]]
        (name, line), count = Counter(sorted(operations)).most_common(1)[0] if operations else (("", ""), 0)
        counts = {"crashed": len(group), "runs": len(members), "first_step": group["crash_step"].min()}
        counts |= {"first_non_finite": name, "line": line}
        counts |= {"observed": len(operations), "share": count / len(operations) if operations else float("nan")}
        rows.append(dict(zip(["task", "format", *keys], values, strict=True)) | counts)
    columns = ["task", "format", *keys, "crashed", "runs", "first_step", "first_non_finite", "line", "observed"]
    return sort_rows(pd.DataFrame(rows, columns=[*columns, "share"]), keys, experiment.formats)
