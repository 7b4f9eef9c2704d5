"""The commands that train single agents."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from roundoff.cli.options import (
    AllowImport,
    Compiled,
    Margin,
    Overrides,
    Population,
    Workers,
    allowed_imports,
    say,
    say_outcome,
    stoppable,
)

if TYPE_CHECKING:
    from roundoff.agents import TrainConfig
    from roundoff.agents.run.profile import Profile


def train(
    overrides: Overrides = None,
    *,
    config: Annotated[Path | None, typer.Option(help="A YAML or JSON file with settings.")] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Folder of the run [default: runs/<its name>].")
    ] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda or cuda:N; the same as device=...")] = None,
    observe: Annotated[
        bool, typer.Option("--observe", help="Count what rounding does to every operation; the same as observe=true.")
    ] = False,
    compiled: Compiled = None,
    allow_import: AllowImport = None,
    address: Annotated[
        str | None, typer.Option(help="Of the Ray cluster for `actors` [default: $RAY_ADDRESS, else this machine].")
    ] = None,
    profile: Annotated[
        bool, typer.Option("--profile", help="Print at the end, or when stopped, where the time has gone.")
    ] = False,
) -> None:
    """Train one agent, or continue its training."""
    from roundoff.agents import train as train_agent
    from roundoff.agents.config.actor_keys import has_actors
    from roundoff.agents.config.recursions import remarks
    from roundoff.agents.run.stopping import Stopped, StopRequest, stopping_on_sigterm
    from roundoff.sweeps.display.progress import RunDisplay
    from roundoff.sweeps.language.plan import plan_run
    from roundoff.sweeps.language.run import run_id

    arguments = [*(overrides or ()), *([f"device={device}"] if device else []), *(["observe=true"] if observe else [])]
    imports = allowed_imports(allow_import, arguments, config)
    run_config = plan_run(config, arguments)
    if address:
        if not has_actors(run_config):
            raise typer.BadParameter("--address is for actors, and this run has none; leave it out, or set actors")
        os.environ["RAY_ADDRESS"] = address
    directory = out or Path("runs") / run_id(run_config)
    stop = StopRequest()
    hint = f"the same command continues from the last checkpoint in {directory}"
    profiles: list[Profile] = []
    try:
        with stoppable(hint), RunDisplay() as display, stopping_on_sigterm(stop):
            for remark in remarks(run_config):
                display.notice(remark)
            result = train_agent(
                run_config, directory, display.progress, stop,
                compiled=compiled, on_notice=display.notice, allow_imports=imports,
                on_profile=profiles.append if profile else None,
            )  # fmt: skip
        outcome = f"crashed at step {result.crash.step}: {result.crash.reason}" if result.crash else "done"
        say(f"{directory}: {outcome}; return {result.return_mean:.1f} ± {result.return_std:.1f}")
    except Stopped as stopped:
        anew = "; the same command begins it anew"
        then = ", and saved; the same command continues from there" if stopped.saved else anew
        say(f"roundoff: {stopped}{then} in {directory}", error=True)
        raise SystemExit(128 + signal.SIGTERM) from None
    finally:
        for measured in profiles:
            say(measured)


def blame(
    overrides: Overrides = None,
    *,
    config: Annotated[
        Path | None, typer.Option(help="A YAML or JSON file with the settings of a run that fails.")
    ] = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder of the trials; the same command continues.")] = Path(
        "blame"
    ),
    at_least: Annotated[
        float | None, typer.Option(help="Return at which a run has succeeded [default: it must not crash].")
    ] = None,
    over: Annotated[str, typer.Option(help="What to blame: operation or role.")] = "operation",
    seeds: Annotated[
        int | None,
        typer.Option(
            min=2, help="Compare mean returns over so many seeds: what each costs [default: one run decides]."
        ),
    ] = None,
    margin: Margin = 0.05,
    workers: Workers = None,
    compiled: Compiled = None,
    population: Population = 8,
    allow_import: AllowImport = None,
) -> None:
    """Find what a run cannot do in its format: the fewest operations, by short runs; with --seeds, what each costs."""
    from roundoff.agents.training.blame import blame_run
    from roundoff.sweeps.language.plan import plan_run

    imports = allowed_imports(allow_import, overrides, config)
    run_config = plan_run(config, overrides or ())
    hint = f"the same command continues; finished trials are kept in {out}"
    if seeds is not None:
        if at_least is not None:
            raise typer.BadParameter(
                "--at-least is about single runs, and --seeds compares means: leave one of them out"
            )
        with stoppable(hint):
            _blame_returns(
                run_config, out, workers, over=over, seeds=seeds, margin=margin,
                compiled=compiled, population=population, allow_imports=imports,
            )  # fmt: skip
        return
    if workers or compiled is not None or (margin, population) != (0.05, 8):
        raise typer.BadParameter("--margin, --workers, --compile and --population are about --seeds; add it")
    with stoppable(hint):
        found = blame_run(
            run_config,
            out,
            at_least=at_least,
            over=over,
            on_trial=lambda line: say(line, error=True),
            allow_imports=imports,
        )
    say(found)


def _blame_returns(config: TrainConfig, directory: Path, workers: int | None, **how: Any) -> None:
    """Brings all runs to their end, shows them meanwhile, and says what each unit costs."""
    from roundoff.sweeps.blame import blame_returns
    from roundoff.sweeps.display.progress import ProgressDisplay
    from roundoff.sweeps.sweep import usable_cores
    from roundoff.sweeps.workers.local import LocalProcesses

    with ProgressDisplay() as display:
        summary, costs = blame_returns(
            config, directory, lambda: LocalProcesses(workers or usable_cores()), display, **how
        )
    say_outcome(summary, [costs], directory)
