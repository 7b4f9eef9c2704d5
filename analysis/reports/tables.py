"""Makes the tables of the report."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pandas as pd

from ..runs.experiment import Experiment
from ..statistics.power import FAILING, WANTED
from ..tables.pareto import row_key
from ..tables.summary import ALL_TASKS, records
from ..tables.wording import change, interval, number, percent, tick, with_interval
from .markup import Column, Safe, element, table

_Cells = list[tuple[Column, Callable[[dict[str, Any]], object]]]  # columns, each with a row's content of it
_LONG = 24  # rows of a table from which it is folded
_TEXT: dict[str, Any] = {"numeric": False}


def verdict_table(summary: pd.DataFrame, against: pd.DataFrame, experiment: Experiment) -> Safe | None:
    """Makes the table of means and verdicts by task, format and condition; None before a run has ended."""
    keys = experiment.conditions.keys
    crashed = summary[summary["crashed"] > 0]
    verdicts = {row_key(row, keys): f"crashed ({row['crashed']} of {row['n']})" for row in records(crashed)}
    verdicts |= {row_key(row, keys): row["answer"] for row in records(against)}
    mean = Column(f"mean {experiment.metric.name} (95\u2009% interval)")
    cells: _Cells = [
        (mean, lambda row: with_interval(row["mean"], row["ci_low"], row["ci_high"])),
        (Column("verdict", **_TEXT), lambda row: _color(verdicts.get(row_key(row, keys)))),
    ]
    return _format_table("Each format compared with fp32.", cells, summary, experiment)


def _color(verdict: str | None) -> Safe | None:
    """Marks a verdict with the colour of its kind (see ``style.css``), which only repeats its words."""
    if verdict is None:
        return None
    kinds = {"equivalent": "good", "crashed": "bad", "differ": "bad"}
    return element("span", verdict, class_=next((kinds[word] for word in kinds if word in verdict), "open"))


def summary_table(summary: pd.DataFrame, experiment: Experiment) -> Safe:
    """Makes the table of scores by task, format and condition."""
    columns = _columns(experiment)
    any_failed = bool(summary["failed"].any())
    columns += [Column("runs"), Column("crashed"), *([Column("failed")] if any_failed else [])]
    columns += [Column("mean \u00b1 std"), Column("95\u2009% interval")]
    metric = experiment.metric
    columns += [Column("IQM"), Column("fp32 \u2212 this" if metric.sign > 0 else "this \u2212 fp32")]
    rows = [
        [*_cells(row, experiment), row["n"],
         row["crashed"] or None, *([row["failed"] or None] if any_failed else []),
         f"{number(row['mean'])} \u00b1 {number(row['std'])}".removesuffix(" \u00b1 \u2013"),
         interval(row["ci_low"], row["ci_high"]),
         number(row["iqm"]), number(row["drop"])]
        for row in _tasks_first(summary)
    ]  # fmt: skip
    scores = "has no score" if metric.crash is None else f"scores {metric.crash:g}"
    end = "at the end of training" if metric.of_agents else "of each run"
    return _fold(table(f"{metric.title} {end} (a crashed run {scores}).", columns, rows), rows)


def against_table(against: pd.DataFrame, experiment: Experiment) -> Safe | None:
    """Makes the table of differences of every format from fp32."""
    cells: _Cells = [
        (Column("P(better)"), lambda row: "" if math.isnan(row["improvement"]) else f"{row['improvement']:.2f}"),
        (
            Column("95\u2009% interval of P"),
            lambda row: "{:.2f} to {:.2f}".format(*_ends(row, "improvement")).replace("nan to nan", "\u2013"),
        ),
        (Column("difference"), lambda row: number(row["difference"])),
        (Column("95\u2009% interval"), lambda row: interval(*_ends(row, "difference"))),
        (Column("pairs"), lambda row: row["pairs"] or None),
        (Column("p"), lambda row: number(row["p"], 2)),
        (Column("p (Holm)"), lambda row: number(row["p_holm"], 2)),
    ]
    caption = "Each format compared with fp32 under the same condition, or under the only condition of fp32."
    return _format_table(caption, cells, against, experiment)


def equivalence_table(against: pd.DataFrame, experiment: Experiment) -> Safe | None:
    """Makes the table of tests of the equivalence of every format to fp32."""
    cells: _Cells = [
        (Column("relative difference"), lambda row: _signed(row["share"])),
        (Column("90\u2009% interval"), lambda row: _between(*_ends(row, "share"))),
        (Column("p"), lambda row: number(row["p_equivalent"], 2)),
        (Column("p (Holm)"), lambda row: number(row["p_equivalent_holm"], 2)),
        (Column("answer", **_TEXT), lambda row: row["answer"]),
    ]
    margin = f"{tick(100 * against['margin'].iloc[0])}\u2009%"
    caption = f"Equivalence: differences relative to fp32\u2019s mean, tested to be smaller than {margin}."
    return _format_table(caption, cells, against, experiment)


def learning_table(against: pd.DataFrame, experiment: Experiment) -> Safe | None:
    """Returns the table of how often each format fails to learn where fp32 learns, and of returns; None if unknown."""
    cells: _Cells = [
        (Column("ended below half way"), lambda row: str(row["unlearned"])),
        (Column("of"), lambda row: row["learnable"]),
        (Column("90\u2009% interval of the share"), lambda row: _between(*_ends(row, "unlearned"))),
        (Column("difference of the others"), lambda row: number(row["learned_difference"])),
        (Column("95\u2009% interval"), lambda row: interval(*_ends(row, "learned_difference"))),
        (Column("pairs"), lambda row: row["learned_pairs"] or None),
    ]
    caption = (
        "How often a run learns if its seed learned in fp32, and how the runs that learn compare. A run has learned if"
        " it ends above half of the way from fp32\u2019s untrained policies to its median at the end."
    )
    return _format_table(caption, cells, against[against["learnable"] > 0], experiment)


def area_table(against: pd.DataFrame, experiment: Experiment) -> Safe | None:
    """Makes the table of differences over learning curves, and normalized scores; None if runs lack a curve."""
    cells: _Cells = [
        (Column("difference"), lambda row: number(row["area_difference"])),
        (Column("95\u2009% interval"), lambda row: interval(*_ends(row, "area_difference"))),
        (Column("p (Holm)"), lambda row: number(row["area_p_holm"], 2)),
        (Column("normalized IQM"), lambda row: number(row["normalized_iqm"])),
        (Column("its 95\u2009% interval"), lambda row: interval(*_ends(row, "normalized_iqm"))),
    ]
    caption = (
        "The difference from fp32 in the mean return over the whole learning curve, which shows how fast runs learn;"
        " and the interquartile mean of final returns, where 0 is an untrained policy and 1 is fp32\u2019s mean."
    )
    return _format_table(caption, cells, against[against["area_difference"].notna()], experiment)


def power_table(against: pd.DataFrame, experiment: Experiment) -> Safe | None:
    """Returns the table of the power of the test of equivalence with the existing runs; None where it is not known."""
    lower = 100 * against["margin"].iloc[0]
    cells: _Cells = [
        (Column(f"{lower:.3g}\u2009% lower"), lambda row: percent(row["equivalent_if_lower"])),
        (Column(f"{100 * FAILING:.0f}\u2009% more fail"), lambda row: percent(row["equivalent_if_failing"])),
        (Column("as good"), lambda row: percent(row["equivalent_if_equal"])),
        (
            Column(f"seeds for {100 * WANTED:.0f}\u2009%"),
            lambda row: "> 256" if math.isnan(row["seeds_needed"]) else f"{row['seeds_needed']:.0f}",
        ),
        (Column("correlation of pairs"), lambda row: number(row["correlation"], 2)),
        (Column("its p"), lambda row: number(row["correlation_p"], 2)),
    ]
    caption = (
        "How often the test would call hypothetical formats equivalent: formats that are worse by the margin, that fail"
        " to learn in one more run of ten, or that are as good as fp32. Estimated by resampling these runs."
    )
    return _format_table(caption, cells, against[against["equivalent_if_equal"].notna()], experiment)


def _ends(row: dict[str, Any], name: str) -> tuple[float, float]:
    return row[f"{name}_low"], row[f"{name}_high"]


def _format_table(caption: str, cells: _Cells, against: pd.DataFrame, experiment: Experiment) -> Safe | None:
    """Makes a table with a row for each task, format and condition, which are its first columns; None without rows."""
    if against.empty:
        return None
    columns = _columns(experiment)
    rows = [[*_cells(row, experiment), *(value_of(row) for _, value_of in cells)] for row in _tasks_first(against)]
    return _fold(table(caption, [*columns, *(column for column, _ in cells)], rows), rows)


def crash_table(experiment: Experiment) -> Safe | None:
    """Makes the table of runs that crashed or failed, with the reason; None if all runs are done."""
    runs = experiment.runs[experiment.runs["status"].isin(["crashed", "failed"])]
    if runs.empty:
        return None
    columns = _columns(experiment)
    columns += [Column("seed"), Column("outcome", **_TEXT), Column("at step"), Column("reason", **_TEXT)]
    order = [key for key in ("task", "format", *experiment.conditions.keys, "seed") if key in runs]
    rows = [
        [*_cells(row, experiment), row.get("seed"),
         row["status"], None if math.isnan(row["crash_step"]) else tick(row["crash_step"]), row["reason"]]
        for row in records(runs.sort_values(order))
    ]  # fmt: skip
    scored = experiment.metric.scored.replace("no score", "without a score")
    caption = f"A crash is a result, {scored}; a failed run has no result, and the sweep tries it again."
    return _fold(table(caption, columns, rows), rows)


def failures_table(failures: pd.DataFrame, experiment: Experiment) -> Safe:
    """Returns the table of first failures in each format, from :func:`~.tables.run_table.first_failures`."""
    columns = _columns(experiment)
    columns += [Column("crashed"), Column("first at step"), Column("first non-finite operation", **_TEXT)]
    columns += [Column("of observed crashes")]
    rows = [
        [*_cells(row, experiment), row["crashed"],
         None if math.isnan(row["first_step"]) else tick(row["first_step"]),
         ", ".join(filter(None, (row["first_non_finite"], row["line"]))), percent(row["share"])]
        for row in records(failures)
    ]  # fmt: skip
    return _fold(table("The first non-finite operation in most observed runs that crashed.", columns, rows), rows)


def numerics_table(counts: pd.DataFrame) -> Safe:
    """Returns the table of effects of rounding, by format, condition and role."""
    columns = [Column("format", **_TEXT), Column("role", **_TEXT), Column("results")]
    shares = ("overflow", "underflow", "subnormal", "nan", "inexact")
    columns += [Column(name.replace("nan", "NaN")) for name in shares] + [Column("additions absorbed")]
    rows = [
        [row["series"], row["role"], number(row["results"], 3),
         *(_rate(row[name], row["results"]) for name in shares), _rate(row["absorbed"], row["additions"])]
        for row in records(counts)
    ]  # fmt: skip
    return table(
        "Effects of rounding on results of operations, as shares of the results (over all observed runs).",
        columns,
        rows,
    )


def _rate(count: int, total: int) -> str:
    if not count or not total:
        return "0" if total else "\u2013"
    share = count / total
    return (
        f"{share:.0e}".replace("-0", "\u2212").replace("-", "\u2212") if share < 1e-3 else f"{100 * share:.2g}\u2009%"
    )


def _signed(share: float) -> str:
    return change(share).replace(" ", "\u2009").replace("-", "\u2212") or "\u2013"


def _between(low: float, high: float) -> str | None:
    """Formats an interval of shares; an open end is in words."""
    if math.isnan(low) and math.isnan(high):
        return None
    return f"{'below' if math.isnan(low) else _signed(low)} to {'above' if math.isnan(high) else _signed(high)}"


def _fold(markup: Safe, rows: list[list[object]]) -> Safe:
    """Folds a long table, so that it is shown on a click, and on paper."""
    if len(rows) <= _LONG:
        return markup
    return element("details", element("summary", f"The table: {len(rows)} rows"), markup)


def _tasks_first(rows: pd.DataFrame) -> list[dict[str, Any]]:
    """Sorts rows: single tasks, then their mean."""
    return sorted(records(rows), key=lambda row: row["task"] == ALL_TASKS)


def _bits(row: dict[str, Any], column: str) -> object:
    """Returns the bits needed; for a single format, whether it is good."""
    if not isinstance(row[column], int):
        return None
    return row[column] if row["largest"] else "yes"


def _columns(experiment: Experiment, middle: Column = Column("format", **_TEXT)) -> list[Column]:  # noqa: B008  a constant
    """Makes the first columns of a table: task and condition if there are several, and ``middle`` between them."""
    tasks = [Column("task", **_TEXT)] if len(set(experiment.runs["task"])) > 1 else []
    return [*tasks, middle, *([Column("condition", **_TEXT)] if experiment.conditions.keys else [])]


def _cells(row: dict[str, Any], experiment: Experiment, key: str = "format") -> list[object]:
    """Makes the cells of a row in :func:`_columns`."""
    mean = "mean over tasks, normalized" if row.get("normalized") else "mean over tasks"
    task = mean if row["task"] == ALL_TASKS else str(row["task"])
    tasks = [task] if len(set(experiment.runs["task"])) > 1 else []
    return [*tasks, row[key], *([experiment.conditions.label(row)] if experiment.conditions.keys else [])]


def needed_details(needed: pd.DataFrame, experiment: Experiment) -> Safe:
    """Makes the table of the bits that each task needs."""
    floats = bool((needed["family"] == "").all())
    family = Column("exponent bits") if floats else Column("formats", **_TEXT)
    columns = _columns(experiment, family)
    columns += [Column("bits needed"), Column("confidence"), Column("by means only"), Column("tested"), Column("runs")]
    columns += [Column("resampled", **_TEXT), Column("not known", **_TEXT)]
    names = needed["family"].where(needed["family"] != "", needed["exponent_bits"].astype(str) + " exponent bits")
    # A confidence in percent, below 100 %: replicates without exception do not give certainty
    rows = [
        [*_cells(row, experiment, "exponent_bits" if floats else "family"), _bits(row, "bits"),
         percent(min(row["confidence"], 0.9999)), _bits(row, "by_means"),
         " to ".join(dict.fromkeys(map(str, (row["smallest"], row["largest"])))) if row["largest"] else None,
         row["runs"],
         "by seed" if row["paired"] else "unpaired", row["reason"]]
        for row in _tasks_first(needed.assign(family=names))
    ]  # fmt: skip
    bits = "Significand bits" if floats else "Bits"
    caption = f"{bits} that are enough. Without bits, the confidence is of the widest format."
    return _fold(table(caption, columns, rows), rows)
