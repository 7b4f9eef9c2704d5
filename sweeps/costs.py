"""The cost of a step in each arithmetic of a sweep, counted once and stored in the results folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from roundoff.errors import FileError, RoundoffError
from roundoff.files import make_directory, read_json, write_json

from ..agents import TrainConfig
from ..simulate import MODELS, CostModel
from .errors import SweepError
from .folder.directory import COSTS, MARKER, SweepDirectory
from .subjects.program_keys import ProgramConfig
from .wording import complaint

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from ..simulate import CountedSteps
    from .language.plan import Plan
    from .subjects.subject import RunConfig

LAYOUT = 1


def count_costs(
    runs: Iterable[tuple[str, RunConfig]],
    directory: str | Path,
    *,
    source: str = "",
    allow_imports: Collection[str] = (),
    models: Sequence[CostModel] = (),
    again: bool = False,
    on_counted: Callable[[str], None] | None = None,
) -> Path:
    """Counts the cost of a step in each arithmetic of some runs, and writes it to ``costs.json`` in a folder.

    Runs that differ only in their seeds are counted once. Earlier counts in the folder are kept, except for a program
    that has changed since, and for models that were not used then.

    Args:
        runs: name and config of each.
        directory: the folder of the sweep; made if it is missing.
        source: the source code of the program, used to detect a change; empty for agents.
        allow_imports: modules that may be imported to make a task.
        models: models of the cost of products, in addition to the package's models.
        again: counts everything again.
        on_counted: called with a line on each that was counted.

    Returns:
        The file.

    Raises:
        SweepError: the list of runs is empty, or no run could be counted.
        FileError: the file cannot be written.
    """
    path = Path(directory) / COSTS
    asked = [*MODELS.values(), *models]
    alike: dict[str, list[tuple[str, RunConfig]]] = {}
    for identity, config in runs:
        alike.setdefault(_arithmetic(config.as_json()), []).append((identity, config))
    if not alike:
        raise SweepError(f"{directory}: there is no run of which a cost could be counted")
    before = {} if again else _before(path, source, [model.name for model in asked])
    known = {key: before[key] for key in alike if key in before}
    reasons = []
    for key, same in alike.items():
        if key not in known:
            config = same[0][1]
            try:
                known[key] = counted_cost(config, allow_imports, asked)
            except RoundoffError as error:
                known[key] = {"reason": str(error)}
                reasons.append(str(error))
            if on_counted:
                on_counted(_told(config, known[key]))
        if len(reasons) < len(known):  # at each one, so that nothing is lost of what was counted
            _write(path, source, {key: (known[key], same) for key, same in alike.items() if key in known})
    if len(reasons) == len(alike):
        raise SweepError(f"no cost could be counted: {reasons[0]}")
    return path


def _write(path: Path, source: str, known: dict[str, tuple[dict[str, Any], list[tuple[str, RunConfig]]]]) -> None:
    """Writes the counts of each arithmetic, with its runs."""
    entries = [
        {**entry, "config": json.loads(key), "runs": [name for name, _ in same]} for key, (entry, same) in known.items()
    ]
    make_directory(path.parent)
    write_json(path, {"layout": LAYOUT, "source": source, "costs": entries})


def runs_of_plan(plan: Plan) -> list[tuple[str, RunConfig]]:
    """The runs of a plan, as :func:`count_costs` takes them."""
    return [(run.id, run.config) for run in plan.runs]


def runs_in(directory: str | Path) -> list[tuple[str, RunConfig]]:
    """The runs of agents that a folder has, as :func:`count_costs` takes them.

    Raises:
        SweepError: it is not a sweep's folder, or belongs to a program's sweep, where the sweep file names the program;
            or this version refuses a run's config.
    """
    files = SweepDirectory(directory)
    if not files.marker.exists():
        raise SweepError(f"{directory}: is no folder of a sweep (there is no {MARKER})")
    content = files.read()
    if content.get("program"):
        raise SweepError(
            f"{directory}: its runs are of {content['program']}, which is run to count its cost: name the sweep file,"
            " with --out if the folder is another than results/NAME"
        )
    return [(str(entry["id"]), _config_of(directory, entry)) for entry in content["runs"]]


def _config_of(directory: str | Path, entry: dict[str, Any]) -> RunConfig:
    """The config of a run of a folder; raises SweepError if this version refuses it."""
    try:
        return TrainConfig(**entry["config"])
    except ValidationError as error:
        told = "; ".join(f"{'.'.join(map(str, one['loc']))} {complaint(one)}".strip() for one in error.errors())
        raise SweepError(f"{directory}: the config of the run {entry['id']} cannot be used: {told}") from None


def _arithmetic(config: dict[str, Any]) -> str:
    return json.dumps({key: value for key, value in config.items() if key != "seed"}, sort_keys=True)


def _before(path: Path, source: str, models: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Reads earlier counts, by arithmetic; returns no counts for an unreadable file, so everything is counted again."""
    found: dict[str, dict[str, Any]] = {}
    try:
        content = read_json(path) if path.exists() else {}
        if content.get("layout") != LAYOUT or content.get("source") != source:
            return {}
        for entry in content["costs"]:
            if "reason" not in entry and set(models) <= set(entry["models"]):
                found[json.dumps(entry["config"], sort_keys=True)] = entry
    except (FileError, AttributeError, KeyError, TypeError):
        return {}
    return found


def counted_cost(
    config: RunConfig, allow_imports: Collection[str] = (), models: Sequence[CostModel] = tuple(MODELS.values())
) -> dict[str, Any]:
    """Counts the cost of a step of a run, of a program or of an agent.

    Raises:
        RoundoffError: it cannot be counted.
    """
    return counted_steps(config, allow_imports, models).cost


def counted_steps(
    config: RunConfig, allow_imports: Collection[str] = (), models: Sequence[CostModel] = tuple(MODELS.values())
) -> CountedSteps:
    """A few steps of a run: what one costs, and where they have led.

    Raises:
        RoundoffError: it cannot be counted.
    """
    if isinstance(config, ProgramConfig):
        from .programs.cost import count_steps  # noqa: PLC0415  imports torch

        return count_steps(config, models)
    from ..agents import count_updates  # noqa: PLC0415  imports torch, and environments

    assert isinstance(config, TrainConfig)
    return count_updates(config, allow_imports, models)


def _told(config: RunConfig, entry: dict[str, Any]) -> str:
    where = f"{config.task} {config.format}"
    if "reason" in entry:
        return f"{where}: not counted: {entry['reason']}"
    moved = entry["bytes_read"] + entry["bytes_written"]
    told = f"{where}: {entry['bops']:,.0f} bit operations, {moved:,.0f} bytes moved, {entry['bytes_kept']:,.0f} kept"
    return told + (f"; not counted: {', '.join(entry['uncounted'])}" if entry["uncounted"] else "")
