"""Reproduces a figure of a paper from runs: the figure, the measured numbers, and the paper's printed ones."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from ..errors import AnalysisError
from ..figures.catalogue import FIGURES
from ..plot import FigureFiles, open_run_warnings, write_figure
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
    path, content = Path(directory), REPRODUCIBLE[name]
    experiment = read_experiment(path)
    if content.excluded and content.excluded[0] in experiment.runs:
        key, values = content.excluded
        experiment = replace(experiment, runs=experiment.runs[~experiment.runs[key].isin(values)])
    if content.rescore:
        experiment = content.rescore(experiment)
    warnings = open_run_warnings(path, experiment)
    summary = summarize(experiment)
    points = FIGURES[content.figure].table(experiment, summary, warnings)
    if points is None or points.empty:
        raise AnalysisError(
            f"{path}: its ended runs do not show {name}, {content.title.lower()}; finish more of them"
            f" with `roundoff sweep {shlex.quote(experiment.name)}`"
        )
    images = [path / f"{name}.{kind}" for kind in types]
    files = FigureFiles(content.figure, path / f"{name}.csv", images)
    written = write_figure(files, points, "", metric=experiment.metric)
    rows = content.measured(experiment, summary)
    page = "\n\n".join([*_about(name, content, experiment, images), *_compare_with_paper(name, rows, content.quantity)])
    return [*written, replace_file(path / f"{name}.md", f"{page}\n".encode())], (*experiment.said, *warnings)


def _about(name: str, content: FigureContent, experiment: Experiment, images: Sequence[Path]) -> Iterable[str]:
    yield f"# {name}: {content.title}"
    if content.finding != NOT_OF_THE_PAPER:
        yield f"{paper_of(name)}: {content.finding}"
    else:
        yield content.finding
    yield f"Measured here (`{plain(experiment.name)}`): {plain(experiment.description)}"
    yield f"![{content.title}]({images[0].name})" if images else ""


def _compare_with_paper(name: str, rows: Sequence[Measured], quantity: str) -> Iterable[str]:
    """Yields the table with the paper's printed numbers for the same settings; then its other printed numbers."""
    printed = published(name)
    comparable = [number for number in printed if number.quantity == quantity]
    matching = {i: [number for number in comparable if _matches(number, row)] for i, row in enumerate(rows)}
    cells = [row.cells for row in rows]
    if comparable:
        texts = [", ".join(f"{number} ({number.place})" for number in matching[i]) for i in range(len(rows))]
        cells = [row | {"paper": text} for row, text in zip(cells, texts, strict=True)]
    yield table(cells)
    kind = "table" if "table" in name else "figure"
    if comparable:
        yield "Where the last column is empty, the paper prints no number."
    elif printed:
        yield f"The paper prints no {quantity} for this {kind}."
    elif "fig" in name or "table" in name:
        yield f"The paper prints no numbers for this {kind}."
    used = [number for numbers in matching.values() for number in numbers]
    for heading, numbers in (
        ("Printed by the paper for settings that were not run here:", comparable),
        ("Other numbers that the paper prints about it:", [number for number in printed if number not in comparable]),
    ):
        remaining = [number for number in numbers if number not in used]
        if remaining:
            yield heading
            yield table([_printed_cells(number, with_quantity=numbers is not comparable) for number in remaining])


def _printed_cells(number: Printed, *, with_quantity: bool) -> dict[str, str]:
    """Makes a row of the paper's printed numbers, with the quantity if there are several (``with_quantity``)."""
    settings = " ".join(f"{key}={value}" for key, value in number.settings.items())
    quantity = f"{number.quantity} ({number.unit})" if number.unit else number.quantity
    cells = {"what": quantity} if with_quantity else {}
    return {**cells, "settings": settings, "paper": str(number), "place": number.place}


def _matches(printed: Printed, row: Measured) -> bool:
    """Whether a printed number has the settings of a row that is about all tasks."""
    pairs = ((row.settings.get(key), value) for key, value in printed.settings.items())
    return row.over_tasks and all(a == float(b) if isinstance(a, float) else str(a) == b for a, b in pairs)
