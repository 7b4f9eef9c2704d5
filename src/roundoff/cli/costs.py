"""The commands that count the costs of runs, and compare them with scores."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from roundoff.cli.options import (
    AllowImport,
    AsJson,
    Compiled,
    DryRun,
    Margin,
    Overrides,
    Population,
    Reference,
    ResultsFolder,
    Workers,
    allowed_imports,
    import_allowed,
    parts,
    print_warnings,
    say,
    say_table,
    settings_of,
    stoppable,
)

if TYPE_CHECKING:
    from roundoff.simulate import CostModel

CostModels = Annotated[
    list[str] | None,
    typer.Option(
        "--cost-model",
        metavar="NAME|FILE.yaml",
        help="Add a model's price of the products: horowitz-45nm (energy), array-multiplier (area), or a file of"
        " your own; any number of these.",
    ),
]


def cost(
    sweep: Annotated[str, typer.Argument(help="A sweep file, a preset's name, or the folder of a sweep of agents.")],
    overrides: Overrides = None,
    *,
    out: ResultsFolder = None,
    cost_models: CostModels = None,
    again: Annotated[bool, typer.Option("--again", help="Count everything again.")] = False,
    allow_import: AllowImport = None,
) -> None:
    """Count the cost of a step in each arithmetic of a sweep: products, bytes, memory, messages."""
    from roundoff.sweeps import count_costs, find_sweep, plan_file, runs_in, runs_of_plan

    models = [cost_model(name) for name in cost_models or []]  # mistakes in a file before anything is counted
    if Path(sweep).is_dir():  # a folder has the runs as they were planned
        import_allowed(allow_import)
        directory, runs, source = out or Path(sweep), runs_in(sweep), ""
        imports = list(allow_import or ())
    else:
        file = find_sweep(sweep)
        imports = allowed_imports(allow_import, overrides or [], file)
        plan = plan_file(file, overrides or ())
        directory, runs = out or Path("results") / plan.name, runs_of_plan(plan)
        source = plan.program.program.source() if plan.program else ""
    with stoppable("nothing was written"):
        path = count_costs(
            runs, directory, source=source, allow_imports=imports, models=models, again=again, on_counted=say
        )
    say(path)


def pareto(
    directory: Annotated[
        Path, typer.Argument(help="The folder of a sweep, after `roundoff cost` has counted its costs.")
    ],
    *,
    cost: Annotated[
        Literal["bits", "bytes", "bops", "memory", "sent", "energy"],
        typer.Option(
            help="The cost: bits of a value; or bytes moved, bit operations, bytes kept or sent, energy of a step."
        ),
    ] = "bytes",
    model: Annotated[
        str | None, typer.Option(help="The model of energy, by its name [default: horowitz-45nm].")
    ] = None,
    margin: Margin = 0.05,
    reference: Reference = None,
    as_json: AsJson = False,
) -> None:
    """Print the score and cost of each format, the formats on the Pareto front, and which are equivalent to fp32."""
    from roundoff.analysis import pareto as pareto_front

    table, text, warnings = pareto_front(directory, cost, margin, model, settings_of(reference))
    print_warnings(warnings)
    say_table(table, text, as_json=as_json)


def allocate(
    file: Annotated[str, typer.Argument(help="A sweep file (YAML) with the settings of all runs in its base.")],
    overrides: Overrides = None,
    *,
    formats: Annotated[
        str, typer.Option(help="The formats to choose from, in addition to fp32, with commas: e5m10,e4m3.")
    ],
    by: Annotated[
        str,
        typer.Option(
            metavar="COST|NAME|FILE.yaml",
            help="The cost to minimize: bits, bops, bytes, memory, or a model as for --cost-model.",
        ),
    ] = "bops",
    over: Annotated[
        Literal["role", "module", "operation", "storage"],
        typer.Option(help="The kind of parts that get separate formats."),
    ] = "role",
    within: Annotated[str, typer.Option(help="The margin of equivalence to fp32.")] = "5 %",
    seeds: Annotated[int, typer.Option(min=3, help="The number of seeds.")] = 10,
    choose: Annotated[
        int, typer.Option(min=1, help="The number of seeds that choose; the others confirm the result.")
    ] = 3,
    out: ResultsFolder = None,
    workers: Workers = None,
    dry_run: DryRun = False,
    compiled: Compiled = None,
    population: Population = 8,
    allow_import: AllowImport = None,
) -> None:
    """Find the cheapest formats for roles, modules, operations or memory that are equivalent to fp32.

    The same as a sweep of the file with `search: {for: cheapest, ...}` and only seeds in its grid.
    """
    from roundoff.cli.sweeps import bring_to_end, print_plan
    from roundoff.sweeps import LocalProcesses, find_sweep, plan_file, usable_cores

    source = find_sweep(file)
    imports = allowed_imports(allow_import, overrides or [], source)
    goal = {"for": "cheapest", "by": by, "over": over, "within": within, "formats": parts(formats), "choose": choose}
    # The command is a sweep file with two more sections; the user's overrides are the last, and win.
    name = plan_file(source, overrides or ()).name
    sections = [f"name={name}-cheapest", f"search={json.dumps(goal)}", f"grid={{seed: 0..{seeds - 1}}}"]
    plan = plan_file(source, [*sections, *(overrides or ())])
    directory = out or Path("results") / plan.name
    if dry_run:
        print_plan(plan, directory, None, imports)
        return
    with stoppable(f"the same command continues; finished runs are kept in {directory}"):
        bring_to_end(plan, directory, lambda: LocalProcesses(workers or usable_cores()), compiled, population, imports)


def cost_model(name: str) -> CostModel:
    """Returns a cost model by its name, or from a YAML file."""
    from roundoff.sweeps import read_cost_model

    return read_cost_model(name)
