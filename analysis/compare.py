"""Compares sweeps in one figure: the score relative to fp32 against significand bits, a line for each sweep."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from roundoff.files import make_directory
from roundoff.runs.metric import Metric

from .errors import AnalysisError
from .figures.drawing.style import SIZES
from .figures.relative import relative_table
from .plot import TYPES, FigureFiles, check_known, open_run_warnings, write_figure
from .runs.experiment import read_experiment
from .runs.files import replace_file
from .tables.markdown import table as markdown_table
from .tables.summary import REFERENCE, ended, records

_SIZES = "-quick", "-overnight"  # how the names of small presets end
_REASONS = 5  # reasons for leaving out conditions of one folder


def compare(
    directories: Sequence[str | Path],
    out: str | Path,
    *,
    names: Sequence[str] = (),
    width: str = "screen",
    types: Sequence[str] = ("png", "svg"),
) -> tuple[list[Path], tuple[str, ...]]:
    """Writes the figure ``relative`` over all sweeps, with its tables, into ``out``.

    ``relative.png`` and ``relative.svg`` have a line for each sweep, and for each task and condition of a sweep that
    has several; lines are named by the sweep, without ``-quick``. ``relative.csv`` has the figure's data:
    the columns of :func:`~.figures.relative.relative_table`, with ``sweep`` and ``condition``; ``series`` is the name
    of the line. ``relative.md`` is the same for people. The same runs give the same bytes.

    Args:
        directories: the folders of sweeps, or of runs; lines have their order.
        out: the folder to write into, made if it is missing.
        names: the names of the sweeps in the figure, in the order of ``directories``; empty: their own.
        width: as of :func:`~.plot.plot`; ``single`` is called ``relative-single.png`` and so on.
        types: the types of the files with the figure: ``png``, ``svg``, ``pdf``.

    Returns:
        The files written, and warnings about omissions: folders and conditions without runs in fp32 and in
        another float format, or with an fp32 mean of 0 or less; metrics to be minimized; damage.

    Raises:
        AnalysisError: no folder has anything to compare, the files cannot be written, the width or type is invalid,
            or the numbers of names and folders differ.
    """
    check_known("width", [width], SIZES)
    check_known("type", types, TYPES)
    if names and len(names) != len(directories):
        raise AnalysisError(f"{len(names)} names for {len(directories)} folders: give each folder one, in their order")
    warnings: list[str] = []
    sweeps = []
    for directory, name in zip_longest(directories, names):
        sweep = _read(Path(directory), warnings)
        if sweep:
            sweeps.append(sweep._replace(name=name) if name else sweep)
    if not sweeps:
        raise AnalysisError("\n".join(["there is nothing to compare", *warnings]))
    labels = _distinct_names([sweep.name for sweep in sweeps])
    lines = pd.concat([_with_line_names(sweep.table, name) for sweep, name in zip(sweeps, labels, strict=True)])
    metric = sweeps[0].metric if len({sweep.metric.name for sweep in sweeps}) == 1 else Metric()
    folder = make_directory(out)
    stem = "relative" if width == "screen" else f"relative-{width}"
    files = FigureFiles("relative", folder / "relative.csv", [folder / f"{stem}.{kind}" for kind in types])
    title = labels[0] if len(sweeps) == 1 else f"{len(sweeps)} sweeps"
    written = write_figure(files, lines, title, width, metric)
    return [*written, replace_file(folder / "relative.md", _markdown_page(lines, metric).encode())], tuple(warnings)


class _Sweep(NamedTuple):
    """The data of one folder: its name, its :func:`~.figures.relative.relative_table`, and the metric of its scores."""

    name: str
    table: pd.DataFrame
    metric: Metric


def _read(path: Path, warnings: list[str]) -> _Sweep | None:
    """Reads a sweep; None, with a warning, if nothing of it can be compared."""
    try:
        experiment = read_experiment(path)
        warnings += [*experiment.said, *open_run_warnings(path, experiment, "the figure")]
    except AnalysisError as error:
        warnings.append(f"{error}; left out")
        return None
    metric = experiment.metric
    if metric.sign < 0:
        warnings.append(f"{path}: is scored by {metric.name}, where less is better, so there are no shares; left out")
        return None
    if REFERENCE not in set(ended(experiment.runs)["format"]):
        warnings.append(f"{path}: no run in {REFERENCE} has ended to compare others with; left out")
        return None
    left_out: list[str] = []
    table = relative_table(experiment, left_out)
    if table.empty and not left_out:
        left_out.append("none of its runs has a score; left out")
    reasons = left_out[:_REASONS] + [f"{len(left_out) - _REASONS} more like these; left out"] * (
        len(left_out) > _REASONS
    )
    warnings += [f"{path}: {text}" for text in reasons]
    return _Sweep(experiment.name or path.resolve().name, table, metric) if len(table) else None


def _distinct_names(names: Sequence[str]) -> list[str]:
    """Drops the size from names of sweeps; keeps it where names would be equal, and numbers names that still are."""
    short = [name.removesuffix(next(filter(name.endswith, _SIZES), "")) or name for name in names]
    distinct = [stem if short.count(stem) == 1 else name for stem, name in zip(short, names, strict=True)]
    return [x if distinct.count(x) == 1 else f"{x} ({distinct[: i + 1].count(x)})" for i, x in enumerate(distinct)]


def _with_line_names(table: pd.DataFrame, sweep: str) -> pd.DataFrame:
    """Returns a sweep's rows with the name of a line as ``series``, and the earlier series as the ``condition``."""
    varying = [column for column in ("task", "series") if len(set(table[column])) > 1]
    names = [", ".join([sweep, *(row[column] for column in varying)]) for row in records(table)]
    named = table.assign(sweep=sweep, condition=table["series"], series=names)
    return named[["sweep", "task", "condition", *table.columns.drop("task")]]


def _markdown_page(lines: pd.DataFrame, metric: Metric) -> str:
    """Writes a table in Markdown: a row for each line, and a column for each number of significand bits."""
    widths = sorted(set(lines["significand_bits"]), reverse=True)
    rows: list[dict[str, str]] = []
    for (sweep, task, condition), line in lines.groupby(["sweep", "task", "condition"], sort=False):
        cells = {"sweep": str(sweep), "task": str(task), "condition": str(condition)}
        cells["fp32"] = f"{line['reference'].iloc[0]:.4g}"
        for width in widths:
            cells[f"m = {width:g}"] = "; ".join(
                f"{row['share']:.2f} ({row['share_low']:.2f} to {row['share_high']:.2f})".removesuffix(" (nan to nan)")
                for row in records(line[line["significand_bits"] == width])
            )
        rows.append(cells)
    fewest, most = lines["runs"].min(), lines["runs"].max()
    runs = f"{fewest}" if fewest == most else f"{fewest} to {most}"
    return (
        f"Mean {metric.name} as a share of fp32's (95 % bootstrap interval) by significand bits m; under fp32 its mean"
        f" {metric.name}. Runs of each format: {runs}.\n\n{markdown_table(rows)}\n"
    )
