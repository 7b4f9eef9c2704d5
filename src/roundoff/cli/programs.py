"""The command that runs a user's programs in a format."""

from __future__ import annotations

import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from roundoff.cli.costs import CostModels, cost_model
from roundoff.cli.options import AllowImport, AsJson, import_allowed, say, say_json, stoppable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from roundoff.simulate import CostModel, Policy, Script, Simulation, Trace

AS_PYTHON = {"allow_interspersed_args": False}
"""Arguments after the script belong to the script."""


def run(
    script: Annotated[str, typer.Argument(metavar="SCRIPT", help="A Python file; with -m, a module.")],
    arguments: Annotated[list[str] | None, typer.Argument(metavar="[ARGS]...", help="The script's arguments.")] = None,
    *,
    format_name: Annotated[
        str | None, typer.Option("--format", help="The format of all results, or the policy's format.")
    ] = None,
    policy: Annotated[
        str | None,
        typer.Option(
            help="The values to round: every-op, storage, mixed-precision, engine, a recipe such as fp8-rowwise, mx or"
            " nvfp4; or a policy as YAML or JSON, or a file of it."
        ),
    ] = None,
    rounding: Annotated[str | None, typer.Option(help="The rounding mode, such as stochastic.")] = None,
    random_bits: Annotated[
        int | None, typer.Option(min=1, max=32, help="The number of random bits of an element in stochastic rounding.")
    ] = None,
    accumulate: Annotated[
        str | None,
        typer.Option(help="The accumulator of products and sums, such as e5m10/32 or quire; or a unit: h100-fp8."),
    ] = None,
    granularity: Annotated[
        str | None,
        typer.Option(help="The unit of rounding: kernel (one operation each) or primitive (the steps inside)."),
    ] = None,
    scalars: Annotated[
        str | None,
        typer.Option(help="The treatment of Python numbers in operations with tensors: exact, once or rounded."),
    ] = None,
    observe: Annotated[
        bool, typer.Option("--observe", help="Print rounding effects at the end, to standard error.")
    ] = False,
    observe_table: Annotated[
        Path | None, typer.Option(metavar="FILE.csv", help="Also write rounding effects as a table.", dir_okay=False)
    ] = None,
    cost: Annotated[
        bool,
        typer.Option(
            "--cost", help="Print at the end, to standard error, the cost in the format: products, bytes, memory."
        ),
    ] = False,
    cost_table: Annotated[
        Path | None,
        typer.Option(metavar="FILE.csv", help="Also write the costs of operations as a table.", dir_okay=False),
    ] = None,
    cost_models: CostModels = None,
    record: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write a trace of the operations, for roundoff diff.", dir_okay=False),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="The seed of stochastic rounding.")] = 0,
    threads: Annotated[int | None, typer.Option(min=1, max=2**31 - 1, help="The number of PyTorch's threads.")] = None,
    blame: Annotated[
        str | None,
        typer.Option(
            metavar="MEASURE",
            help="Find a minimal set of operations that must stay in high precision to reach this measure:"
            " loss<2.5, accuracy>=0.9, finite.",
        ),
    ] = None,
    over: Annotated[
        Literal["operation", "module", "role", "part"],
        typer.Option(
            help="The unit of the search: operations, modules, roles or parts of the program (functions that rules"
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

    The exit status, output and traceback are the same as with `python SCRIPT ARGS`.
    """
    from roundoff.simulate import (
        PythonChildren,
        Recorder,
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
    _check_folder("--record", record)
    # Mistakes in options come before the script, which may run for hours.
    counts = cost or cost_table is not None or bool(cost_models)
    models = [cost_model(name) for name in cost_models or []]
    import_allowed(allow_import)
    program = Script(script, tuple(arguments or ()), module)
    settings = {
        "rounding": rounding, "random_bits": random_bits, "accumulate": accumulate, "granularity": granularity,
        "scalars": scalars,
    }  # fmt: skip
    # The policy: format or --policy, replaced settings, exact functions, and policies of parts
    format_name = format_name or ("fp32" if record is not None and policy is None else None)
    chosen = _policy(format_name, policy, {name: value for name, value in settings.items() if value is not None})
    chosen = _with_exact(chosen, exact_in or [], only_in or [])
    for part in parts or []:
        chosen = _with_part(chosen, part)
    if blame is not None:
        _check_alone(observes=observe or observe_table is not None, counts=counts)
        find_blame(program, chosen, blame, over=over, seed=seed, threads=threads, imports=allow_import or ())
        return
    if threads is not None:
        import torch

        torch.set_num_threads(threads)
    # The run
    recorder = None if record is None else Recorder()
    simulation = Simulation(
        chosen, seed=seed, observe=observe or observe_table is not None, cost=counts,
        watchers=[recorder] if recorder else [], products="plain" if recorder else "fast",
    )  # fmt: skip
    with SteppedOptimizers() as stepped, PythonChildren() as children:
        error = run_as_main(program, simulation)
    # The traceback, files and reports; output of the script is flushed before each
    show_as_python(error)
    if recorder is not None and record is not None:
        recorder.trace.write(record)
    if children.commands:
        sys.stdout.flush()
        say(f"roundoff: {children}", error=True)
    lost = left_behind(simulation.last_read, stepped)
    if lost and not observe:
        sys.stdout.flush()
        say(
            f"roundoff: {lost}, in {simulation.format}. --observe names the operation that the first such number came"
            " from; --policy mixed-precision rounds only products; see docs/watching.md.",
            error=True,
        )
    if observe or observe_table is not None:
        sys.stdout.flush()
        report = simulation.report()
        say(report, error=True)
        if observe_table is not None:
            from roundoff.files import write_text

            write_text(observe_table, report.table.to_csv(index=False))
    if counts:
        _print_cost(simulation, models, cost_table)
    end_as_python(error)


def _check_folder(hint: str, file: Path | None) -> None:
    if file is not None and not file.absolute().parent.is_dir():
        raise typer.BadParameter(f"the folder {file.absolute().parent} does not exist", param_hint=hint)


def _check_alone(*, observes: bool, counts: bool) -> None:
    """Refuses options that trials of blame do not support."""
    if observes:
        raise typer.BadParameter("leave out --observe and --observe-table", param_hint="--blame")
    if counts:
        raise typer.BadParameter("leave out --cost, --cost-table and --cost-model", param_hint="--blame")


def _print_cost(simulation: Simulation, models: Sequence[CostModel], table: Path | None) -> None:
    """Prints the cost of a simulated script, also by models, and writes the table of its operations."""
    from roundoff.files import write_text

    sys.stdout.flush()
    counted = simulation.cost()
    say("\n".join([str(counted), *map(counted.told, models)]), error=True)
    if table is not None:
        write_text(table, counted.table.to_csv(index=False))


def digits(
    script: Annotated[str, typer.Argument(metavar="SCRIPT", help="A Python file; with -m, a module.")],
    arguments: Annotated[list[str] | None, typer.Argument(metavar="[ARGS]...", help="The script's arguments.")] = None,
    *,
    samples: Annotated[int, typer.Option("-n", "--samples", min=2, help="The number of runs.")] = 8,
    format_name: Annotated[
        str | None,
        typer.Option("--format", help="Round results stochastically to this format, not to their own precision."),
    ] = None,
    policy: Annotated[str | None, typer.Option(help="The same with a policy, a recipe, or a file of a policy.")] = None,
    randomness: Annotated[
        Literal["results", "operands", "up-or-down"],
        typer.Option(help="Round results randomly (RR), perturb operands (PB), or round up or down (CADNA)."),
    ] = "results",
    seed: Annotated[int, typer.Option(min=0, help="The seed of the first sample.")] = 0,
    seeds: Annotated[
        int, typer.Option(min=0, help="The number of the script's own seeds to also run with: {seed} in its arguments.")
    ] = 0,
    threads: Annotated[int | None, typer.Option(min=1, max=2**31 - 1, help="The number of PyTorch's threads.")] = None,
    module: Annotated[bool, typer.Option("-m", help="Run a module, like python -m.")] = False,
    as_json: AsJson = False,
    allow_import: AllowImport = None,
) -> None:
    """Count the significant digits of the numbers that a script prints and logs.

    The script runs several times with random rounding. Digits that differ between the runs depend on rounding errors.
    """
    from roundoff.simulate import Script, script_digits

    import_allowed(allow_import)
    chosen = None if format_name is None and policy is None else _policy(format_name, policy, {})
    program = Script(script, tuple(arguments or ()), module)
    with stoppable("nothing was written"):
        report = script_digits(
            program, samples, policy=chosen, randomness=randomness, seed=seed, seeds=seeds, threads=threads,
            imports=allow_import or (), on_sample=lambda line: say(line, error=True),
        )  # fmt: skip
    say_json(report.as_json()) if as_json else say(report)


def diff(
    first: Annotated[str, typer.Argument(help="A script, in quotes with its arguments, or a trace of run --record.")],
    second: Annotated[str | None, typer.Argument(help="The other; without it, the first script again.")] = None,
    *,
    options: Annotated[
        str, typer.Option("--with", metavar="OPTIONS", help="Options of roundoff run for the second run.")
    ] = "",
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the report as one HTML page.")] = None,
    as_json: AsJson = False,
) -> None:
    """Compare two runs that should agree: find where they differ, and whether rounding explains it.

    The exit status is 1 if a difference is not explained by rounding, or if a script failed.
    """
    from roundoff.simulate import DiffReport

    _check_folder("--html", html)
    with stoppable("nothing was written"):
        traces = _trace(first), _trace(first if second is None else second, shlex.split(options))
        report = DiffReport.of(*(trace for trace, _ in traces))
    say_json(report.as_json()) if as_json else say(report)
    if html is not None:
        from roundoff.analysis import difference_page
        from roundoff.files import write_text

        write_text(html, difference_page(report.as_json(), (first, f"{second or first} {options}".strip())))
    if not report.explained or any(status for _, status in traces):
        raise typer.Exit(1)


def _trace(text: str, options: Sequence[str] = ()) -> tuple[Trace, int]:
    """Reads a trace, or records a script; also returns the exit status of the script."""
    from roundoff.simulate import Trace

    command = [text] if Path(text).is_file() else shlex.split(text)
    if text.endswith(".jsonl"):
        return Trace.read(text), 0
    with tempfile.TemporaryDirectory(prefix="roundoff-diff-") as folder:
        file = Path(folder) / "trace.jsonl"
        words = [sys.executable, "-m", "roundoff", "run", "--record", str(file), *options, *command]
        process = subprocess.run(words, capture_output=True, text=True, check=False)  # noqa: S603
        status = process.returncode
        if status:
            say(process.stderr, error=True)
        if not file.exists():
            raise typer.BadParameter(f"{text} left no trace; its exit status is {status}")
        if status:
            say(f"{text} ended with exit status {status}; its operations before that are compared", error=True)
        return Trace.read(file), status


def find_blame(script: Script, policy: Policy, measure: str, **options: Any) -> None:
    """Finds the parts of a script that must stay in high precision to reach a measure, and prints them."""
    from roundoff.simulate import Measure, blame_script

    with stoppable("nothing was written"):
        goal = Measure.parse(measure)
        result = blame_script(script, policy, goal, on_trial=lambda line: say(line, error=True), **options)
    say(result)


def _with_exact(policy: Policy, exact: Sequence[str], only: Sequence[str]) -> Policy:
    """Returns the policy with functions and modules left exact, or with all but some functions left exact."""
    from dataclasses import replace

    from roundoff.simulate import Rule

    if "" in exact:  # as a pattern, it would leave all operations outside of modules exact
        raise typer.BadParameter("must be a function or a pattern of modules, got ''", param_hint="--exact-in")
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

    name, equals, description = text.partition("=")
    if not (name and equals and description):
        raise typer.BadParameter(f"must be NAME=POLICY, got {text!r}", param_hint="--part")
    content = _read_yaml(description, "--part")
    try:
        return policy.with_part(name, Policy.parse(content))
    except FormatError as error:
        raise typer.BadParameter(f"{name}: {error}", param_hint="--part") from None


def _read_yaml(text: str, source: str) -> Any:
    """Parses YAML text, or a file of it."""
    from roundoff.sweeps import located_yaml  # which needs an extra

    if Path(text).is_file():
        from roundoff.files import read_bytes

        source, text = text, read_bytes(text).decode(errors="replace")
    return located_yaml.parse(text, source).plain()


def _policy(format_name: str | None, text: str | None, settings: dict[str, Any]) -> Policy:
    """Returns the policy that options describe; ``settings`` replace the policy's own."""
    from dataclasses import replace

    from roundoff.simulate import Policy

    if text is None:
        if format_name is None:
            raise typer.BadParameter("choose one, such as e5m10, or give --policy", param_hint="--format")
        return replace(Policy.of(format_name), **settings)
    content = _read_yaml(text, "--policy")
    if isinstance(content, str):
        content = {"preset": content}
    chosen = replace(Policy.parse(content, format_name), **settings)
    if chosen.rules and chosen.rounds_nothing:
        raise typer.BadParameter(
            "the policy rounds nothing in fp32; choose another: PyTorch's mixed precision is --format bf16 or fp16",
            param_hint="--format",
        )
    return chosen
