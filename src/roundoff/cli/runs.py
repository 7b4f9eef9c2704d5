"""The commands that train single agents."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Annotated

import typer

from roundoff.cli.options import AllowImport, Compiled, Overrides, allowed_imports, say, stoppable


def train(
    overrides: Overrides = None,
    *,
    config: Annotated[Path | None, typer.Option(help="A YAML or JSON file with settings.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the run [default: runs/<its name>].")] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda or cuda:N; the same as device=...")] = None,
    observe: Annotated[
        bool, typer.Option("--observe", help="Count what rounding does to every operation; the same as observe=true.")
    ] = False,
    compiled: Compiled = None,
    allow_import: AllowImport = None,
    profile: Annotated[bool, typer.Option("--profile", help="Print at the end where the time has gone.")] = False,
) -> None:
    """Train one agent, or continue its training."""
    from roundoff.agents import train as train_agent
    from roundoff.agents.run.stopping import Stopped, StopRequest, stopping_on_sigterm
    from roundoff.sweeps.display.progress import RunDisplay
    from roundoff.sweeps.language.plan import plan_run, run_id

    arguments = [*(overrides or ()), *([f"device={device}"] if device else []), *(["observe=true"] if observe else [])]
    run_config = plan_run(config, arguments)
    directory = out or Path("runs") / run_id(run_config)
    stop = StopRequest()
    hint = f"the same command continues from the last checkpoint in {directory}"
    try:
        with stoppable(hint), RunDisplay() as display, stopping_on_sigterm(stop):
            result = train_agent(
                run_config, directory, display.progress, stop,
                compiled=compiled, on_notice=display.notice, allow_imports=allowed_imports(allow_import, arguments),
            )  # fmt: skip
    except Stopped as stopped:
        say(f"roundoff: {stopped}, and saved; the same command continues from there in {directory}", error=True)
        raise SystemExit(128 + signal.SIGTERM) from None
    outcome = f"crashed at step {result.crash.step}: {result.crash.reason}" if result.crash else "done"
    say(f"{directory}: {outcome}; return {result.return_mean:.1f} ± {result.return_std:.1f}")
    if profile:
        _print_profile(directory / "timing.json")


def _print_profile(path: Path) -> None:
    """Where the time of a run's last stretch without an interruption has gone."""
    from roundoff.errors import FileError
    from roundoff.files import read_json

    timing = read_json(path)
    try:
        spent = {name: float(seconds) for name, seconds in timing["spent"].items()}
        speed = float(timing["steps_per_second"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise FileError(f"{path}: says not where a run's time has gone; it was damaged after it was written") from error
    total = sum(spent.values())
    for name, seconds in sorted(spent.items(), key=lambda item: -item[1]):
        say(f"  {name:<13} {seconds:8.2f} s {100 * seconds / (total or 1):5.1f} %")
    say(f"  {'together':<13} {total:8.2f} s, {speed:.0f} environment steps/s over the whole run")


def blame(
    overrides: Overrides = None,
    *,
    config: Annotated[
        Path | None, typer.Option(help="A YAML or JSON file with the settings of a run that fails.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder of the trials; the same command continues.")] = Path("blame"),
    at_least: Annotated[
        float | None, typer.Option(help="Return at which a run has succeeded [default: it must not crash].")
    ] = None,
    over: Annotated[str, typer.Option(help="What to blame: operation or role.")] = "operation",
    allow_import: AllowImport = None,
) -> None:
    """Find the smallest set of operations that a failing run cannot do in its format, by many short runs."""
    from roundoff.agents.training.blame import blame_run
    from roundoff.sweeps.language.plan import plan_run

    run_config = plan_run(config, overrides or ())
    with stoppable(f"the same command continues; finished trials are kept in {out}"):
        found = blame_run(
            run_config,
            out,
            at_least=at_least,
            over=over,
            on_trial=lambda line: say(line, error=True),
            allow_imports=allowed_imports(allow_import, overrides),
        )
    say(found)
