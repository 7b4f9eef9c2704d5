"""A table of first failures: the first operation of each observed run with a result that is not finite."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING

import pandas as pd

from .summary import ended, in_order

if TYPE_CHECKING:
    from ..runs.experiment import Experiment

# As observers say it, in the reason of a crash: what, in which operation, and in brackets its role and module.
_SAID = re.compile(r"first non-finite result: ([^\n(]{1,200}\([^\n)]{1,200}\))(?: at ([^\n]{1,300}?:\d{1,9})\b)?")


def first_non_finite(reason: str) -> str:
    """The first operation that a crash's reason names, as ``overflow in aten.exp.default (forward)``; else empty."""
    return _told(reason)[0]


def _told(reason: str) -> tuple[str, str]:
    """The operation, and the file and line of the user's that called it; each may be empty."""
    found = _SAID.search(reason)
    return (found[1], found[2] or "") if found else ("", "")


def first_failures(experiment: Experiment) -> pd.DataFrame:
    """The operation that failed first in most crashed runs, for each task, format and condition that has any.

    Columns: ``task``, ``format``, the conditions, ``crashed`` (runs) of how many ``runs`` that have ended,
    ``first_step`` (of the earliest crash), ``first_non_finite`` (empty if no run was observed) and the ``line`` that it
    is of (the user's own, by file), ``observed`` (crashed runs that name an operation) and ``share`` (of them that name
    this one). Ordered as the summary.
    """
    runs, keys = ended(experiment.runs), experiment.conditions.keys
    rows = []
    for where, together in runs.groupby(["task", "format", *keys], dropna=False):
        group = together[together["status"] == "crashed"]
        if group.empty:
            continue
        named = [told for told in map(_told, group["reason"]) if told[0]]
        (name, line), count = Counter(sorted(named)).most_common(1)[0] if named else (("", ""), 0)
        about = {"crashed": len(group), "runs": len(together), "first_step": group["crash_step"].min()}
        about |= {"first_non_finite": name, "line": line}
        about |= {"observed": len(named), "share": count / len(named) if named else float("nan")}
        rows.append(dict(zip(["task", "format", *keys], where, strict=True)) | about)
    columns = [
        "task",
        "format",
        *keys,
        "crashed",
        "runs",
        "first_step",
        "first_non_finite",
        "line",
        "observed",
        "share",
    ]
    return in_order(pd.DataFrame(rows, columns=columns), keys, experiment.formats)
