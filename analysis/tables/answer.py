"""Writes the answer of a comparison with fp32 in sentences."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd

from ..runs.experiment import Experiment
from .summary import ALL_TASKS, exponent_bits, records
from .wording import MULTIPLE, plural

_Rows = list[dict[str, Any]]


def answer(against: pd.DataFrame, experiment: Experiment) -> str:
    """States the loss of each format, or the loss that cannot be excluded; a line for each task and condition.

    ``against`` is the table of :func:`~.against_fp32.against_reference`. Without rows the answer is empty.
    """
    lines: dict[str, _Rows] = {}
    for row in sorted(records(against), key=lambda row: row["task"] == ALL_TASKS):
        opening = "In the mean over tasks" if row["task"] == ALL_TASKS else f"On {row['task']}"
        condition = f", {experiment.conditions.label(row)}" if experiment.conditions.keys else ""
        lines.setdefault(f"{opening}{condition}, ", []).append(row)
    return "\n".join(
        opening * (len(lines) > 1) + " ".join(_verdict_sentences(rows, experiment)) for opening, rows in lines.items()
    )


def _verdict_sentences(rows: _Rows, experiment: Experiment) -> Iterator[str]:
    """Yields a sentence for each group of formats with the same verdict."""
    groups: dict[tuple[str, bool], _Rows] = {}
    for row in rows:
        groups.setdefault((row["answer"], "differ" in row["answer"] and row["share"] < 0), []).append(row)
    for (verdict, falls), group in groups.items():
        changes = [abs(100 * row["share"]) for row in group if not math.isnan(row["share"])]
        if verdict == "inconclusive":
            # States the largest difference inside of the intervals, and the number of seeds for an answer, if known
            seeds, needed = _seeds(group, experiment), np.max([row["seeds_needed"] for row in group])
            ends = [abs(row[f"share_{end}"]) for row in group for end in ("low", "high")]
            size = "of any size"
            if all(map(math.isfinite, ends)):
                end = max(ends)
                size = f"up to {math.ceil(100 * end)} %" if end <= MULTIPLE else f"of more than {100 * MULTIPLE} %"
            more = f"; run {needed:.0f} seeds to tell" if needed > seeds else ""
            text = f"no difference shown with {plural(seeds, 'seed')}; differences {size} cannot be excluded{more}"
        elif verdict == "cannot be said" and _seeds(group, experiment) == 1:
            text = "no verdict with 1 seed"
        else:
            limit = 100 * MULTIPLE
            shares = [f"{round(change, 0 if change >= 10 else 1):.10g} %" for change in changes]
            pairs = zip(changes, shares, strict=True)
            amounts = _join([f"more than {limit} %" if change > limit else share for change, share in pairs])
            movement = f"{experiment.metric.name} {'falls' if falls else 'rises'} by {amounts}"
            text = verdict.replace("shown to differ", movement) if changes else verdict
        yield f"{_names(group, rows)}: {text}."


def _seeds(group: _Rows, experiment: Experiment) -> int:
    """Returns the number of seeds of the format with the fewest seeds."""
    tasks = experiment.runs["task"].nunique() if group[0]["task"] == ALL_TASKS else 1
    return int(min(row["runs"] for row in group) // tasks)


def _names(group: _Rows, rows: _Rows) -> str:
    """Names formats; floats of consecutive widths by the first and the last, from narrow to wide."""
    names, every = ([row["format"] for row in side] for side in (group, rows))
    is_row = every[every.index(names[0]) :][: len(names)] == names and len({exponent_bits(name) for name in names}) == 1
    return f"{names[-1]} to {names[0]}" if is_row and len(names) > 2 else _join(names)


def _join(texts: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(texts[:-1]), *texts[-1:]]))
