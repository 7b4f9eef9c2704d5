"""The figures of the report: degradation, learning curves, score distributions, exponents."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ..figures.drawing.axes import limits_by_task, titles
from ..tables.summary import ALL_TASKS, REFERENCE, records
from .charts import MOST_LABELS, Axes, chart, rows_chart
from .marks import Point, Series, swatch
from .markup import Safe, element, interval, number, percent, plural, tick

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import pandas as pd

    from roundoff.runs.metric import Metric

_NO = float("nan")


def degradation_figure(points: pd.DataFrame, metric: Metric) -> Safe:
    """Score against significand bits, a panel per task; from :func:`~.figures.degradation.degradation_table`."""
    tasks = _tasks(points)
    names = list(dict.fromkeys(points["series"]))
    plain = [name for name in names if name.split(",")[0] != REFERENCE]
    ranks = {name: plain.index(name) if name in plain else -1 for name in names}
    panels: list[tuple[str, Safe]] = []
    legend: dict[str, Series] = {}
    bits = sorted(set(points.loc[points["series"].isin(plain), "significand_bits"].astype(int)))
    around = (bits[0] - 0.6, bits[-1] + 0.6) if bits else (0.0, 1.0)
    limits = limits_by_task(metric, points)
    for task, title in zip(tasks, titles(tasks), strict=True):
        series: list[Series] = []
        y_range = limits[task]
        here = points[points["task"] == task]
        for name in names:
            of_line = here[here["series"] == name]
            series += _degradation_series(of_line, name, ranks[name], len(plain), metric, y_range)
        axes = Axes("significand bits m", metric.label, around, y_range, bits, label_ends=False)
        panels.append(
            (_with_seeds(title, here), chart(f"{metric.title} against significand bits: {title}", axes, series))
        )
        legend |= {f"{one.kind} {one.name}": one for one in series}
    kinds = [one for one in legend.values() if one.kind in ("line", "level")]
    entries = [(one, f"{one.name}: mean, 95\u2009% interval") for one in kinds]
    told = {"runs": "one run", "crashes": f"crashed run ({metric.scored})"}
    shown = {one.kind for one in legend.values()}
    entries += [(Series("", (), 0, kind=kind), text) for kind, text in told.items() if kind in shown]
    caption = (
        f"Mean {metric.name} over seeds against significand bits, with 95\u2009% stratified bootstrap intervals"
        " (bands). Every run is a dot, beside its mean."
    )
    return _figure(panels, entries, caption)


def _degradation_series(
    rows: pd.DataFrame, name: str, rank: int, count: int, metric: Metric, y_range: tuple[float, float]
) -> list[Series]:
    means = rows[rows["kind"] == "mean"].sort_values("significand_bits")
    shift = 0.0 if rank < 0 else min(0.12, 0.7 / max(count, 1)) * (rank - (count - 1) / 2)
    line = [
        Point(row["significand_bits"], row["return"], row["ci_low"], row["ci_high"], _mean_tip(row))
        for row in records(means)
    ]
    if rank < 0:
        return [Series(name, [point], rank, kind="level") for point in line]
    found: list[Series] = []
    for status, kind in (("done", "runs"), ("crashed", "crashes")):
        dots = []
        for _, group in rows[rows["kind"] == "run"].groupby("significand_bits"):
            spread = np.linspace(-0.16, 0.16, len(group)) if len(group) > 1 else np.zeros(1)
            for place, row in zip(spread, records(group), strict=True):
                if row["status"] == status:
                    told = f"{row['format']}, {_run_tip(row, metric)}"
                    height = _placed(row, metric, y_range)
                    dots.append(Point(row["significand_bits"] + place + shift, height, _NO, _NO, told))
        if dots:
            found.append(Series(name, dots, rank, kind=kind))
    return [*found, Series(name, line, rank)] if line else found  # means are on top


def comparison_figure(points: pd.DataFrame, metric: Metric) -> Safe:
    """Formats and conditions beside each other, best on top; from :func:`~.figures.comparison.comparison_table`."""
    tasks, of_tasks = _tasks(points), limits_by_task(metric, points)
    panels = []
    for task, title in zip(tasks, titles(tasks), strict=True):
        here = points[points["task"] == task]
        limits = of_tasks[task]
        rows = []
        for name, of_row in here.groupby("series", sort=False):
            dots = of_row[of_row["kind"] == "run"]
            spread = np.linspace(-1, 1, len(dots)) if len(dots) > 1 else np.zeros(len(dots))
            series = []
            for status, kind in (("done", "runs"), ("crashed", "crashes")):
                marks = [
                    Point(_placed(row, metric, limits), place, _NO, _NO, _run_tip(row, metric))
                    for place, row in zip(spread, records(dots), strict=True)
                    if row["status"] == status
                ]
                series += [Series(str(name), marks, -1, kind=kind)] if marks else []
            series += [  # on top
                Series(str(name), [Point(row["return"], 0, row["ci_low"], row["ci_high"], _mean_tip(row))], 0)
                for row in records(of_row[of_row["kind"] == "mean"].dropna(subset="return"))
            ]
            rows.append((str(name), series))
        drawn = rows_chart(f"{metric.title} by condition: {title}", metric.label, limits, rows[::-1])
        panels.append((_with_seeds(title, here), drawn))
    caption = (
        f"Mean {metric.name} over seeds, 95\u2009% bootstrap interval (bar), and every run;"
        f" crosses are crashed runs ({metric.scored})."
    )
    return _figure(panels, [], caption)


def curves_figure(points: pd.DataFrame, metric: Metric) -> Safe:
    """Learning curves, a panel per task and condition; from :func:`roundoff.analysis.figures.curves.curves_table`."""
    lines = list(dict.fromkeys(points["line"]))
    lines.sort(key=lambda name: name != REFERENCE)
    narrow = [name for name in lines if name != REFERENCE]
    panels = []
    legend: dict[str, Series] = {}
    room = len(lines) <= MOST_LABELS
    limits = limits_by_task(metric, points)
    for panel, here in points.groupby("panel", sort=False):
        series = []
        y_range = limits[here["task"].iloc[0]]
        for name in lines:
            rank = narrow.index(name) if name in narrow else -1
            mine = here[here["line"] == name]
            line = [
                Point(
                    row["step"],
                    row["return"],
                    row["ci_low"],
                    row["ci_high"],
                    f"{name} at step {tick(row['step'])}\n{_mean(row)}\n{plural(row['n'], 'run')}",
                )
                for row in records(mine[mine["kind"] == "mean"])
            ]
            crashes = [
                Point(at["step"], _placed(at, metric, y_range), _NO, _NO, f"{name}: crashed at step {tick(at['step'])}")
                for at in records(mine[mine["kind"] == "crash"])
            ]
            if crashes:
                series.append(Series(name, crashes, rank, kind="crashes"))
            if line:
                shade = None if rank < 0 else rank / max(len(narrow) - 1, 1)
                series.append(Series(name, line, rank, shade))
        legend |= {one.name: one for one in series if one.kind == "line"}
        crashed = (here["kind"] == "crash").any()  # how much of their time had runs when they crashed?
        x_range = (0.0, float(here[["step", "steps"] if crashed else ["step"]].max().max()))
        axes = Axes(metric.steps, metric.label, x_range, y_range, label_ends=room)
        title = f"{panel} ({plural(here['seeds'].iloc[0], 'seed')})"
        panels.append((title, chart(f"Learning curves: {panel}", axes, series)))
    counts = "has no score" if metric.crash is None else f"counts as {metric.crash:g}"
    caption = (
        f"Mean {metric.name} over seeds {'at each evaluation' if metric.of_agents else 'as logged'},"
        f" with 95\u2009% bootstrap intervals. A crashed run {counts} from its crash on, where it has a cross;"
        " runs that have not ended are drawn as far as they are."
    )
    entries = [] if room else [(one, name) for name, one in legend.items()]
    return _figure(panels, entries, caption)


def profiles_figure(profiles: pd.DataFrame, metric: Metric) -> Safe:
    """Score distributions, a panel per task; from :func:`roundoff.analysis.figures.profiles.profiles_table`."""
    told = "return more than" if metric.of_agents else f"have {metric.name} {metric.better}"
    names = list(dict.fromkeys(profiles["series"]))
    narrow = [name for name in names if name.split(",")[0] != REFERENCE]
    panels: list[tuple[str, Safe]] = []
    legend: list[tuple[Series, str]] = []
    tasks = _tasks(profiles)
    for task, title in zip(tasks, titles(tasks), strict=True):
        here = profiles[profiles["task"] == task]
        series = []
        for name in names:
            rank = narrow.index(name) if name in narrow else -1
            line = [
                Point(
                    row["return"],
                    row["fraction"],
                    row["ci_low"],
                    row["ci_high"],
                    f"{name}: {percent(row['fraction'])} of runs {told} {number(row['return'])}",
                )
                for row in records(here[here["series"] == name])
            ]
            shade = None if rank < 0 else rank / max(len(narrow) - 1, 1)
            if line:
                series.append(Series(name, line, rank, shade))
        x_range = (float(here["return"].min()), float(here["return"].max()))
        axes = Axes(f"{metric.name} tau", f"share of runs {metric.better} tau", x_range, (0.0, 1.0), label_ends=False)
        panels.append((title, chart(f"Score distribution: {title}", axes, series)))
        legend = [(one, one.name) for one in series]
    caption = f"Share of runs that {told} tau (performance profile): the higher line is the better one."
    return _figure(panels, legend, caption, lines_only=True)


def exponents_figure(shares: pd.DataFrame) -> Safe:
    """Draws where results lie at the end of training, from :func:`.magnitudes_table`."""
    panels, legend = [], []
    for role, here in shares.groupby("role", sort=False):
        series = []
        names = list(dict.fromkeys(here["series"]))
        for rank, name in enumerate(names):
            line = [
                Point(
                    row["exponent"],
                    np.log10(row["share"]),
                    _NO,
                    _NO,
                    f"{name}: {row['share']:.2g} of results in [2^{row['exponent']}, 2^{row['exponent'] + 1})",
                )
                for row in records(here[here["series"] == name])
            ]
            series.append(Series(name, line, rank, rank / max(len(names) - 1, 1)))
        x_range = (float(shares["exponent"].min()), float(shares["exponent"].max()))
        axes = Axes(
            "exponent k of the magnitude", "log10 of the share of results", x_range, (-8.0, 0.0), label_ends=False
        )
        panels.append((str(role), chart(f"Magnitudes of results: {role}", axes, series)))
        legend = [(one, one.name) for one in series]
    caption = "How results that are not zero are spread over magnitudes, in the last interval between evaluations."
    return _figure(panels, legend, caption)


def _figure(
    panels: Sequence[tuple[str, Safe]], legend: Iterable[tuple[Series, str]], caption: str, *, lines_only: bool = False
) -> Safe:
    shown = [element("div", element("h3", title), drawn, class_="panel") for title, drawn in panels]
    items = [element("li", swatch(one), text) for one, text in legend]
    kind = ("panels" if len(panels) > 1 else "panels one") + (" lines" if lines_only else "")
    return element(
        "figure",
        element("div", *shown, class_=kind),
        element("ul", *items, class_="legend") if items else None,
        element("figcaption", caption),
    )


def _tasks(points: pd.DataFrame) -> list[str]:
    """Returns the tasks in order of appearance, their mean last."""
    tasks = [str(task) for task in dict.fromkeys(points["task"])]
    return sorted(tasks, key=lambda task: task == ALL_TASKS)


def _with_seeds(title: str, rows: pd.DataFrame) -> str:
    most = rows["n"].max()
    return f"{title} ({plural(most, 'run')} each)" if most == most else title  # noqa: PLR0124  not NaN


def _mean_tip(row: dict[str, Any]) -> str:
    crashed = f", {row['crashed']:.0f} crashed" if row["crashed"] else ""
    name = f"{row['format']}, {row['series'].partition(', ')[2]}".removesuffix(", ")
    return f"{name}\n{_mean(row)}\n{plural(row['n'], 'run')}{crashed}"


def _mean(row: dict[str, Any]) -> str:
    around = interval(row["ci_low"], row["ci_high"])
    return f"mean {number(row['return'])}" + (f" ({around})" if around != "\u2013" else ", no interval")


def _run_tip(row: dict[str, Any], metric: Metric) -> str:
    seed = f"seed {_plain(row['seed'])}"
    return f"{seed}: crashed, {metric.scored}" if row["status"] == "crashed" else f"{seed}: {number(row['return'])}"


def _placed(row: dict[str, Any], metric: Metric, limits: tuple[float, float]) -> float:
    """Returns the place of a run: its score, or the worse end where it has none."""
    if row["return"] == row["return"]:
        return float(row["return"])
    return limits[0] if metric.sign > 0 else limits[1]


def _plain(seed: object) -> str:
    return f"{seed:.0f}" if isinstance(seed, float) and seed == seed else str(seed)  # noqa: PLR0124  not NaN
