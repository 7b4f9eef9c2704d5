"""The commands that run sweeps and show their status."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from roundoff.cli.options import (
    AllowImport,
    AsJson,
    Compiled,
    DryRun,
    FileTypes,
    NoEstimate,
    Overrides,
    Population,
    ResultsFolder,
    Workers,
    allowed_imports,
    parts,
    print_warnings,
    say,
    say_json,
    say_outcome,
    stoppable,
)

if TYPE_CHECKING:
    from roundoff.sweeps import Executor, Plan


def sweep(
    file: Annotated[str, typer.Argument(help="A sweep file (YAML), or the name of a preset.")],
    overrides: Overrides = None,
    *,
    out: ResultsFolder = None,
    workers: Workers = None,
    executor: Annotated[
        Literal["local", "ray"], typer.Option(help="Run in processes of this machine, or on a Ray cluster.")
    ] = "local",
    address: Annotated[
        str | None, typer.Option(help="The address of the Ray cluster [default: $RAY_ADDRESS, else this machine].")
    ] = None,
    cpus_per_run: Annotated[float, typer.Option(min=0.01, help="CPUs of a run on Ray; may be a fraction.")] = 1.0,
    gpus_per_run: Annotated[float, typer.Option(min=0.0, help="GPUs of a run on Ray; may be a fraction.")] = 0.0,
    only: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="Do only runs with this value, or one of a list; may be repeated."),
    ] = None,
    dry_run: DryRun = False,
    no_estimate: NoEstimate = False,
    compiled: Compiled = None,
    population: Population = 8,
    allow_import: AllowImport = None,
    profile: Annotated[
        bool, typer.Option("--profile", help="Print a profile of all runs at the end, or when stopped.")
    ] = False,
) -> None:
    """Run every combination of a sweep file; the same command continues a sweep that was stopped."""
    from roundoff.sweeps import LocalProcesses, find_sweep, plan_file, usable_cores

    source = find_sweep(file)
    imports = allowed_imports(allow_import, [*(overrides or ()), *(only or ())], source)
    plan = plan_file(source, overrides or (), only or ())
    directory = out or Path("results") / plan.name
    hint = f"the same command continues; finished runs are kept in {directory}"
    if executor == "local" and (address or gpus_per_run or cpus_per_run != 1):
        raise typer.BadParameter("--address, --cpus-per-run and --gpus-per-run are about --executor ray; add it")
    if profile and plan.program:
        raise typer.BadParameter("--profile is about agents; of a program only the whole time is known: leave it out")
    if dry_run:
        print_plan(plan, directory, None if no_estimate else workers or usable_cores(), imports)
        return
    with stoppable(hint), _profiled(directory) if profile else nullcontext():
        if executor == "local":
            bring_to_end(
                plan, directory, lambda: LocalProcesses(workers or usable_cores()), compiled, population, imports
            )
        else:
            from roundoff.sweeps import RayExecutor

            def cluster() -> Executor:  # a search starts one for each of its rounds
                return RayExecutor(workers, address, cpus_per_run, gpus_per_run)

            bring_to_end(plan, directory, cluster, compiled, population, imports)


def reproduce(
    name: Annotated[
        str,
        typer.Argument(help="A figure or table: fig1, accelerated-fig2, quarl-table4, ..., or a subject of `presets`."),
    ],
    *,
    size: Annotated[
        Literal["quick", "overnight", "paper"],
        typer.Option(help="The size: minutes on two cores, a night on two cores, or the paper's, for GPUs."),
    ] = "quick",
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder of results, with one folder for each sweep.")] = Path(
        "results"
    ),
    workers: Workers = None,
    types: FileTypes = "png,svg",
    dry_run: DryRun = False,
    no_estimate: NoEstimate = False,
    compiled: Compiled = None,
    population: Population = 8,
) -> None:
    """Make a figure or table of a paper: run its sweep, draw it, and print its numbers next to the paper's."""
    from roundoff.analysis import PERFORMANCE, TYPES, check_known, performance_page
    from roundoff.analysis import reproduce as reproduce_figure
    from roundoff.sweeps import LocalProcesses, find_reproduction, finished_elsewhere, take_over, usable_cores

    if name in PERFORMANCE:
        say(performance_page(name))
        return
    plan, figures = find_reproduction(name, size, list(PERFORMANCE))
    directory = out / plan.name
    if dry_run:
        copies = len(finished_elsewhere(plan, directory))
        if copies:
            say(f"{copies} runs would be copied from folders next to {directory}, where they have ended")
        print_plan(plan, directory, None if no_estimate else workers or usable_cores())
        return
    kinds = parts(types)
    check_known("type", kinds, TYPES)
    with stoppable(f"the same command continues; finished runs are kept in {directory}"):
        copies = take_over(plan, directory)
        if copies:
            say(f"{copies} runs copied from folders next to {directory}, where they have ended")
        bring_to_end(plan, directory, lambda: LocalProcesses(workers or usable_cores()), compiled, population)
        warnings: dict[str, None] = {}
        for figure in figures:
            written, more = reproduce_figure(directory, figure, kinds)
            warnings |= dict.fromkeys(more)
            for path in written:
                say(path)
    print_warnings(warnings)


@contextmanager
def _profiled(directory: Path) -> Iterator[None]:
    """Prints a profile of the ended runs in a folder after the block."""
    from roundoff.agents import Profile, read_profile
    from roundoff.errors import FileError

    def print_profile() -> None:
        profiles = []
        for path in sorted(directory.glob("runs/*/timing.json")):
            try:
                profiles.append(read_profile(path))
            except FileError as error:
                print_warnings([str(error)])
        say(Profile.of_all(profiles) if profiles else "no run has ended yet")

    try:
        yield
    except (KeyboardInterrupt, typer.Exit):  # stopped, or some runs have failed
        print_profile()
        raise
    print_profile()


def print_plan(plan: Plan, directory: Path, workers: int | None, imports: Sequence[str] = ()) -> None:
    """Prints the planned runs, and their estimated time unless ``workers`` is None."""
    from roundoff.sweeps import describe_estimate, describe_plan

    for line in describe_plan(plan, directory):
        say(line)
    if workers:
        say("estimating the time (--no-estimate skips this)")
        sys.stdout.flush()  # the estimate takes half a minute
        for line in describe_estimate(plan, directory, workers, imports):
            say(line)


def bring_to_end(
    plan: Plan,
    directory: Path,
    executors: Callable[[], Executor],
    compiled: bool | None,
    population: int,
    imports: Sequence[str] = (),
) -> None:
    """Runs a sweep and prints its outcome; exits with 1 if runs failed."""
    from roundoff.sweeps import ProgressDisplay, run_search, run_sweep

    findings: list[object] = []
    with ProgressDisplay() as display:
        if plan.search:
            summary, results = run_search(
                plan, directory, executors, display,
                compiled=compiled, population=population, allow_imports=imports,
            )  # fmt: skip
            findings += results
        else:
            summary = run_sweep(
                plan, directory, executor=executors(), watcher=display,
                compiled=compiled, population=population, allow_imports=imports,
            )  # fmt: skip
    say_outcome(summary, findings, directory)


def status(
    directory: Annotated[Path, typer.Argument(help="Folder of a sweep.")],
    *,
    watch: Annotated[
        bool, typer.Option("--watch", help="Repeat every few seconds, until all runs have ended.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show the state of every run. Exit status: 0 all have ended, 1 some failed, 3 some are unfinished."""
    from roundoff.sweeps import exit_status, read_status, status_lines, status_values, watch_status

    if watch and as_json:
        raise typer.BadParameter("--watch shows what changes and --json prints once; leave one of them out")
    with stoppable("the sweep is not affected"):
        report = watch_status(directory) if watch else read_status(directory)
        answer = ""
        if exit_status(report) == 0 and 1 < len(report.runs) <= 1000:  # of more runs it takes many seconds
            from roundoff.analysis import answer_of

            answer = answer_of(directory)
    if as_json:
        say_json(status_values(report) | {"answer": answer})
    elif lines := [*filter(None, [answer]), *([] if watch else status_lines(report))]:
        say("\n".join(lines))
    print_warnings(report.warnings)
    raise typer.Exit(exit_status(report))


def presets(
    text: Annotated[str, typer.Argument(help="List only presets with this text in name, figures or description.")] = "",
    size: Annotated[
        Literal["quick", "overnight", "paper"] | None,
        typer.Option(help="The size: minutes on two cores, a night on two cores, or the paper's [default: all]."),
    ] = None,
) -> None:
    """List the shipped sweeps as a table; `sweep NAME --dry-run` lists the runs of one."""
    from roundoff.sweeps import presets_table

    say(presets_table(text, size))


def schema() -> None:
    """Print the JSON Schema of sweep files, for editors."""
    from roundoff.sweeps import sweep_schema

    say_json(sweep_schema())
