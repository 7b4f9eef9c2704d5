"""The commands that show and collect the results of runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from roundoff.cli.options import (
    AsJson,
    FileTypes,
    Margin,
    Reference,
    parts,
    print_warnings,
    say,
    say_table,
    settings_of,
)

Directories = Annotated[list[Path], typer.Argument(metavar="DIRECTORY...", help="Folders of sweeps, or of runs.")]
FigureWidth = Annotated[
    str, typer.Option(help="The width of figures: screen, or single (3.25 in) or double (6.75 in) for a journal.")
]


def plot(
    directory: Annotated[Path, typer.Argument(help="Folder of a sweep, or of one run.")],
    *,
    width: FigureWidth = "screen",
    types: FileTypes = "png,svg",
    figures: Annotated[str, typer.Option(help="The figures to draw, by name, with commas [default: all].")] = "",
    tables: Annotated[str, typer.Option(help="Also write the summary as a table: md, tex, with commas.")] = "",
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Folder to write into; made if missing [default: DIRECTORY].")
    ] = None,
) -> None:
    """Draw the degradation plot, the learning curves and more, each with the table it is drawn from."""
    from roundoff.analysis import plot as plot_sweep

    written, warnings = plot_sweep(
        directory, width=width, types=parts(types), figures=parts(figures), tables=parts(tables), out=out
    )
    print_warnings(warnings)
    for path in written:
        say(path)


def compare(
    directories: Directories,
    *,
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the figure and its tables; made if missing.")],
    names: Annotated[
        str, typer.Option(help="The names of the lines, with commas, one for each folder [default: the sweeps'].")
    ] = "",
    width: FigureWidth = "screen",
    types: FileTypes = "png,svg",
) -> None:
    """Draw several sweeps in one figure: scores relative to fp32's, against significand bits."""
    from roundoff.analysis import compare as compare_sweeps

    written, warnings = compare_sweeps(directories, out, names=parts(names), width=width, types=parts(types))
    print_warnings(warnings)
    for path in written:
        say(path)


def report(
    directory: Annotated[Path, typer.Argument(help="Folder of a sweep, or of one run.")],
    *,
    margin: Margin = 0.05,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="The file to write [default: DIRECTORY/report.html].")
    ] = None,
) -> None:
    """Write report.html: the answer, figures, statistics, settings, and how to repeat it, on one page.

    It includes the comparison of `against`, the main figures of `plot` and, after `cost`, the front of `pareto`.
    """
    from roundoff.analysis import report as write_report

    written, warnings = write_report(directory, margin, out=out)
    print_warnings(warnings)
    say(written)


def against(
    directory: Annotated[Path, typer.Argument(help="Folder of a sweep, or of one run.")],
    *,
    margin: Margin = 0.05,
    reference: Reference = None,
    as_json: AsJson = False,
) -> None:
    """Print every format against fp32: equivalent within the margin, shown to differ, or inconclusive."""
    from roundoff.analysis import against as against_fp32

    table, text, warnings = against_fp32(directory, margin, settings_of(reference))
    print_warnings(warnings)
    say_table(table, text, as_json=as_json)


def collect(
    directories: Directories,
    *,
    out: Annotated[
        Path, typer.Option("--out", "-o", help="File to write: CSV if its name ends with .csv, else Parquet.")
    ],
) -> None:
    """Write every record of every run, with the run's settings, as one table; see docs/running-sweeps.md."""
    from roundoff.analysis import collect as collect_runs

    rows, runs, warnings = collect_runs(directories, out)
    print_warnings(warnings)
    say(f"{out}: {rows} records of {runs} runs")
