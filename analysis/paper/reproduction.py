"""A figure of the paper from a folder of runs: the figure, the numbers measured, and those that the paper prints."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ..errors import AnalysisError
from ..figures.catalogue import FIGURES
from ..plot import Named, about_open_runs, write_figure
from ..runs.experiment import read_experiment
from ..runs.files import replace_file
from ..statistics.markdown import plain, table
from ..statistics.summary import summarize
from .measured import distances, draws, gradients, q_distances, returns
from .published import PAPER, Printed, published

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    import pandas as pd

    from ..runs.experiment import Experiment
    from .measured import Measured


class Shown(NamedTuple):
    """What one of the paper's figures shows.

    Attributes:
        figure: one of ``FIGURES``, which shows the same.
        title: in words.
        finding: what the paper concludes from it, in our words.
        measured: the numbers of an experiment that belong to it.
        without: runs of the sweep that do not, by the value of a key.
    """

    figure: str
    title: str
    finding: str
    measured: Callable[[Experiment, pd.DataFrame], list[Measured]] = returns
    without: tuple[str, tuple[str, ...]] | None = None


_NOT_OF_THE_PAPER = "The paper has no such figure."

REPRODUCIBLE = {
    "fig1": Shown(
        "comparison", "SAC in fp16 with methods from supervised learning",
        "Plain fp16 always crashes; coercion, loss scaling and mixed precision do far worse than fp32.",
        without=("baseline", ("amp", "eps")),
    ),
    "fig2": Shown("curves", "Learning from states", "fp16 with all six fixes learns like fp32 on every task."),
    "fig3": Shown(
        "comparison", "The six fixes added one by one",
        "fp16 without fixes crashes; every fix that is added improves the return.",
    ),
    "fig4": Shown(
        "degradation", "Return against significand bits, five exponent bits",
        "The return falls monotonically with fewer bits, first gently, then dramatically at five.",
    ),
    "fig5": Shown("curves", "Learning from pixels", "On average fp16 with all fixes is close to fp32."),
    "fig6": Shown(
        "gradients", "Magnitudes of gradients",
        "Gradients of actor and critic span many orders of magnitude.", gradients,
    ),
    "fig7": Shown(
        "comparison", "Each fix left out alone", "Leaving out any one of the fixes lowers the return."
    ),
    "fig8": Shown(
        "comparison", "Further baselines: amp's loss scale, a larger eps of Adam", "None of them works well."
    ),
    "fig9": Shown(
        "comparison", "The six fixes added one by one, by task",
        "Every task needs several of the fixes; tasks differ in how many.",
    ),
    "fig10": Shown(
        "curves", "Learning from pixels, fp32 without weight standardization",
        "On average fp16 with all fixes is again close to fp32.",
    ),
    "fig11": Shown(
        "differences", "Distance between the weights of fp32 and fp16",
        "Weights differ, and the more the longer the training; more so from images.", distances,
    ),
    "fig12": Shown(
        "differences", "Difference between the Q values of fp32 and fp16",
        "It grows in the beginning and settles, though not at 0; it is larger from images.", q_distances,
    ),
    "table7": Shown(
        "hyperparameters", "Random hyper-parameters", "fp16 with all fixes is close to fp32 for every draw.", draws
    ),
    "bits": Shown("plane", "Return over exponent and significand bits", _NOT_OF_THE_PAPER),
    "exponent-bits": Shown("degradation-exponent", "Return against exponent bits", _NOT_OF_THE_PAPER),
}  # fmt: skip
"""By the name of the figure or table, or of the subject where the paper has none."""


def reproduce(
    directory: str | Path, name: str, formats: Sequence[str] = ("png", "svg")
) -> tuple[list[Path], tuple[str, ...]]:
    """Writes ``NAME.png``, ``NAME.svg``, ``NAME.csv`` (what they are drawn from) and ``NAME.md`` (the numbers).

    Args:
        directory: the folder of the sweep.
        name: one of :data:`REPRODUCIBLE`.
        formats: of the figure.

    Returns:
        The files written, and warnings about what was left out.

    Raises:
        AnalysisError: its runs do not show it, or the folder cannot be written to.
    """
    path, shown = Path(directory), REPRODUCIBLE[name]
    experiment = read_experiment(path)
    if shown.without and shown.without[0] in experiment.runs:
        key, values = shown.without
        experiment = replace(experiment, runs=experiment.runs[~experiment.runs[key].isin(values)])
    warnings = [*experiment.warnings, *about_open_runs(path, experiment)]
    summary = summarize(experiment)
    points = FIGURES[shown.figure].table(experiment, summary, warnings)
    if points is None or points.empty:
        raise AnalysisError(
            f"{path}: its ended runs do not show {name}, {shown.title.lower()}; bring more of them to their end"
            f" with `roundoff sweep {shlex.quote(experiment.name)}`"
        )
    images = [path / f"{name}.{kind}" for kind in formats]
    written = write_figure(Named(shown.figure, path / f"{name}.csv", images), points, experiment.name)
    page = "\n\n".join([*_about(name, shown, experiment, images), *_numbers(name, shown.measured(experiment, summary))])
    return [*written, replace_file(path / f"{name}.md", f"{page}\n".encode())], tuple(warnings)


def _about(name: str, shown: Shown, experiment: Experiment, images: Sequence[Path]) -> Iterable[str]:
    yield f"# {name}: {shown.title}"
    if shown.finding != _NOT_OF_THE_PAPER:
        yield f"{PAPER}: {shown.finding}"
    else:
        yield shown.finding
    yield f"Measured here (`{plain(experiment.name)}`): {plain(experiment.description)}"
    yield f"![{shown.title}]({images[0].name})" if images else ""


def _numbers(name: str, rows: Sequence[Measured]) -> Iterable[str]:
    """The table, with what the paper prints for the same settings; then what it prints for others."""
    printed = published(name)
    beside = {i: [number for number in printed if _is_of(number, row)] for i, row in enumerate(rows)}
    cells = [row.cells for row in rows]
    if printed:
        said = [", ".join(f"{number} ({number.place})" for number in beside[i]) for i in range(len(rows))]
        cells = [row | {"paper": text} for row, text in zip(cells, said, strict=True)]
    yield table(cells)
    if not printed:
        what = "table" if name.startswith("table") else "figure"
        yield f"The paper prints no numbers for this {what}." if name.startswith(("fig", "table")) else ""
        return
    yield "Where the last column is empty, the paper prints no number."
    shown = [number for numbers in beside.values() for number in numbers]
    others = [
        {"settings": " ".join(f"{key}={value}" for key, value in number.where.items()), "paper": str(number)}
        | {"place": number.place}
        for number in printed
        if number not in shown
    ]
    if others:
        yield "Printed by the paper for settings that were not run here:"
        yield table(others)


def _is_of(printed: Printed, row: Measured) -> bool:
    """Whether a number is about the settings of a row, over all its tasks."""
    return row.over_tasks and all(_same(row.where.get(key), value) for key, value in printed.where.items())


def _same(measured: object, printed: str) -> bool:
    return measured == float(printed) if isinstance(measured, float) else str(measured) == printed
