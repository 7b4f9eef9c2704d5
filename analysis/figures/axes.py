"""What figures are drawn from, as tables: every mark of the degradation plot and of the learning curves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from ..statistics.intervals import bootstrap_interval, generator_for, performance_profile, profile_band
from ..statistics.summary import (
    ALL_TASKS,
    REFERENCE,
    condition_label,
    conditions,
    ended,
    records,
    significand_bits,
)
from ..statistics.summary import exponent_bits as exponents_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ..runs.experiment import Experiment

ROLES = ("forward", "backward", "optimizer")
_MARKS = ["task", "series", "format", "exponent_bits", "significand_bits", "kind", "seed", "status", "n", "crashed"]
_MARKS += ["return", "ci_low", "ci_high"]


def degradation_points(experiment: Experiment, summary: pd.DataFrame, across: str = "significand_bits") -> pd.DataFrame:
    """The marks of the degradation plot: a row of ``kind`` mean for each row of the summary, and one for each run.

    Args:
        experiment: the runs.
        summary: of the same experiment, from :func:`roundoff.analysis.statistics.summary.summarize`.
        across: the column that varies along a line of the plot: ``significand_bits``, or ``exponent_bits``.

    Columns: ``task``, ``series`` (a line: the other width, and condition; or fp32), ``format``,
    ``exponent_bits``, ``significand_bits``, ``kind`` (mean or run), ``seed`` and ``status`` of runs, ``n`` and
    ``crashed`` of means, ``return``, ``ci_low`` and ``ci_high`` of means. Formats that are no floats are left out.
    """
    keys = conditions(experiment.runs)

    def series(row: dict[str, Any]) -> str:
        width = (
            f"e{row['exponent_bits']:.0f}mX" if across == "significand_bits" else f"eXm{row['significand_bits']:.0f}"
        )
        name = REFERENCE if row["format"] == REFERENCE else width
        return f"{name}, {condition_label(experiment.runs, row)}" if keys else name

    runs = ended(experiment.runs)
    runs = runs.assign(
        exponent_bits=runs["format"].map(exponents_of), significand_bits=runs["format"].map(significand_bits)
    )
    # The first row of a line says where it stands among the others, so means come first, in the summary's order.
    rows = [
        {**{key: row.get(key) for key in _MARKS}, "kind": kind, "series": series(row), "return": row[value]}
        for kind, table, value in (("mean", summary, "mean"), ("run", _by_seed(runs), "return"))
        for row in records(table)
        if not np.isnan(row["significand_bits"])
    ]
    return pd.DataFrame(rows, columns=_MARKS)


def comparison_points(experiment: Experiment, summary: pd.DataFrame) -> pd.DataFrame:
    """The marks of the comparison of conditions: columns and kinds as of the degradation plot, worst first.

    ``series`` is the format and condition, in words.
    """
    keys = conditions(experiment.runs)

    def series(row: dict[str, Any]) -> str:
        return f"{row['format']}, {condition_label(experiment.runs, row)}"

    runs = _by_seed(ended(experiment.runs))
    rows = [
        {**{key: row.get(key) for key in _MARKS}, "kind": kind, "series": series(row), "return": row[value]}
        for kind, table, value in (("mean", summary, "mean"), ("run", runs, "return"))
        for row in records(table)
    ]
    table = pd.DataFrame(rows, columns=_MARKS)
    means = summary.groupby(["format", *keys], dropna=False)["mean"].mean().sort_values()
    names = [series(dict(zip(["format", *keys], where, strict=True))) for where in means.index]
    order = {name: i for i, name in enumerate(names)}
    return table.sort_values("series", key=lambda column: column.map(order), kind="stable", ignore_index=True)


def curve_points(experiment: Experiment) -> pd.DataFrame:
    """The learning curves: a row of ``kind`` mean per task, condition, format and step, and one for each crash.

    Columns: ``task``, ``panel`` (the task and condition, in words), ``seeds`` and ``steps`` (of the panel; how many
    its longest run was to have), ``format``, ``kind`` (mean or crash), ``step``, ``n`` (runs evaluated there; a
    crashed run counts as 0 from its crash on), ``return`` (mean over them), ``ci_low``, ``ci_high`` (95 %, bootstrap
    over runs). A crash has its ``step`` and the ``return`` 0.
    """
    runs = experiment.runs
    keys = conditions(runs)
    rows: list[dict[str, Any]] = []
    curves = dict(list(experiment.curves.drop_duplicates(["id", "step"], keep="last").groupby("id")))
    for where, group in runs.groupby(["task", *keys], dropna=False):
        panel = ", ".join([str(where[0]), *(f"{key} {value}" for key, value in zip(keys, where[1:], strict=True))])
        seeds = group["seed"].nunique() if "seed" in group else len(group)
        steps = group["steps"].map(_length).max() if "steps" in group else np.nan
        for name in sorted(group["format"].unique(), key=from_wide_to_narrow):
            mine = group[group["format"] == name]
            table = _on_grid(mine, curves)
            generator = generator_for(name)
            about = {"task": where[0], "panel": panel, "seeds": seeds, "steps": steps, "format": name}
            for step, row in table.iterrows():
                scores = row.dropna().to_numpy(float)
                low, high = bootstrap_interval([scores], generator, replicates=2000)
                point = {"n": scores.size, "return": scores.mean(), "ci_low": low, "ci_high": high}
                rows.append({**about, "kind": "mean", "step": step, **point})
            crashes = sorted(mine.loc[mine["status"] == "crashed", "crash_step"].dropna())
            rows += [{**about, "kind": "crash", "step": int(step), "n": 1, "return": 0.0} for step in crashes]
    columns = ["task", "panel", "seeds", "steps", "format", "kind", "step", "n", "return", "ci_low", "ci_high"]
    return pd.DataFrame(rows, columns=columns)


def profile_points(experiment: Experiment) -> pd.DataFrame:
    """Score distributions: the share of runs above each return tau, per task, and over all tasks.

    Columns: ``task``, ``series`` (format, and condition if any varies), ``n``, ``return`` (tau, 51 of them over the
    range of returns), ``fraction``, ``ci_low``, ``ci_high`` (95 % for each tau by itself, bootstrap over runs).
    """
    runs = ended(experiment.runs)
    keys = conditions(experiment.runs)
    tasks = sorted(set(runs["task"]))
    low, high = return_limits(tasks, runs["return"], margin=0)
    tau = np.linspace(low, high, 51)
    rows = []
    selections = records(runs[["format", *keys]].drop_duplicates())
    for values in sorted(selections, key=lambda values: from_wide_to_narrow(values["format"])):
        name = f"{values['format']}, {condition_label(experiment.runs, values)}" if keys else values["format"]
        here = runs[(runs[list(values)].astype(str) == pd.Series(values).astype(str)).all(axis=1)]
        groups = {task: part["return"].to_numpy(float) for task, part in here.groupby("task")}
        chosen = [(task, [scores]) for task, scores in groups.items()]
        chosen += [(ALL_TASKS, list(groups.values()))] if len(tasks) > 1 and len(groups) == len(tasks) else []
        for task, scores in chosen:
            profile = performance_profile(scores, tau)
            band = profile_band(scores, tau, generator_for("profile", task, name))
            rows += [
                {"task": task, "series": name, "n": sum(map(len, scores)), "return": at, "fraction": share}
                | {"ci_low": ends[0], "ci_high": ends[1]}
                for at, share, ends in zip(tau, profile, band, strict=True)
            ]
    return pd.DataFrame(rows, columns=["task", "series", "n", "return", "fraction", "ci_low", "ci_high"])


def exponent_points(experiment: Experiment) -> pd.DataFrame:
    """How results are spread over binary exponents in the last interval of each observed format.

    Columns: ``role``, ``format``, ``exponent`` k, ``results`` with a magnitude in [2^k, 2^(k+1)), of all runs of the
    format, ``share`` of all results of the role that are neither zero nor infinite.
    """
    table = experiment.exponents.merge(experiment.runs[["id", "format"]], on="id")
    last = table[table["step"] == table.groupby("id")["step"].transform("max")]
    counts = last.groupby(["role", "format", "exponent"], as_index=False)["results"].sum()
    counts = counts[counts["results"] > 0]
    counts["share"] = counts["results"] / counts.groupby(["role", "format"])["results"].transform("sum")
    order = {name: i for i, name in enumerate(sorted(counts["format"].unique(), key=from_wide_to_narrow))}
    roles = {name: i for i, name in enumerate(ROLES)}
    ordered: pd.DataFrame = counts.sort_values(
        ["role", "format", "exponent"],
        key=lambda column: column.map(lambda value: order.get(value, roles.get(value, value))),
        ignore_index=True,
    )
    return ordered


def return_limits(tasks: Iterable[str], returns: Iterable[float], margin: float = 0.04) -> tuple[float, float]:
    """Ends of an axis of returns, with a margin.

    Args:
        tasks: shown there. Those of the control suite return 0 to 1000, others (``gym:...``) anything.
        returns: all that are shown; NaN is passed over.
        margin: on either side, as a fraction of the range.
    """
    low, high = 0.0, 1000.0
    if any(":" in task for task in tasks):
        finite = [0.0, *(float(value) for value in returns if value == value)]  # noqa: PLR0124  not NaN
        low, high = min(finite), max(finite)
    space = margin * ((high - low) or 1.0)
    return low - space, high + space


def titles(tasks: list[str]) -> list[str]:
    """Of panels, one for each task."""
    return ["mean over tasks" if task == ALL_TASKS else task for task in tasks]


def _by_seed(runs: pd.DataFrame) -> pd.DataFrame:
    return runs.sort_values([key for key in ("task", "format", "seed", "id") if key in runs])


def from_wide_to_narrow(name: str) -> tuple[bool, float, float]:
    """Sorts names of formats: fp32, then by exponent bits, then by significand bits."""
    return name != REFERENCE, -exponents_of(name), -significand_bits(name)


def _length(steps: Any) -> float:
    """As planned; NaN if the config of a run says nothing sensible."""
    return float(steps) if isinstance(steps, int | float) and abs(steps) < 1e15 else np.nan


def _on_grid(runs: pd.DataFrame, curves: dict[Any, pd.DataFrame]) -> pd.DataFrame:
    """Returns by step (rows) and run (columns), NaN where a run was not evaluated."""
    runs = runs.sort_values("id")
    columns = {
        run: curves[run].set_index("step")["return"] if run in curves else pd.Series(dtype=float) for run in runs["id"]
    }
    table = pd.DataFrame(columns).sort_index()
    crashed = runs[runs["status"] == "crashed"]
    for identity, step in zip(crashed["id"], crashed["crash_step"], strict=True):
        table.loc[table.index >= step, identity] = 0.0
    return table.dropna(how="all")
