"""Carries out ``roundoff plot``: writes figures and tables of a folder of runs."""

from __future__ import annotations

import html
import io
import math
import re
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib as mpl
import pandas as pd
from matplotlib.figure import Figure

from roundoff.runs.metric import RETURN, Metric

from .errors import AnalysisError
from .figures.catalogue import ALWAYS, FIGURES
from .figures.drawing.style import INLINE, SIZES, Size, drawable
from .figures.drawing.tooltips import fill_tooltips
from .runs.experiment import Experiment, read_experiment
from .runs.files import make_folder, replace_file
from .tables import markdown
from .tables.pareto import with_costs
from .tables.run_table import first_failures
from .tables.summary import ALL_TASKS, ended, records, summarize

# Neither dates nor versions: the same runs give the same bytes.
_METADATA: dict[str, dict[str, Any]] = {
    "png": {"Software": None},
    "svg": {"Date": None, "Creator": None},
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
}

_TEXTS = (
    "id", "task", "panel", "series", "line", "condition", "format", "status", "role", "seed", "x", "y", "across", "up",
)  # fmt: skip

TYPES = tuple(_METADATA)
"""The types of files with figures."""


def plot(
    directory: str | Path,
    *,
    width: str = "screen",
    types: Sequence[str] = ("png", "svg"),
    figures: Sequence[str] = (),
    tables: Sequence[str] = (),
    out: str | Path | None = None,
) -> tuple[list[Path], tuple[str, ...]]:
    """Writes figures, each with the table (``.csv``) that it is drawn from, and two tables more, into the folder.

    Tables: ``summary.csv`` (:func:`~.tables.summary.summarize`, with the costs that ``roundoff cost`` has counted) and
    ``runs.csv`` (every run); ``failures.csv``, if observed runs crashed (:func:`~.tables.run_table.first_failures`).
    Figures: ``degradation``, ``curves``, ``profiles`` and ``training``; ``degradation-exponent`` and ``plane``, if the
    exponent varies too; ``degradation-significand`` and ``degradation-bits`` (per number), if formats of several
    families vary; ``settings``, if a setting has three numbers or more; ``curves-environments`` and
    ``curves-batch_size``, if that varies; ``comparison`` and ``heatmap``, if something besides task, format and seed
    varies; ``hyperparameters``, if several numbers do; ``exponents``, ``gradients`` and ``norms``, if runs were
    observed; ``differences``, if runs kept their networks; ``pareto-bits``, ``pareto-bytes``, ``pareto-bops``,
    ``pareto-memory``, ``pareto-sent`` and ``pareto-energy``, if ``roundoff cost`` has counted the cost of a step. The
    same runs give the same bytes. Each file is replaced as a whole.

    Args:
        directory: the folder of a sweep, or of runs.
        width: ``screen``; or ``single`` or ``double``, for a column of a journal or two: files are then called
            ``degradation-single.pdf`` and so on.
        types: the types of the files with figures: ``png``, ``svg``, ``pdf``.
        figures: names of those to draw; all there are if empty.
        tables: ``md``, ``tex``: also the summary for people, as ``summary.md`` (Markdown) and ``summary.tex`` (LaTeX,
            with the package booktabs).
        out: another folder to write into; made if missing.

    Returns:
        The files written, and warnings about omissions: damaged files, unfinished runs.

    Raises:
        AnalysisError: nothing to plot, a folder that cannot be written, unknown width, type, figure or kind of table.
    """
    path = Path(directory)
    folder = path if out is None else Path(out)
    check_known("width", [width], SIZES)
    check_known("type", types, TYPES)
    check_known("figure", figures, FIGURES)
    check_known("kind of table", tables, FORMATS)
    experiment = read_experiment(path)
    if out is not None:
        make_folder(folder)
    warnings = open_run_warnings(path, experiment)
    summary = summarize(experiment)
    written = [
        replace_file(folder / "summary.csv", _csv(with_costs(summary, experiment))),
        replace_file(folder / "runs.csv", _csv(experiment.runs)),
    ]
    failures = first_failures(experiment)
    if failures["observed"].any():
        written.append(replace_file(folder / "failures.csv", _csv(failures)))
    for kind in tables:
        text = format_table(summary_text(experiment, summary), kind)
        written.append(replace_file(folder / f"summary.{kind}", text.encode()))
    for name in figures or FIGURES:
        stem = name if width == "screen" else f"{name}-{width}"
        drawn = FIGURES[name].table(experiment, summary, warnings)
        if drawn is not None and (len(drawn) or (name in ALWAYS and experiment.metric.of_agents)):
            files = FigureFiles(name, folder / f"{name}.csv", [folder / f"{stem}.{kind}" for kind in types])
            subject = "" if experiment.metric.of_agents else experiment.name
            written += write_figure(files, drawn, subject, width, experiment.metric)
    return written, (*experiment.said, *warnings)


def check_known(kind: str, values: Iterable[str], allowed: Iterable[str]) -> None:
    """Raises AnalysisError unless all values are allowed."""
    allowed = list(allowed)
    for value in values:
        if value not in allowed:
            raise AnalysisError(f"{kind} {value!r}: unknown {kind}; allowed are {', '.join(allowed)}")


class FigureFiles(NamedTuple):
    """A figure and the files it is written to.

    Attributes:
        figure: one of ``FIGURES``.
        table: the file of the table that it is drawn from.
        images: the files of the figure; their suffixes are the types.
    """

    figure: str
    table: Path
    images: Sequence[Path]


def write_figure(
    files: FigureFiles, table: pd.DataFrame, title: str, width: str = "screen", metric: Metric = RETURN
) -> list[Path]:
    """Writes a table, and the figure that is drawn from the written table; returns the paths of both.

    Raises:
        AnalysisError: a file cannot be written.
    """
    content = _csv(table)
    written = [replace_file(files.table, content)]
    drawn = draw(files.figure, content, table, title, SIZES[width], metric)
    images = [(path, _image(drawn, path.suffix[1:], SIZES[width].dots)) for path in files.images]
    return written + [replace_file(path, image) for path, image in images]


def inline_svg(name: str, table: pd.DataFrame, title: str, metric: Metric) -> str:
    """Makes an SVG of a figure for a page: only its element, with text as text, unique ids and no background.

    Args:
        name: one of ``FIGURES``.
        table: the table that it is drawn from.
        title: an alternative text for readers who do not see the figure.
        metric: the metric of the scores.
    """
    # Text stays text, so that a reader can search and copy it; paths would also be larger.
    drawn = draw(name, _csv(table), table, "", INLINE, metric)
    with mpl.rc_context({"svg.fonttype": "none"}):
        svg = _svg(drawn, INLINE.dots, transparent=True, salt=name)
    # Removes names of groups, which other figures share; escaped text cannot look like an element.
    svg = re.sub(r"<!--.*?-->|<metadata>.*?</metadata>|<style.*?</style>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'<g id="\w+">', "<g>", svg).replace("<use xlink:href=", "<use href=")
    head, _, body = re.sub(r"\n\s*<", "<", svg[svg.index("<svg") :]).partition(">")
    view = re.search(r'viewBox="[\d. ]+"', head)
    assert view
    label = html.escape(drawable(title).replace(r"\$", "$"))
    return f'<svg {view[0]} class="chart" role="group" tabindex="0" aria-label="{label}">{body}'


def draw(name: str, content: bytes, table: pd.DataFrame, title: str, size: Size, metric: Metric) -> Figure:
    """Draws a figure from its table as it was written.

    Args:
        name: one of ``FIGURES``.
        content: the content of the file with its table.
        table: the table before it was written.
        title: the title of the figure.
        size: the size of the figure.
        metric: the metric of the scores.
    """
    numbers = {column for column in table if pd.api.types.is_numeric_dtype(table[column])}  # a program may log any name
    shown = read_table(content, numbers - {"seed"})
    texts = shown.select_dtypes(exclude="number").columns
    for column in texts:  # maps unique texts: few texts occur many times
        shown[column] = shown[column].map({text: drawable(text) for text in shown[column].dropna().unique()})
    written = metric.model_copy(update={"name": drawable(metric.name), "unit": drawable(metric.unit)})
    drawn: Figure = FIGURES[name].draw(drawable(title), shown, size=size, metric=written)
    return drawn


def open_run_warnings(path: Path, experiment: Experiment, place: str = "the degradation plot") -> list[str]:
    """Warns of runs that have failed or not ended, which are missing in ``place``.

    Raises:
        AnalysisError: no run has ended.
    """
    finished = ended(experiment.runs)
    open_runs = experiment.runs[~experiment.runs["id"].isin(finished["id"])]
    if finished.empty:
        raise AnalysisError(
            f"{path}: none of its {len(open_runs)} runs has ended yet; continue with the command that started it"
        )
    if open_runs.empty:
        return []
    counts = ", ".join(f"{count} {status}" for status, count in open_runs["status"].value_counts().items())
    missing = "1 run has" if len(open_runs) == 1 else f"{len(open_runs)} runs have"
    return [f"{path}: {missing} no score in {place} ({counts})"]


def read_table(content: bytes, numbers: Collection[Any] = ()) -> pd.DataFrame:
    """Reads a table as :func:`plot` wrote it; figures are drawn from it, so their numbers are the file's.

    Args:
        content: the content of the file.
        numbers: columns of numbers, whatever they are called.
    """
    text = {name: str for name in _TEXTS if name not in numbers}
    table = pd.read_csv(io.BytesIO(content), dtype=text, keep_default_na=False, na_values=[""])
    return table.fillna(dict.fromkeys(set(table) & set(text), ""))


def _csv(table: pd.DataFrame) -> bytes:
    """Writes a table as CSV: floats with ten digits, as strings, which pandas writes several times faster."""
    written = table.astype(object)
    for name in filter(lambda name: pd.api.types.is_float_dtype(table[name]), table):
        texts = pd.Series([f"{number:.10g}" for number in table[name]], table.index, object)
        written[name] = texts.mask(table[name].isna())
    return written.to_csv(index=False, lineterminator="\n").encode()


def _image(drawn: Figure, kind: str, dots: float) -> bytes:
    if kind == "svg":
        return _svg(drawn, dots).encode()
    buffer = io.BytesIO()
    drawn.savefig(buffer, format=kind, dpi=dots, metadata=_METADATA[kind])
    return _reduce_colours(buffer, dots) if kind == "png" else buffer.getvalue()


def _svg(drawn: Figure, dots: float, *, transparent: bool = False, salt: str = "roundoff") -> str:
    buffer = io.StringIO()
    with mpl.rc_context({"svg.hashsalt": salt}):  # else every call gives other ids
        drawn.savefig(buffer, format="svg", dpi=dots, metadata=_METADATA["svg"], transparent=transparent)
    return fill_tooltips(buffer.getvalue(), drawn)


def _reduce_colours(png: io.BytesIO, dots: float) -> bytes:
    """Reduces a PNG to 256 of its colours: a third to a half of the bytes, and no visible difference."""
    from PIL import Image  # noqa: PLC0415

    with Image.open(png) as picture:
        reduced = picture.convert("RGB").quantize(256, method=Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    smaller = io.BytesIO()
    reduced.save(smaller, "PNG", optimize=True, dpi=(dots, dots))
    return smaller.getvalue()


FORMATS = ("md", "tex")
"""The formats of tables for people."""

_FAILED = "first non-finite operation"


def summary_text(experiment: Experiment, summary: pd.DataFrame) -> pd.DataFrame:
    """Writes the summary as texts: a row per task, format and condition, with the first failure of observed runs.

    Columns: ``task`` if there are several, ``format``, ``condition`` if there are any, ``runs``, ``crashed``,
    ``failed`` if any did, the mean of the metric with its standard deviation, its 95 % interval, how much worse than
    fp32 it is, and the first non-finite operation if any run names one.
    """
    metric, conditions = experiment.metric, experiment.conditions
    keys = ["task", "format", *conditions.keys]
    failures = first_failures(experiment)
    failed = {tuple(str(row[key]) for key in keys): row["first_non_finite"] for row in records(failures)}
    several = len(set(summary["task"])) > 1
    rows = []
    for row in records(summary):
        cells = {"task": "mean over tasks" if row["task"] == ALL_TASKS else row["task"]} if several else {}
        cells |= {"format": row["format"]} | ({"condition": conditions.label(row)} if conditions.keys else {})
        cells |= {"runs": str(row["n"]), "crashed": str(row["crashed"])}
        cells |= {"failed": str(row["failed"])} if summary["failed"].any() else {}
        cells[metric.label] = _number(row["mean"]) + (f" ± {row['std']:.2g}" if _is_known(row["std"]) else "")
        ends = [_number(row[name]) for name in ("ci_low", "ci_high")]
        cells["95 % interval"] = " to ".join(ends) if all(ends) else ""
        cells["fp32 - this" if metric.sign > 0 else "this - fp32"] = _number(row["drop"])
        rows.append(cells | {_FAILED: failed.get(tuple(str(row[key]) for key in keys), "")})
    table = pd.DataFrame(rows)
    return table if any(failed.values()) else table.drop(columns=_FAILED, errors="ignore")


def format_table(table: pd.DataFrame, kind: str) -> str:
    """Writes a table of texts as the content of a file.

    Args:
        table: from :func:`summary_text`.
        kind: ``md``; or ``tex``, for the package ``booktabs``.
    """
    if kind == "md":
        return markdown.table(records(table)) + "\n"
    numbers = {"runs", "crashed", "failed", "95 % interval"}
    aligned = "".join("r" if name in numbers or "fp32" in name else "l" for name in table.columns)
    return table.to_latex(index=False, escape=True, column_format=aligned).replace("±", r"$\pm$")


def _is_known(value: Any) -> bool:
    return not math.isnan(value)


def _number(value: float) -> str:
    return f"{value:.4g}" if _is_known(value) else ""
