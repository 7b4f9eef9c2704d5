"""The command that runs a user's programs in a format."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from roundoff.cli.costs import CostModels, cost_model
from roundoff.cli.options import AllowImport, import_allowed, say, stoppable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from roundoff.simulate import CostModel, Policy, Script, Simulation

AS_PYTHON = {"allow_interspersed_args": False}
"""What stands behind the script belongs to it."""


def run(
    script: Annotated[str, typer.Argument(metavar="SCRIPT", help="A Python file; with -m, a module.")],
    arguments: Annotated[list[str] | None, typer.Argument(metavar="[ARGS]...", help="The script's arguments.")] = None,
    *,
    format_name: Annotated[
        str | None, typer.Option("--format", help="The format of all results, or the one that the policy rounds to.")
    ] = None,
    policy: Annotated[
        str | None,
        typer.Option(
            help="What is rounded: every-op, storage, mixed-precision, engine, a recipe such as fp8-rowwise, mx or"
            " nvfp4; or a policy as YAML or JSON, or a file of it."
        ),
    ] = None,
    rounding: Annotated[str | None, typer.Option(help="The rounding mode, such as stochastic.")] = None,
    accumulate: Annotated[
        str | None,
        typer.Option(help="The accumulator of products and sums, such as e5m10/32 or quire; or a unit: h100-fp8."),
    ] = None,
    granularity: Annotated[
        str | None, typer.Option(help="Whether a kernel or each primitive inside counts as one operation.")
    ] = None,
    scalars: Annotated[
        str | None, typer.Option(help="How Python numbers meet tensors: exact, once or rounded.")
    ] = None,
    observe: Annotated[
        bool, typer.Option("--observe", help="Print at the end, to standard error, what rounding did.")
    ] = False,
    observe_table: Annotated[
        Path | None, typer.Option(metavar="FILE.csv", help="Write what rounding did as a table, too.", dir_okay=False)
    ] = None,
    cost: Annotated[
        bool,
        typer.Option(
            "--cost", help="Print at the end, to standard error, the cost in the format: products, bytes, memory."
        ),
    ] = False,
    cost_table: Annotated[
        Path | None,
        typer.Option(metavar="FILE.csv", help="Write the costs of operations as a table, too.", dir_okay=False),
    ] = None,
    cost_models: CostModels = None,
    seed: Annotated[int, typer.Option(min=0, help="The seed of stochastic rounding.")] = 0,
    threads: Annotated[int | None, typer.Option(min=1, max=2**31 - 1, help="The number of PyTorch's threads.")] = None,
    blame: Annotated[
        str | None,
        typer.Option(
            metavar="MEASURE",
            help="Find the fewest operations that must stay in high precision for the script to reach this measure:"
            " loss<2.5, accuracy>=0.9, finite.",
        ),
    ] = None,
    over: Annotated[
        Literal["operation", "module", "role", "part"],
        typer.Option(
            help="The kind of things to blame: operations, modules, roles or parts of the program (functions that rules"
            " are within)."
        ),
    ] = "operation",
    exact_in: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Round nothing in this function (package.module:function) or in modules of this pattern; may be"
            " repeated.",
        ),
    ] = None,
    only_in: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Round only in this function (package.module:function); may be repeated."),
    ] = None,
    parts: Annotated[
        list[str] | None,
        typer.Option(
            "--part",
            metavar="NAME=POLICY",
            help="The policy within a function (its qualified name) or a block roundoff.part: a format, a recipe, or a"
            " policy as YAML or a file of it; may be repeated.",
        ),
    ] = None,
    module: Annotated[bool, typer.Option("-m", help="Run a module, like python -m.")] = False,
    allow_import: AllowImport = None,
) -> None:
    """Run any Python script, unchanged, in a number format.

    The exit status, output and traceback are those of `python SCRIPT ARGS`.
    """
    from roundoff.simulate import (
        PythonChildren,
        Script,
        Simulation,
        SteppedOptimizers,
        end_as_python,
        left_behind,
        run_as_main,
        show_as_python,
    )

    _check_folder("--observe-table", observe_table)
    _check_folder("--cost-table", cost_table)
    counts = cost or cost_table is not None or bool(cost_models)
    models = [cost_model(name) for name in cost_models or []]
    import_allowed(allow_import)
    program = Script(script, tuple(arguments or ()), module)
    given = {"rounding": rounding, "accumulate": accumulate, "granularity": granularity, "scalars": scalars}
    chosen = _policy(format_name, policy, {name: value for name, value in given.items() if value is not None})
    chosen = _with_exact(chosen, exact_in or [], only_in or [])
    for part in parts or []:
        chosen = _with_part(chosen, part)
    if blame is not None:
        _check_alone(observes=observe or observe_table is not None, counts=counts)
        _blame(program, chosen, blame, over=over, seed=seed, threads=threads, imports=allow_import or ())
        return
    if threads is not None:
        import torch

        torch.set_num_threads(threads)
    simulation = Simulation(chosen, seed=seed, observe=observe or observe_table is not None, cost=counts)
    with SteppedOptimizers() as stepped, PythonChildren() as children:
        error = run_as_main(program, simulation)
    show_as_python(error)
    if children.commands:
        sys.stdout.flush()
        say(f"roundoff: {children}", error=True)
    lost = left_behind(simulation.last_read, stepped)
    if lost and not observe:
        sys.stdout.flush()
        say(
            f"roundoff: {lost}, in {simulation.format}. --observe names the operation that the first such number came"
            " from; --policy mixed-precision rounds products alone; docs/nan.md says more.",
            error=True,
        )
    if observe or observe_table is not None:
        sys.stdout.flush()
        seen = simulation.report()
        say(seen, error=True)
        if observe_table is not None:
            from roundoff.files import write_text

            write_text(observe_table, seen.table.to_csv(index=False))
    if counts:
        _tell_cost(simulation, models, cost_table)
    end_as_python(error)


def _check_folder(hint: str, file: Path | None) -> None:
    if file is not None and not file.absolute().parent.is_dir():
        raise typer.BadParameter(f"there is no folder {file.absolute().parent}", param_hint=hint)


def _check_alone(*, observes: bool, counts: bool) -> None:
    """Refuses what trials of blame do not tell."""
    if observes:
        raise typer.BadParameter("leave out --observe and --observe-table", param_hint="--blame")
    if counts:
        raise typer.BadParameter("leave out --cost, --cost-table and --cost-model", param_hint="--blame")


def _tell_cost(simulation: Simulation, models: Sequence[CostModel], table: Path | None) -> None:
    """Prints the cost of a simulated script, also by models, and writes the table of its operations."""
    from roundoff.files import write_text

    sys.stdout.flush()
    counted = simulation.cost()
    say("\n".join([str(counted), *map(counted.told, models)]), error=True)
    if table is not None:
        write_text(table, counted.table.to_csv(index=False))


def _blame(
    script: Script,
    policy: Policy,
    text: str,
    *,
    over: Literal["operation", "module", "role", "part"],
    seed: int,
    threads: int | None,
    imports: Sequence[str],
) -> None:
    from roundoff.simulate import Measure, blame_script

    with stoppable("nothing was written"):
        found = blame_script(
            script,
            policy,
            Measure.parse(text),
            over=over,
            seed=seed,
            threads=threads,
            imports=imports,
            on_trial=lambda line: say(line, error=True),
        )
    say(found)


def _with_exact(policy: Policy, exact: Sequence[str], only: Sequence[str]) -> Policy:
    """Returns the policy with functions and modules left exact, or with all but some functions left exact."""
    from dataclasses import replace

    from roundoff.simulate import Rule

    functions = [name for name in exact if ":" in name]
    modules = [name for name in exact if ":" not in name]
    rules = [Rule(module=modules, format="fp32")] if modules else []
    if functions or only:
        policy = replace(policy, exact_in=(*policy.exact_in, *functions), only_in=(*policy.only_in, *only))
    return policy.with_rules(*rules)


def _with_part(policy: Policy, text: str) -> Policy:
    """Returns the policy with a different policy within a part of the program."""
    from roundoff.formats import FormatError
    from roundoff.simulate import Policy

    name, equals, described = text.partition("=")
    if not (name and equals and described):
        raise typer.BadParameter(f"say NAME=POLICY, got {text!r}", param_hint="--part")
    inside = _described(described, "--part")
    try:
        return policy.with_part(name, Policy.parse(inside))
    except FormatError as error:
        raise typer.BadParameter(f"{name}: {error}", param_hint="--part") from None


def _described(text: str, source: str) -> Any:
    """Returns the content of YAML, or of a file of it."""
    from roundoff.sweeps import located_yaml  # which needs an extra

    if Path(text).is_file():
        from roundoff.files import read_bytes

        source, text = text, read_bytes(text).decode(errors="replace")
    return located_yaml.parse(text, source).plain()


def _policy(format_name: str | None, text: str | None, given: dict[str, Any]) -> Policy:
    """The policy that options describe; given options replace the policy's settings."""
    from dataclasses import replace

    from roundoff.simulate import Policy

    if text is None:
        if format_name is None:
            raise typer.BadParameter("say which: --format e5m10, or --policy", param_hint="--format")
        return replace(Policy.of(format_name), **given)
    described = _described(text, "--policy")
    if isinstance(described, str):
        described = {"preset": described}
    chosen = replace(Policy.parse(described, format_name), **given)
    if chosen.rules and chosen.rounds_nothing:
        raise typer.BadParameter(
            "the policy rounds nothing in fp32; name another: PyTorch's mixed precision is --format bf16 or fp16",
            param_hint="--format",
        )
    return chosen
