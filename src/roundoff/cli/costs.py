"""The commands about what runs cost, and what that buys."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from roundoff.cli.options import (
    AllowImport,
    AsJson,
    Margin,
    Overrides,
    allowed_imports,
    import_allowed,
    print_warnings,
    say,
    say_json,
    stoppable,
)

if TYPE_CHECKING:
    from roundoff.simulate import CostModel

CostModels = Annotated[
    list[str] | None,
    typer.Option(
        "--cost-model",
        metavar="NAME|FILE.yaml",
        help="Add what a model says of the products: horowitz-45nm (energy), array-multiplier (area), or a file of"
        " one's own; any number of these.",
    ),
]


def cost(
    sweep: Annotated[str, typer.Argument(help="A sweep file, a preset's name, or the folder of a sweep of agents.")],
    overrides: Overrides = None,
    *,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Folder of the results [default: results/NAME].")
    ] = None,
    cost_models: CostModels = None,
    again: Annotated[bool, typer.Option("--again", help="Count anew what was counted before.")] = False,
    allow_import: AllowImport = None,
) -> None:
    """Count what a step costs in each arithmetic of a sweep: products, bytes, memory, what is sent."""
    from roundoff.sweeps.catalogue import find_sweep
    from roundoff.sweeps.costs import count_costs, runs_in, runs_of_plan

    models = [cost_model(name) for name in cost_models or []]
    if Path(sweep).is_dir():
        import_allowed(allow_import)
        directory, runs, source = out or Path(sweep), runs_in(sweep), ""
        imports = list(allow_import or ())
    else:
        from roundoff.sweeps import plan_file

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
    directory: Annotated[Path, typer.Argument(help="Folder of a sweep, in which `roundoff cost` has counted.")],
    *,
    cost: Annotated[
        Literal["bits", "bytes", "bops", "memory", "energy"],
        typer.Option(
            help="Bits of a number; or of a step: bytes moved, bit operations, bytes kept, energy by a model."
        ),
    ] = "bytes",
    model: Annotated[str | None, typer.Option(help="Of energy, by its name [default: horowitz-45nm].")] = None,
    margin: Margin = 0.05,
    as_json: AsJson = False,
) -> None:
    """Print what each format scores for what it costs, which are on the front, and which are equivalent to fp32."""
    from roundoff.analysis import pareto as pareto_front

    table, text, warnings = pareto_front(directory, cost, margin, model)
    print_warnings(warnings)
    if as_json:
        rows = table.astype(object).where(table.notna(), None)
        say_json(rows.to_dict("records"))
    else:
        say(text)


def cost_model(name: str) -> CostModel:
    """A cost model by its name, or from a YAML file."""
    from roundoff.simulate import CostModel

    if not Path(name).is_file():
        return CostModel.parse(name)
    from roundoff.files import read_bytes
    from roundoff.sweeps.language.located_yaml import parse  # which needs an extra

    return CostModel.parse(parse(read_bytes(name).decode(errors="replace"), name).plain())
