"""The commands that train single agents."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from roundoff.cli.options import (
    AllowImport,
    Compiled,
    Margin,
    Overrides,
    Population,
    Workers,
    allowed_imports,
    import_allowed,
    say,
    say_outcome,
    stoppable,
)

if TYPE_CHECKING:
    from roundoff.agents import Profile


def train(
    overrides: Overrides = None,
    *,
    config: Annotated[Path | None, typer.Option(help="A YAML or JSON file with settings.")] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Folder of the run [default: runs/<its name>].")
    ] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda or cuda:N; the same as device=...")] = None,
    observe: Annotated[
        bool, typer.Option("--observe", help="Count rounding effects in every operation; the same as observe=true.")
    ] = False,
    compiled: Compiled = None,
    allow_import: AllowImport = None,
    address: Annotated[
        str | None, typer.Option(help="The Ray cluster for `actors` [default: $RAY_ADDRESS, else this machine].")
    ] = None,
    profile: Annotated[bool, typer.Option("--profile", help="Print a profile at the end, or when stopped.")] = False,
) -> None:
    """Train one agent, or continue its training."""
    from roundoff.agents import Stopped, StopRequest, stopping_on_sigterm
    from roundoff.agents import train as train_agent
    from roundoff.agents.config import has_actors, remarks
    from roundoff.sweeps import RunDisplay, plan_run, run_id

    arguments = [*(overrides or ()), *([f"device={device}"] if device else []), *(["observe=true"] if observe else [])]
    imports = allowed_imports(allow_import, arguments, config)
    run_config = plan_run(config, arguments)
    if address:
        if not has_actors(run_config):
            raise typer.BadParameter("--address is for actors, and this run has none; leave it out, or set actors")
        # Ray reads the variable, here and in the processes that the run starts.
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
        anew = "; the same command starts it from the beginning"
        continuation = ", and saved; the same command continues from there" if stopped.saved else anew
        say(f"roundoff: {stopped}{continuation} in {directory}", error=True)
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
        float | None, typer.Option(help="The return that a run must reach [default: it must not crash].")
    ] = None,
    measure: Annotated[
        str | None, typer.Option(help="The measure that a program must reach: loss<2.5, accuracy>=0.9, finite.")
    ] = None,
    over: Annotated[
        Literal["operation", "module", "role"],
        typer.Option(help="The unit of the search: operations or roles; for programs also modules."),
    ] = "operation",
    seeds: Annotated[
        int | None, typer.Option(min=2, help="Compare mean returns over this many seeds [default: one run decides].")
    ] = None,
    margin: Margin = 0.05,
    workers: Workers = None,
    compiled: Compiled = None,
    population: Population = 8,
    allow_import: AllowImport = None,
) -> None:
    """Find the operations that must stay in high precision; with `--seeds`, measure the loss by each.

    A run trains an agent, or calls a program: program=train.py:train --measure 'accuracy>=0.9'.
    """
    from roundoff.agents import blame_run
    from roundoff.sweeps import plan_run

    # A program
    if any(override.startswith("program=") for override in overrides or ()):
        if config or at_least is not None or seeds is not None:
            raise typer.BadParameter("leave out --config, --at-least and --seeds", param_hint="program")
        if workers or compiled is not None or (out, margin, population) != (Path("blame"), 0.05, 8):
            raise typer.BadParameter(
                "leave out --out, --margin, --workers, --compile and --population: trials of a program are not stored",
                param_hint="program",
            )
        if measure is None:
            raise typer.BadParameter("give a measure to reach, such as 'accuracy>=0.9'", param_hint="--measure")
        import_allowed(allow_import)
        _blame_program(overrides or [], measure, over=over, imports=allow_import or ())
        return
    # An agent: with --seeds, means over seeds; else a search with single runs
    if measure is not None:
        raise typer.BadParameter("is about programs; an agent's run has --at-least", param_hint="--measure")
    imports = allowed_imports(allow_import, overrides, config)
    run_config = plan_run(config, overrides or ())
    hint = f"the same command continues; finished trials are kept in {out}"
    if seeds is not None:
        if at_least is not None:
            raise typer.BadParameter(
                "--at-least is about single runs, and --seeds compares means: leave one of them out"
            )
        from roundoff.sweeps import LocalProcesses, ProgressDisplay, blame_returns, usable_cores

        with stoppable(hint):
            with ProgressDisplay() as display:
                summary, costs = blame_returns(
                    run_config, out, lambda: LocalProcesses(workers or usable_cores()), display, over=over, seeds=seeds,
                    margin=margin, compiled=compiled, population=population, allow_imports=imports,
                )  # fmt: skip
            say_outcome(summary, [costs], out)
        return
    if workers or compiled is not None or (margin, population) != (0.05, 8):
        raise typer.BadParameter("--margin, --workers, --compile and --population are about --seeds; add it")
    with stoppable(hint):
        result = blame_run(
            run_config,
            out,
            at_least=at_least,
            over=over,
            on_trial=lambda line: say(line, error=True),
            allow_imports=imports,
        )
    say(result)


def _blame_program(overrides: Sequence[str], measure: str, **options: Any) -> None:
    """Finds the operations, modules or roles that a program needs in high precision."""
    from roundoff.cli.programs import find_blame
    from roundoff.simulate import Script
    from roundoff.sweeps import called

    with stoppable("nothing was written"):
        config = called.config_from(overrides)
        script = Script(called.MODULE, (called.argument_for(config),), is_module=True)
    settings = config.settings
    find_blame(script, settings.policy_of_run(), measure, seed=settings.seed, threads=settings.threads, **options)
