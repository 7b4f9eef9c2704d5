"""A figure of a paper from a folder of runs: the figure, the measured numbers, and the paper's printed ones."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from ..errors import AnalysisError
from ..figures.catalogue import FIGURES
from ..plot import Named, about_open_runs, write_figure
from ..runs.experiment import Experiment, read_experiment
from ..runs.files import replace_file
from ..tables.markdown import plain, table
from ..tables.summary import summarize
from .figure_content import NOT_OF_THE_PAPER, REPRODUCIBLE, FigureContent
from .measured import Measured
from .published import Printed, paper_of, published


def reproduce(
    directory: str | Path, name: str, types: Sequence[str] = ("png", "svg")
) -> tuple[list[Path], tuple[str, ...]]:
    """Writes ``NAME.png``, ``NAME.svg``, ``NAME.csv`` (their data) and ``NAME.md`` (the numbers).

    Args:
        directory: the folder of the sweep.
        name: one of :data:`REPRODUCIBLE`.
        types: the types of the files with the figure.

    Returns:
        The files written, and warnings about omissions.

    Raises:
        AnalysisError: its runs do not show it, or the folder cannot be written to.
    """
    path, shown = Path(directory), REPRODUCIBLE[name]
    experiment = read_experiment(path)
    if shown.without and shown.without[0] in experiment.runs:
        key, values = shown.without
        experiment = replace(experiment, runs=experiment.runs[~experiment.runs[key].isin(values)])
    if shown.scored:
        experiment = shown.scored(experiment)
    warnings = about_open_runs(path, experiment)
    summary = summarize(experiment)
    points = FIGURES[shown.figure].table(experiment, summary, warnings)
    if points is None or points.empty:
        raise AnalysisError(
            f"{path}: its ended runs do not show {name}, {shown.title.lower()}; bring more of them to their end"
            f" with `roundoff sweep {shlex.quote(experiment.name)}`"
        )
    images = [path / f"{name}.{kind}" for kind in types]
    named = Named(shown.figure, path / f"{name}.csv", images)
    written = write_figure(named, points, "", metric=experiment.metric)
    rows = shown.measured(experiment, summary)
    page = "\n\n".join([*_about(name, shown, experiment, images), *_numbers(name, rows, shown.quantity)])
    return [*written, replace_file(path / f"{name}.md", f"{page}\n".encode())], (*experiment.said, *warnings)


def _about(name: str, shown: FigureContent, experiment: Experiment, images: Sequence[Path]) -> Iterable[str]:
    yield f"# {name}: {shown.title}"
    if shown.finding != NOT_OF_THE_PAPER:
        yield f"{paper_of(name)}: {shown.finding}"
    else:
        yield shown.finding
    yield f"Measured here (`{plain(experiment.name)}`): {plain(experiment.description)}"
    yield f"![{shown.title}]({images[0].name})" if images else ""


def _numbers(name: str, rows: Sequence[Measured], quantity: str) -> Iterable[str]:
    """The table, with the paper's printed numbers for the same settings; then its other printed numbers."""
    printed = published(name)
    comparable = [number for number in printed if number.quantity == quantity]
    beside = {i: [number for number in comparable if _is_of(number, row)] for i, row in enumerate(rows)}
    cells = [row.cells for row in rows]
    if comparable:
        said = [", ".join(f"{number} ({number.place})" for number in beside[i]) for i in range(len(rows))]
        cells = [row | {"paper": text} for row, text in zip(cells, said, strict=True)]
    yield table(cells)
    what = "table" if "table" in name else "figure"
    if comparable:
        yield "Where the last column is empty, the paper prints no number."
    elif printed:
        yield f"The paper prints no {quantity} for this {what}."
    elif "fig" in name or "table" in name:
        yield f"The paper prints no numbers for this {what}."
    shown = [number for numbers in beside.values() for number in numbers]
    for about, numbers in (
        ("Printed by the paper for settings that were not run here:", comparable),
        ("What else the paper prints about it:", [number for number in printed if number not in comparable]),
    ):
        others = [number for number in numbers if number not in shown]
        if others:
            yield about
            yield table([_as_cells(number, of_several=numbers is not comparable) for number in others])


def _as_cells(number: Printed, *, of_several: bool) -> dict[str, str]:
    """A row of the paper's printed numbers; ``of_several``: quantities, which it then names."""
    settings = " ".join(f"{key}={value}" for key, value in number.where.items())
    what = f"{number.quantity} ({number.unit})" if number.unit else number.quantity
    return {**({"what": what} if of_several else {}), "settings": settings, "paper": str(number), "place": number.place}


def _is_of(printed: Printed, row: Measured) -> bool:
    """Whether a number is about the settings of a row, over all its tasks."""
    pairs = ((row.where.get(key), value) for key, value in printed.where.items())
    return row.over_tasks and all(a == float(b) if isinstance(a, float) else str(a) == b for a, b in pairs)
