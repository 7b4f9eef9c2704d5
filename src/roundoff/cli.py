"""The command ``roundoff``.

Heavy imports stand inside the commands: PyTorch takes seconds to import, and ``--help`` must not.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn

import typer

if TYPE_CHECKING:
    from types import FrameType

    from roundoff.sweeps.executor import Executor
    from roundoff.sweeps.plan import Plan

app = typer.Typer(
    name="roundoff",
    help="Simulate number formats in PyTorch programs: how few bits can this training run with, and what breaks first?",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

_Overrides = Annotated[
    list[str] | None,
    typer.Argument(metavar="[KEY=VALUE]...", help="Settings that replace those of the file; see TrainConfig."),
]


_Population = Annotated[
    int, typer.Option(min=1, help="Runs that a worker trains at once, at most, where they can share a program.")
]
_Compiled = Annotated[
    bool | None, typer.Option("--compile/--no-compile", help="Compile the updates [default: where it saves time].")
]


def _print_version(value: bool) -> None:
    if value:
        print("roundoff", version("roundoff"))
        raise typer.Exit


@app.callback()
def _options(
    _version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    pass


@app.command()
def sweep(
    file: Annotated[str, typer.Argument(help="A sweep file (YAML), or the name of a preset.")],
    overrides: _Overrides = None,
    *,
    out: Annotated[Path | None, typer.Option(help="Folder of the results [default: results/NAME].")] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Runs at a time [default: one per core].")] = None,
    executor: Annotated[
        Literal["local", "ray"], typer.Option(help="Where to run: processes of this machine, or a Ray cluster.")
    ] = "local",
    address: Annotated[
        str | None, typer.Option(help="Of the Ray cluster [default: $RAY_ADDRESS, else one of this machine alone].")
    ] = None,
    cpus_per_run: Annotated[float, typer.Option(min=0.01, help="Of a Ray node; may be a fraction.")] = 1.0,
    gpus_per_run: Annotated[float, typer.Option(min=0.0, help="Of a Ray node; may be a fraction.")] = 0.0,
    only: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="Run only what has this value, or one of a list; may be repeated."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what would run and about how long, and write nothing.")
    ] = False,
    no_estimate: Annotated[bool, typer.Option("--no-estimate", help="A dry run without estimating the time.")] = False,
    compiled: _Compiled = None,
    population: _Population = 1,
) -> None:
    """Run every combination of a sweep file; the same command continues a sweep that was stopped."""
    from roundoff.sweeps import plan_file
    from roundoff.sweeps.presets import find_sweep
    from roundoff.sweeps.processes import LocalProcesses
    from roundoff.sweeps.sweep import usable_cores

    plan = plan_file(find_sweep(file), overrides or (), only or ())
    directory = out or Path("results") / plan.name
    if dry_run:
        _print_plan(plan, directory, None if no_estimate else workers or usable_cores())
        return
    hint = f"the same command continues; finished runs are kept in {directory}"
    if executor == "local" and (address or gpus_per_run or cpus_per_run != 1):
        raise typer.BadParameter("--address, --cpus-per-run and --gpus-per-run are about --executor ray; add it")
    with _stoppable(hint):
        if executor == "local":
            _bring_to_end(plan, directory, LocalProcesses(workers or usable_cores()), compiled, population)
        else:
            from roundoff.sweeps.ray_executor import RayExecutor

            _bring_to_end(
                plan, directory, RayExecutor(workers, address, cpus_per_run, gpus_per_run), compiled, population
            )


def _print_plan(plan: Plan, directory: Path, workers: int | None) -> None:
    """Says what would be run, and how long that takes unless ``workers`` is None."""
    from roundoff.sweeps.dry_run import describe_estimate, describe_plan

    for line in describe_plan(plan, directory):
        print(line)
    if workers:
        print("estimating the time; --no-estimate does without", flush=True)
        for line in describe_estimate(plan, directory, workers):
            print(line)


def _bring_to_end(plan: Plan, directory: Path, executor: Executor, compiled: bool | None, population: int) -> None:
    """Runs a sweep and says how it ended; exits with 1 if runs failed."""
    from roundoff.sweeps import run_sweep
    from roundoff.sweeps.progress import ProgressDisplay

    with ProgressDisplay() as display:
        summary = run_sweep(
            plan, directory, executor=executor, watcher=display, compiled=compiled, population=population
        )
    print(
        f"{directory}: {summary.done} done, {summary.crashed} crashed, {summary.failed} failed of {len(plan.runs)} runs"
    )
    if summary.failed:
        print(
            f"failed runs are tried again by the same command; see failed.json and {directory / 'logs'}",
            file=sys.stderr,
        )
        raise typer.Exit(1)


@app.command()
def status(
    directory: Annotated[Path, typer.Argument(help="Folder of a sweep.")],
    *,
    watch: Annotated[bool, typer.Option("--watch", help="Look again every few seconds, until all runs ended.")] = False,
) -> None:
    """Print what has become of each run; exit with 0 if all have ended, 1 if some failed, 3 if some are yet to do."""
    from roundoff.sweeps.status import read_status
    from roundoff.sweeps.status_table import exit_status, status_lines, watch_status

    with _stoppable("the sweep is not affected"):
        report = watch_status(directory) if watch else read_status(directory)
    if not watch:
        print("\n".join(status_lines(report)))
    for warning in report.warnings:
        print(f"roundoff: warning: {warning}", file=sys.stderr)
    raise typer.Exit(exit_status(report))


@app.command()
def collect(
    directories: Annotated[list[Path], typer.Argument(metavar="DIRECTORY...", help="Folders of sweeps, or of runs.")],
    *,
    out: Annotated[Path, typer.Option("--out", "-o", help="Parquet file to write.")],
) -> None:
    """Write every record of every run, with the run's settings, as one table in Parquet; see docs/running-sweeps.md."""
    from roundoff.analysis.collect import collect as collect_runs

    rows, runs, warnings = collect_runs(directories, out)
    for warning in warnings:
        print(f"roundoff: warning: {warning}", file=sys.stderr)
    print(f"{out}: {rows} records of {runs} runs")


@app.command()
def reproduce(
    name: Annotated[str, typer.Argument(help="fig1 to fig12, table7, ... of the paper, or a subject of `presets`.")],
    *,
    size: Annotated[
        Literal["quick", "paper"], typer.Option(help="Minutes on two cores, or as the paper did it, for GPUs.")
    ] = "quick",
    out: Annotated[Path, typer.Option(help="Folder of results; each sweep has a folder of its own in it.")] = Path(
        "results"
    ),
    workers: Annotated[int | None, typer.Option(min=1, help="Runs at a time [default: one per core].")] = None,
    formats: Annotated[str, typer.Option("--format", help="Of figures: png, svg, pdf, with commas.")] = "png,svg",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what would run and about how long, and write nothing.")
    ] = False,
    no_estimate: Annotated[bool, typer.Option("--no-estimate", help="A dry run without estimating the time.")] = False,
    compiled: _Compiled = None,
    population: _Population = 1,
) -> None:
    """Make a figure or table of the paper: run its sweep, draw it, and set its numbers beside the paper's."""
    from roundoff.analysis.performance_tables import PERFORMANCE, performance_page
    from roundoff.sweeps.processes import LocalProcesses
    from roundoff.sweeps.reproduction import find_reproduction, finished_elsewhere, take_over
    from roundoff.sweeps.sweep import usable_cores

    if name in PERFORMANCE:
        print(performance_page(name))
        return
    plan, figures = find_reproduction(name, size, list(PERFORMANCE))
    directory = out / plan.name
    if dry_run:
        copies = len(finished_elsewhere(plan, directory))
        if copies:
            print(f"{copies} runs would be copied from folders beside {directory}, where they have ended")
        _print_plan(plan, directory, None if no_estimate else workers or usable_cores())
        return
    from roundoff.analysis.plot import FORMATS, check_known
    from roundoff.analysis.reproduction import reproduce as reproduce_figure

    kinds = _parts(formats)
    check_known("format", kinds, FORMATS)
    with _stoppable(f"the same command continues; finished runs are kept in {directory}"):
        copies = take_over(plan, directory)
        if copies:
            print(f"{copies} runs copied from folders beside {directory}, where they have ended")
        _bring_to_end(plan, directory, LocalProcesses(workers or usable_cores()), compiled, population)
        warnings: dict[str, None] = {}
        for figure in figures:
            written, found = reproduce_figure(directory, figure, kinds)
            warnings |= dict.fromkeys(found)
            for path in written:
                print(path)
    for warning in warnings:
        print(f"roundoff: warning: {warning}", file=sys.stderr)


@app.command()
def train(
    overrides: _Overrides = None,
    *,
    config: Annotated[Path | None, typer.Option(help="A YAML or JSON file with settings.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the run [default: runs/<its name>].")] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda or cuda:N; the same as device=...")] = None,
    observe: Annotated[
        bool, typer.Option("--observe", help="Count what rounding does to every operation; the same as observe=true.")
    ] = False,
    compiled: _Compiled = None,
    profile: Annotated[bool, typer.Option("--profile", help="Print at the end where the time has gone.")] = False,
) -> None:
    """Train one agent, or continue its training."""
    from roundoff.agents import train as train_agent
    from roundoff.agents.stopping import Stopped, StopRequest, stopping_on_sigterm
    from roundoff.sweeps.plan import plan_run, run_id
    from roundoff.sweeps.progress import RunDisplay

    arguments = [*(overrides or ()), *([f"device={device}"] if device else []), *(["observe=true"] if observe else [])]
    run_config = plan_run(config, arguments)
    directory = out or Path("runs") / run_id(run_config)
    stop = StopRequest()
    hint = f"the same command continues from the last checkpoint in {directory}"
    try:
        with _stoppable(hint), RunDisplay() as display, stopping_on_sigterm(stop):
            result = train_agent(
                run_config, directory, display.progress, stop, compiled=compiled, on_notice=display.notice
            )
    except Stopped as stopped:
        print(f"roundoff: {stopped}, and saved; the same command continues from there in {directory}", file=sys.stderr)
        raise SystemExit(128 + signal.SIGTERM) from None
    outcome = f"crashed at step {result.crash.step}: {result.crash.reason}" if result.crash else "done"
    print(f"{directory}: {outcome}; return {result.return_mean:.1f} ± {result.return_std:.1f}")
    if profile:
        _print_profile(directory / "timing.json")


def _print_profile(path: Path) -> None:
    """Where the time of a run's last stretch without an interruption has gone."""
    timing = json.loads(path.read_text())
    spent = timing.get("spent", {})
    total = sum(spent.values())
    for name, seconds in sorted(spent.items(), key=lambda item: -item[1]):
        print(f"  {name:<13} {seconds:8.2f} s {100 * seconds / total:5.1f} %")
    print(f"  {'together':<13} {total:8.2f} s, {timing['steps_per_second']:.0f} environment steps/s over the whole run")


@app.command()
def blame(
    overrides: _Overrides = None,
    *,
    config: Annotated[
        Path | None, typer.Option(help="A YAML or JSON file with the settings of a run that fails.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder of the trials; the same command continues.")] = Path("blame"),
    at_least: Annotated[
        float | None, typer.Option(help="Return at which a run has succeeded [default: it must not crash].")
    ] = None,
    over: Annotated[str, typer.Option(help="What to blame: operation or role.")] = "operation",
) -> None:
    """Find the smallest set of operations that a failing run cannot do in its format, by many short runs."""
    from roundoff.agents.blame import blame_run
    from roundoff.sweeps.plan import plan_run

    run_config = plan_run(config, overrides or ())
    with _stoppable(f"the same command continues; finished trials are kept in {out}"):
        found = blame_run(
            run_config,
            out,
            at_least=at_least,
            over=over,
            on_trial=lambda line: print(line, file=sys.stderr, flush=True),
        )
    print(found)


@app.command()
def presets() -> None:
    """List the sweeps that are shipped, as a table."""
    from roundoff.sweeps.presets import presets_table

    print(presets_table())


@app.command()
def schema() -> None:
    """Print the JSON Schema of sweep files, for editors."""
    from roundoff.sweeps.schema import sweep_schema

    print(json.dumps(sweep_schema(), indent=1))


@app.command()
def formats(
    names: Annotated[list[str] | None, typer.Argument(help="Formats to show [default: a selection].")] = None,
    *,
    plot: Annotated[
        bool, typer.Option("--plot", help="Draw their spacing against magnitude, and their numbers on a line.")
    ] = False,
    out: Annotated[Path, typer.Option(help="File to draw into, with --plot.")] = Path("formats.png"),
) -> None:
    """Print what number formats can hold: a table, or everything about one."""
    from roundoff.formats.table import describe, format_table

    if plot:
        from roundoff.formats.plot import plot_formats

        if not names:
            raise typer.BadParameter("name the formats to draw, as in: roundoff formats --plot e5m10 bf16 posit16")
        print(plot_formats(names, out))
    elif names and len(names) == 1:
        print(describe(names[0]))
    else:
        print(format_table(names or None))


@app.command()
def verify(
    names: Annotated[list[str] | None, typer.Argument(help="Formats to verify [default: some of every kind].")] = None,
    *,
    device: Annotated[str, typer.Option(help="cpu, cuda or cuda:N.")] = "cpu",
    quick: Annotated[bool, typer.Option("--quick", help="Fewer numbers: seconds instead of minutes.")] = False,
) -> None:
    """Compare rounding on this machine with exact arithmetic, in every mode, and print a certificate."""
    from roundoff.formats.verify import verify as verify_formats

    report = verify_formats(names or None, device, quick=quick)
    print(report)
    if not report.passed:
        raise typer.Exit(1)


@app.command()
def plot(
    directory: Annotated[Path, typer.Argument(help="Folder of a sweep, or of one run.")],
    *,
    size: Annotated[
        str, typer.Option(help="screen; or single (3.25 in) or double (6.75 in), for columns of a journal.")
    ] = "screen",
    formats: Annotated[str, typer.Option("--format", help="Of figures: png, svg, pdf, with commas.")] = "png,svg",
    only: Annotated[str, typer.Option(help="Names of the figures to draw, with commas [default: all there are].")] = "",
) -> None:
    """Draw the degradation plot, the learning curves and more, each with the table it is drawn from."""
    from roundoff.analysis import plot as plot_sweep

    written, warnings = plot_sweep(directory, size=size, formats=_parts(formats), only=_parts(only))
    for warning in warnings:
        print(f"roundoff: warning: {warning}", file=sys.stderr)
    for path in written:
        print(path)


@app.command()
def report(
    directory: Annotated[Path, typer.Argument(help="Folder of a sweep, or of one run.")],
    *,
    margin: Annotated[
        float,
        typer.Option(
            min=0, max=1, help="What may be lost for a width to be good enough, as a fraction of fp32's return."
        ),
    ] = 0.1,
) -> None:
    """Write report.html: the bits needed, figures, statistics, settings, and how to repeat it, on one page."""
    from roundoff.analysis.report import report as write_report

    written, warnings = write_report(directory, margin)
    for warning in warnings:
        print(f"roundoff: warning: {warning}", file=sys.stderr)
    print(written)


def _parts(text: str) -> list[str]:
    """The names in a list with commas."""
    return [part.strip() for part in text.split(",") if part.strip()]


class _stoppable:  # noqa: N801  used as a statement
    """Ends the block on Ctrl-C or SIGTERM with a hint and the usual status, 130 or 143."""

    def __init__(self, hint: str) -> None:
        self._hint = hint
        self._signal = signal.SIGINT
        self._before: Any = None

    def __enter__(self) -> None:
        self._before = signal.signal(signal.SIGTERM, self._interrupt)

    def _interrupt(self, number: int, _frame: FrameType | None) -> NoReturn:
        self._signal = signal.Signals(number)
        raise KeyboardInterrupt

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: object) -> None:
        signal.signal(signal.SIGTERM, self._before)
        if isinstance(error, KeyboardInterrupt):
            print(f"roundoff: stopped; {self._hint}", file=sys.stderr)
            raise SystemExit(128 + self._signal) from None


def main() -> None:
    """Runs the command; mistakes of the user's end it with one message and status 2."""
    try:
        app()
    except OSError as error:
        if isinstance(error, BrokenPipeError):  # `roundoff formats | head`
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            sys.exit(0)
        print(f"roundoff: {error.filename or 'input/output'}: {error.strerror or error}", file=sys.stderr)
        sys.exit(2)
    except Exception as error:
        from roundoff.formats.errors import RoundoffError

        if not isinstance(error, RoundoffError):
            raise
        print(f"roundoff: {error}", file=sys.stderr)
        sys.exit(2)
