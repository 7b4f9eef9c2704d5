"""The tables of the report."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from ..statistics.power import FAILING, WANTED
from ..tables.summary import ALL_TASKS, records
from ..tables.wording import change, interval, number, percent, tick
from .markup import Column, Safe, element, table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    import pandas as pd

    from ..runs.experiment import Experiment

    _Cells = list[tuple[Column, Callable[[dict[str, Any]], object]]]  # columns, and what a row has in each

_LONG = 24  # rows
_TEXT: dict[str, Any] = {"numeric": False}


def answers(needed: pd.DataFrame, experiment: Experiment) -> Safe:
    """The bits that each task needs, in sentences."""
    items = [element("li", *_answer(row, experiment)) for row in _in_order(needed)]
    return element("ul", *items)


def _answer(row: dict[str, Any], experiment: Experiment) -> Sequence[object]:
    where = f"{_task(row)}, {_family(row)}{_condition(row, experiment)}: "
    margin = f"at most {tick(100 * row['margin'])}\u2009% worse than fp32 in mean {experiment.metric.name}"
    runs = f"at least {row['runs']} runs each" if row["runs"] != 1 else "one run"
    means = "no width tested is" if _missing(row["by_means"]) else f"{row['by_means']} bits and more are"
    alone = f" By the means alone, {means} {margin}."
    if row["largest"] == 0:  # of one format
        alone = f" By the mean alone, it is {'not ' if _missing(row['by_means']) else ''}{margin}."
    if row["reason"]:
        return [
            where,
            element("b", "cannot be said"),
            f": {row['reason']} ({runs})." + ("" if row["reason"].startswith("fp32") else alone),
        ]
    if row["largest"] == 0:
        found = _missing(row["bits"])
        told = f"is {'not shown to be ' if found else ''}{margin}"
        sure = f": the confidence is {_sure(row['confidence'])} ({runs})."
        return [where, element("b", told), sure] + ([alone] if found != _missing(row["by_means"]) else [])
    if _missing(row["bits"]):
        sure = f"for {row['largest']} bits, the widest tested, the confidence is {_sure(row['confidence'])} ({runs})."
        return [where, element("b", f"no width is shown to be {margin}"), f": {sure}", alone]
    bits = f"{row['bits']} {'' if row['family'] else 'significand '}bits"
    bound = " (nothing narrower was tested)" if row["bits"] == row["smallest"] else ""
    sure = f"with a confidence of {_sure(row['confidence'])} ({runs})."
    rest = f"{bound}: this and every wider format tested is {margin}, {sure}"
    return [where, element("b", f"{bits} are enough"), rest] + ([alone] if row["by_means"] != row["bits"] else [])


def crash_answers(failures: pd.DataFrame, experiment: Experiment) -> Safe | None:
    """Names the formats that crashed, with the number of runs and the first operation to fail; None if none did."""
    if failures.empty:
        return None
    items = []
    for row in records(failures):
        first = f", first {row['first_non_finite']}" if row["first_non_finite"] else ""
        first += f", {row['line']}" if row["line"] else ""
        where = f"{_task(row)}, {row['format']}{_condition(row, experiment)}: "
        items.append(element("li", where, element("b", f"{row['crashed']} of {row['runs']} crashed"), f"{first}."))
    return element("ul", *items)


def same_answers(against: pd.DataFrame, experiment: Experiment) -> Safe:
    """Names the formats that are equivalent to fp32, that differ, or that show neither: a sentence per task."""
    said: dict[str, dict[str, list[str]]] = {}
    for row in _in_order(against):
        where = f"{_task(row)}{_condition(row, experiment)}"
        said.setdefault(where, {}).setdefault(row["answer"], []).append(row["format"])
    return element("ul", *(element("li", f"{where}: ", *_listed(formats)) for where, formats in said.items()))


def _listed(formats: dict[str, list[str]]) -> Iterable[object]:
    for place, (answer, names) in enumerate(formats.items()):
        yield from ("; " if place else "", element("b", answer), f": {', '.join(names)}")
    yield "."


def _family(row: dict[str, Any]) -> str:
    return str(row["family"]) or f"{row['exponent_bits']} exponent bits"


def summary_table(summary: pd.DataFrame, experiment: Experiment) -> Safe:
    """Scores by task, format and condition."""
    columns = [*_task_columns(experiment), Column("format", **_TEXT), *_condition_columns(experiment)]
    any_failed = bool(summary["failed"].any())
    columns += [Column("runs"), Column("crashed"), *([Column("failed")] if any_failed else [])]
    columns += [Column("mean \u00b1 std"), Column("95\u2009% interval")]
    metric = experiment.metric
    columns += [Column("IQM"), Column("fp32 \u2212 this" if metric.sign > 0 else "this \u2212 fp32")]
    rows = [
        [*_task_cells(row, experiment), row["format"], *_condition_cells(row, experiment), row["n"],
         row["crashed"] or None, *([row["failed"] or None] if any_failed else []), _with_std(row),
         interval(row["ci_low"], row["ci_high"]),
         number(row["iqm"]), number(row["drop"])]
        for row in _in_order(summary)
    ]  # fmt: skip
    scores = "has no score" if metric.crash is None else f"scores {metric.crash:g}"
    end = "at the end of training" if metric.of_agents else "of each run"
    return _folded(table(f"{metric.title} {end} (a crashed run {scores}).", columns, rows), rows)


def against_table(against: pd.DataFrame, experiment: Experiment) -> Safe | None:
    """Every format against fp32: what differs."""
    cells: _Cells = [
        (Column("P(better)"), lambda row: "" if math.isnan(row["improvement"]) else f"{row['improvement']:.2f}"),
        (Column("95\u2009% interval of P"), lambda row: _shares(*_ends(row, "improvement"))),
        (Column("difference"), lambda row: number(row["difference"])),
        (Column("95\u2009% interval"), lambda row: interval(*_ends(row, "difference"))),
        (Column("pairs"), lambda row: row["pairs"] or None),
        (Column("p"), lambda row: number(row["p"], 2)),
        (Column("p (Holm)"), lambda row: number(row["p_holm"], 2)),
    ]
    caption = "Every format against fp32 of the same condition, or of the only one that fp32 ran in."
    return _of_formats(caption, cells, against, experiment)


def equivalence_table(against: pd.DataFrame, experiment: Experiment) -> Safe | None:
    """Every format against fp32: the formats that are the same within the margin."""
    cells: _Cells = [
        (Column("difference"), lambda row: _signed(row["share"])),
        (Column("90\u2009% interval"), lambda row: _between(*_ends(row, "share"))),
        (Column("p"), lambda row: number(row["p_equivalent"], 2)),
        (Column("p (Holm)"), lambda row: number(row["p_equivalent_holm"], 2)),
        (Column("answer", **_TEXT), lambda row: row["answer"]),
    ]
    margin = f"{tick(100 * against['margin'].iloc[0])}\u2009%"
    caption = f"Equivalence: differences as shares of fp32\u2019s mean, tested to be smaller than {margin}."
    return _of_formats(caption, cells, against, experiment)


def learning_table(against: pd.DataFrame, experiment: Experiment) -> Safe | None:
    """Returns the table of how often each format fails to learn where fp32 learns, and of returns; None if unknown."""
    cells: _Cells = [
        (Column("did not learn"), lambda row: str(row["unlearned"])),
        (Column("of"), lambda row: row["learnable"]),
        (Column("90\u2009% interval of the share"), lambda row: _between(*_ends(row, "unlearned"))),
        (Column("difference of those that did"), lambda row: number(row["learned_difference"])),
        (Column("95\u2009% interval"), lambda row: interval(*_ends(row, "learned_difference"))),
        (Column("pairs"), lambda row: row["learned_pairs"] or None),
    ]
    caption = (
        "Does a run learn whose seed learned in fp32, and what do those return that did? A run has learned"
        " that ends beyond half of the way from fp32\u2019s policies before learning to its median at the end."
    )
    return _of_formats(caption, cells, against[against["learnable"] > 0], experiment)


def area_table(against: pd.DataFrame, experiment: Experiment) -> Safe | None:
    """Differences of the mean return over the learning curve, and normalized scores; None if runs lack a curve."""
    cells: _Cells = [
        (Column("difference"), lambda row: number(row["area_difference"])),
        (Column("95\u2009% interval"), lambda row: interval(*_ends(row, "area_difference"))),
        (Column("p (Holm)"), lambda row: number(row["area_p_holm"], 2)),
        (Column("normalized IQM"), lambda row: number(row["normalized_iqm"])),
        (Column("its 95\u2009% interval"), lambda row: interval(*_ends(row, "normalized_iqm"))),
    ]
    caption = (
        "The mean return over the whole learning curve, which sees how fast runs learn, against fp32\u2019s; and the"
        " interquartile mean of returns at the end, where 0 is a policy before it learns and 1 is fp32\u2019s mean."
    )
    return _of_formats(caption, cells, against[against["area_difference"].notna()], experiment)


def power_table(against: pd.DataFrame, experiment: Experiment) -> Safe | None:
    """Returns the table of the power of the test of equivalence with the existing runs; None where it is not known."""
    cells: _Cells = [
        (
            Column(f"{100 * against['margin'].iloc[0]:.3g}\u2009% lower"),
            lambda row: _percent(row["equivalent_if_lower"]),
        ),
        (Column(f"{100 * FAILING:.0f}\u2009% more fail"), lambda row: _percent(row["equivalent_if_failing"])),
        (Column("as good"), lambda row: _percent(row["equivalent_if_equal"])),
        (
            Column(f"seeds for {100 * WANTED:.0f}\u2009%"),
            lambda row: "> 256" if math.isnan(row["seeds_needed"]) else f"{row['seeds_needed']:.0f}",
        ),
        (Column("correlation of pairs"), lambda row: number(row["correlation"], 2)),
        (Column("its p"), lambda row: number(row["correlation_p"], 2)),
    ]
    caption = (
        "How often the test of equivalence calls made-up formats equivalent that are worse by the margin, that learn"
        " nothing in one more run of ten, or that are as good as fp32: by drawing from these runs as many as there are."
    )
    return _of_formats(caption, cells, against[against["equivalent_if_equal"].notna()], experiment)


def _percent(share: float) -> str:
    return "" if math.isnan(share) else f"{round(100 * share, 1):g}\u2009%"


def _ends(row: dict[str, Any], name: str) -> tuple[float, float]:
    return row[f"{name}_low"], row[f"{name}_high"]


def _of_formats(caption: str, cells: _Cells, against: pd.DataFrame, experiment: Experiment) -> Safe | None:
    """A table with a row for each task, format and condition, which are its first columns; None of no rows."""
    if against.empty:
        return None
    columns = [*_task_columns(experiment), Column("format", **_TEXT), *_condition_columns(experiment)]
    rows = [
        [
            *_task_cells(row, experiment),
            row["format"],
            *_condition_cells(row, experiment),
            *(of(row) for _, of in cells),
        ]
        for row in _in_order(against)
    ]
    return _folded(table(caption, [*columns, *(column for column, _ in cells)], rows), rows)


def crash_table(experiment: Experiment) -> Safe | None:
    """Runs that crashed or failed, with the reason; None if all runs are done."""
    runs = experiment.runs[experiment.runs["status"].isin(["crashed", "failed"])]
    if runs.empty:
        return None
    columns = [*_task_columns(experiment), Column("format", **_TEXT), *_condition_columns(experiment)]
    columns += [Column("seed"), Column("outcome", **_TEXT), Column("at step"), Column("reason", **_TEXT)]
    order = [key for key in ("task", "format", *experiment.conditions.keys, "seed") if key in runs]
    rows = [
        [*_task_cells(row, experiment), row["format"], *_condition_cells(row, experiment), row.get("seed"),
         row["status"], None if math.isnan(row["crash_step"]) else tick(row["crash_step"]), row["reason"]]
        for row in records(runs.sort_values(order))
    ]  # fmt: skip
    scored = experiment.metric.scored.replace("no score", "without a score")
    caption = f"A crash is a result, {scored}; a failed run has none, and is tried again by the sweep."
    return _folded(table(caption, columns, rows), rows)


def failures_table(failures: pd.DataFrame, experiment: Experiment) -> Safe:
    """Returns the table of first failures in each format, from :func:`~.tables.first_failures.first_failures`."""
    columns = [*_task_columns(experiment), Column("format", **_TEXT), *_condition_columns(experiment)]
    columns += [Column("crashed"), Column("first at step"), Column("first non-finite operation", **_TEXT)]
    columns += [Column("of observed crashes")]
    rows = [
        [*_task_cells(row, experiment), row["format"], *_condition_cells(row, experiment), row["crashed"],
         None if math.isnan(row["first_step"]) else tick(row["first_step"]), row["first_non_finite"],
         percent(row["share"])]
        for row in records(failures)
    ]  # fmt: skip
    return _folded(table("What failed first: of most observed runs that crashed.", columns, rows), rows)


def numerics_table(counts: pd.DataFrame) -> Safe:
    """Returns the table of effects of rounding, by format, condition and role."""
    columns = [Column("format", **_TEXT), Column("role", **_TEXT), Column("results")]
    shares = {
        "overflow": "overflow",
        "underflow": "underflow",
        "subnormal": "subnormal",
        "nan": "NaN",
        "inexact": "inexact",
    }
    columns += [Column(text) for text in shares.values()] + [Column("additions absorbed")]
    rows = [
        [row["series"], row["role"], number(row["results"], 3),
         *(_rate(row[name], row["results"]) for name in shares), _rate(row["absorbed"], row["additions"])]
        for row in records(counts)
    ]  # fmt: skip
    return table(
        "What rounding did to the results of operations, as shares of them (over all observed runs).", columns, rows
    )


def _with_std(row: dict[str, Any]) -> str:
    mean, std = number(row["mean"]), number(row["std"])
    return mean if std == "\u2013" else f"{mean} \u00b1 {std}"


def _rate(count: int, of: int) -> str:
    if not count or not of:
        return "0" if of else "\u2013"
    share = count / of
    return (
        f"{share:.0e}".replace("-0", "\u2212").replace("-", "\u2212") if share < 1e-3 else f"{100 * share:.2g}\u2009%"
    )


def _shares(low: float, high: float) -> str:
    return "\u2013" if low != low else f"{low:.2f} to {high:.2f}"  # noqa: PLR0124  NaN


def _signed(share: float) -> str:
    return change(share).replace(" ", "\u2009").replace("-", "\u2212") or "\u2013"


def _between(low: float, high: float) -> str | None:
    """An interval of shares, in words at an open end."""
    if math.isnan(low) and math.isnan(high):
        return None
    return f"{'below' if math.isnan(low) else _signed(low)} to {'above' if math.isnan(high) else _signed(high)}"


def _sure(confidence: float) -> str:
    """A confidence in percent, below 100 %: replicates without exception do not give certainty."""
    return percent(min(confidence, 0.9999))


def _range(low: int, high: int) -> str:
    return f"{low} to {high}" if low < high else str(low)


def _folded(drawn: Safe, rows: list[list[object]]) -> Safe:
    """A long table is shown when asked for, and on paper."""
    if len(rows) <= _LONG:
        return drawn
    return element("details", element("summary", f"The table: {len(rows)} rows"), drawn)


def _in_order(rows: pd.DataFrame) -> list[dict[str, Any]]:
    """Tasks, then their mean."""
    return sorted(records(rows), key=lambda row: row["task"] == ALL_TASKS)


def _task(row: dict[str, Any]) -> str:
    if row["task"] != ALL_TASKS:
        return str(row["task"])
    return "mean over tasks, normalized" if row.get("normalized") else "mean over tasks"


def _bits(row: dict[str, Any], column: str) -> object:
    """The bits needed; for a single format, whether it is good."""
    if _missing(row[column]):
        return None
    return row[column] if row["largest"] else "yes"


def _missing(value: object) -> bool:
    return not isinstance(value, int)


def _condition(row: dict[str, Any], experiment: Experiment) -> str:
    return f", {experiment.conditions.label(row)}" if experiment.conditions.keys else ""


def _task_columns(experiment: Experiment) -> list[Column]:
    return [Column("task", **_TEXT)] if len(set(experiment.runs["task"])) > 1 else []


def _task_cells(row: dict[str, Any], experiment: Experiment) -> list[str]:
    return [_task(row)] if len(set(experiment.runs["task"])) > 1 else []


def _condition_columns(experiment: Experiment) -> list[Column]:
    return [Column("condition", **_TEXT)] if experiment.conditions.keys else []


def _condition_cells(row: dict[str, Any], experiment: Experiment) -> Iterable[str]:
    return [experiment.conditions.label(row)] if experiment.conditions.keys else []


def needed_details(needed: pd.DataFrame, experiment: Experiment) -> Safe:
    """The bits that each task needs, in numbers."""
    floats = bool((needed["family"] == "").all())
    family = Column("exponent bits") if floats else Column("formats", **_TEXT)
    columns = [*_task_columns(experiment), family, *_condition_columns(experiment)]
    columns += [Column("bits needed"), Column("confidence"), Column("by means alone"), Column("tested"), Column("runs")]
    columns += [Column("resampled", **_TEXT)]
    rows = [
        [*_task_cells(row, experiment), row["exponent_bits"] if floats else _family(row),
         *_condition_cells(row, experiment), _bits(row, "bits"), _sure(row["confidence"]), _bits(row, "by_means"),
         _range(row["smallest"], row["largest"]) if row["largest"] else None, row["runs"],
         "by seed" if row["paired"] else "unpaired"]
        for row in _in_order(needed)
    ]  # fmt: skip
    bits = "Significand bits" if floats else "Bits"
    caption = f"{bits} needed. Without bits, the confidence is that of the widest format."
    return _folded(table(caption, columns, rows), rows)
