"""What made formats fail first: the first operation of observed runs whose result was not finite."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING

import pandas as pd

from .summary import in_order

if TYPE_CHECKING:
    from ..runs.experiment import Experiment

# As observers say it, in the reason of a crash: what, in which operation, and in brackets its role and module.
_SAID = re.compile(r"first non-finite result: ([^\n(]{1,200}\([^\n)]{1,200}\))")


def first_non_finite(reason: str) -> str:
    """The first operation that a crash's reason names, as ``overflow in aten.exp.default (forward)``; else empty."""
    found = _SAID.search(reason)
    return found[1] if found else ""


def first_failures(experiment: Experiment) -> pd.DataFrame:
    """The operation that failed first in most crashed runs, for each task, format and condition that has any.

    Columns: ``task``, ``format``, the conditions, ``crashed`` (runs), ``first_step`` (of the earliest crash),
    ``first_non_finite`` (empty if no run was observed), ``observed`` (crashed runs that name an operation) and
    ``share`` (of them that name this one). Ordered as the summary.
    """
    runs, keys = experiment.runs, experiment.conditions.keys
    rows = []
    for where, group in runs[runs["status"] == "crashed"].groupby(["task", "format", *keys], dropna=False):
        named = [name for name in map(first_non_finite, group["reason"]) if name]
        name, count = Counter(sorted(named)).most_common(1)[0] if named else ("", 0)
        about = {"crashed": len(group), "first_step": group["crash_step"].min(), "first_non_finite": name}
        about |= {"observed": len(named), "share": count / len(named) if named else float("nan")}
        rows.append(dict(zip(["task", "format", *keys], where, strict=True)) | about)
    columns = ["task", "format", *keys, "crashed", "first_step", "first_non_finite", "observed", "share"]
    return in_order(pd.DataFrame(rows, columns=columns), keys, experiment.formats)
