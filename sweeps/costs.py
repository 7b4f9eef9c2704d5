"""Counts the cost of a step in each arithmetic of a sweep, once, and stores it in the results folder."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import Any, final

import torch
from pydantic import ValidationError

from roundoff.current_run import part_of
from roundoff.errors import FileError, RoundoffError
from roundoff.files import make_directory, read_json, write_json

from ..agents import TrainConfig
from ..simulate import MODELS, Cost, CostCounter, CostModel, CountedSteps, Simulation, Watcher, learned
from .errors import SweepError
from .folder.directory import COSTS, MARKER, SweepDirectory
from .language.plan import Plan
from .programs.recorder import seed_generators
from .programs.run import keys_of, surroundings
from .subjects.program_keys import ARITHMETIC, ProgramConfig
from .subjects.subject import RunConfig
from .user_code import describe_error
from .wording import complaint

LAYOUT = 1
_STEPS = 2  # counted steps of a program


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
        runs: the name and config of each run.
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
    # Groups the runs by their arithmetic, and reads earlier counts
    path = Path(directory) / COSTS
    all_models = [*MODELS.values(), *models]
    groups: dict[str, list[tuple[str, RunConfig]]] = {}
    for identity, config in runs:
        arithmetic = {key: value for key, value in config.as_json().items() if key != "seed"}
        groups.setdefault(json.dumps(arithmetic, sort_keys=True), []).append((identity, config))
    if not groups:
        raise SweepError(f"{directory}: it has no run to count the cost of")
    earlier = {} if again else _earlier_counts(path, source, [model.name for model in all_models])
    counts = {key: earlier[key] for key in groups if key in earlier}
    # Counts one run of each group
    reasons = []
    for key, members in groups.items():
        if key not in counts:
            config = members[0][1]
            try:
                counts[key] = count_run(config, allow_imports, all_models).cost
            except RoundoffError as error:
                counts[key] = {"reason": str(error)}
                reasons.append(str(error))
            if on_counted:
                on_counted(_entry_as_text(config, counts[key]))
        if len(reasons) < len(counts):  # written after each count, so that an interruption loses nothing
            entries = [
                {**counts[key], "config": json.loads(key), "runs": [name for name, _ in members]}
                for key, members in groups.items()
                if key in counts
            ]
            make_directory(path.parent)
            write_json(path, {"layout": LAYOUT, "source": source, "costs": entries})
    if len(reasons) == len(groups):
        raise SweepError(f"no cost could be counted: {reasons[0]}")
    return path


def runs_of_plan(plan: Plan) -> list[tuple[str, RunConfig]]:
    """The runs of a plan, as :func:`count_costs` takes them."""
    return [(run.id, run.config) for run in plan.runs]


def runs_in(directory: str | Path) -> list[tuple[str, RunConfig]]:
    """Reads the runs of agents in a folder, as :func:`count_costs` takes them.

    Raises:
        SweepError: it is not a sweep's folder, or belongs to a program's sweep, where the sweep file names the program;
            or this version refuses a run's config.
    """
    files = SweepDirectory(directory)
    if not files.marker.exists():
        raise SweepError(f"{directory}: is not the folder of a sweep (there is no {MARKER})")
    content = files.read()
    if content.get("program"):
        raise SweepError(
            f"{directory}: its runs are of {content['program']}, which is run to count its cost: name the sweep file,"
            " with --out if the folder is another than results/NAME"
        )
    runs: list[tuple[str, RunConfig]] = []
    for entry in content["runs"]:
        try:
            runs.append((str(entry["id"]), TrainConfig(**entry["config"])))
        except ValidationError as error:
            mistakes = "; ".join(f"{'.'.join(map(str, x['loc']))} {complaint(x)}".strip() for x in error.errors())
            raise SweepError(f"{directory}: the config of the run {entry['id']} cannot be used: {mistakes}") from None
    return runs


def _earlier_counts(path: Path, source: str, models: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Reads earlier counts, by arithmetic; returns no counts for an unreadable file, so everything is counted again."""
    counts: dict[str, dict[str, Any]] = {}
    try:
        content = read_json(path) if path.exists() else {}
        if content.get("layout") != LAYOUT or content.get("source") != source:
            return {}
        for entry in content["costs"]:
            if "reason" not in entry and set(models) <= set(entry["models"]):
                counts[json.dumps(entry["config"], sort_keys=True)] = entry
    except (FileError, AttributeError, KeyError, TypeError):
        return {}
    return counts


def count_run(
    config: RunConfig, allow_imports: Collection[str] = (), models: Sequence[CostModel] = tuple(MODELS.values())
) -> CountedSteps:
    """Counts a few steps of a program's or an agent's run: the cost of one step, and the weights before and after.

    Raises:
        RoundoffError: it cannot be counted.
    """
    if isinstance(config, ProgramConfig):
        return count_program(config, models)
    from ..agents import count_updates  # noqa: PLC0415  imports torch, and environments

    assert isinstance(config, TrainConfig)
    return count_updates(config, allow_imports, models)


def _entry_as_text(config: RunConfig, entry: dict[str, Any]) -> str:
    name = f"{config.task} {config.format}"
    if "reason" in entry:
        return f"{name}: not counted: {entry['reason']}"
    moved = entry["bytes_read"] + entry["bytes_written"]
    text = f"{name}: {entry['bops']:,.0f} bit operations, {moved:,.0f} bytes moved, {entry['bytes_kept']:,.0f} kept"
    return text + (f"; not counted: {', '.join(entry['uncounted'])}" if entry["uncounted"] else "")


def count_program(config: ProgramConfig, models: Sequence[CostModel] = tuple(MODELS.values())) -> CountedSteps:
    """Counts the cost of a step of a program, in the arithmetic of its run.

    The program is called as in a run, and ended after a few steps of its first optimizer. The first step is not
    counted, as it also rounds the initial weights. A program without a second step is counted as a whole.

    Args:
        config: the program, and its arguments.
        models: models of the cost of products, with their own numbers.

    Returns:
        The values of ``Cost.as_json`` for one step, and ``steps``, the number of counted steps, 0 for a whole program;
        and the optimizer's parameters after its first and its last step.

    Raises:
        SweepError: the program raised something.
    """
    settings = config.settings
    stop = _StopAfterSteps(_STEPS)
    simulation = Simulation(settings.policy_of_run(), seed=settings.seed, watchers=[stop], warn_unused=False)
    stop.counter = simulation.count_cost()
    keys = keys_of(config.program)
    function, arguments = config.program.load(), keys.arguments(config)
    seed_generators(config.seed)
    try:
        with part_of(None), surroundings(settings.threads):
            if ARITHMETIC in keys.takes:
                function(**arguments, arithmetic=simulation)
            else:
                with simulation:
                    function(**arguments)
    except _EnoughError:  # the usual end
        return CountedSteps(stop.counter.report().as_json(_STEPS, models) | {"steps": _STEPS}, stop.begin, stop.end)
    except (Exception, SystemExit) as error:
        raise SweepError(f"{config.program.text}: {describe_error(error)}") from error
    # The program has ended by itself: its optimizer made too few steps, or none.
    cost = stop.first or stop.counter.report()
    return CountedSteps(cost.as_json(1, models) | {"steps": 0}, {}, {})


class _EnoughError(BaseException):
    """A program has made the steps to be counted; not an error that the program would handle."""


@final
class _StopAfterSteps(Watcher):
    """Begins to count after the first step of an optimizer, and ends the program after some more steps."""

    def __init__(self, steps: int) -> None:
        self.counter: CostCounter
        self.first: Cost | None = None
        self.begin: dict[str, torch.Tensor] = {}
        self.end: dict[str, torch.Tensor] = {}
        self._steps = steps
        self._optimizer: torch.optim.Optimizer | None = None

    def optimizer_stepped(self, optimizer: torch.optim.Optimizer) -> None:
        """Called after each step of any optimizer."""
        if self._optimizer is None:  # steps of further optimizers, as of GANs, belong to the first one's step
            self._optimizer = optimizer
            self.first = self.counter.report()
            self.counter.restart()
            self.begin = _parameters(optimizer)
        elif optimizer is self._optimizer:
            self._steps -= 1
            if self._steps == 0:
                self.end = _parameters(optimizer)
                raise _EnoughError


def _parameters(optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    return learned({"parameters": [x for group in optimizer.param_groups for x in group["params"]]})
