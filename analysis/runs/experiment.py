"""Reads folders of runs into tables: one row per run, and one row per evaluation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from roundoff.locks import cached_property
from roundoff.runs.folder import RunDirectory, config_in, unplanned_runs
from roundoff.runs.metric import RETURN, Metric, read_metric
from roundoff.runs.result import MALFORMED

from ...agents.config import config_class
from ..errors import AnalysisError
from .conditions import Conditions, drop_policy, duplicates_in_fp32
from .files import planned_runs, read_costs, read_json
from .outcome import COLUMNS, read_outcome
from .records import Logged
from .settings import LARGEST, as_columns, flatten, is_program, tasks_of, unify_types

_RUN_COLUMNS = ["id", *COLUMNS]


@dataclass(frozen=True)
class Experiment:
    """The runs and records that were found in a folder.

    Attributes:
        name: the name of the sweep, or of the folder.
        description: the description of the sweep, in words; empty if it lacks one.
        runs: one row per run: ``id``; ``status`` (done, crashed, failed or waiting: see :func:`.outcome.read_outcome`);
            ``return``, which is the score, of a program the metric (0 for the crash of an agent, NaN before the end);
            ``return_std`` over the episodes of the final evaluation; ``step``; ``crash_step``; ``reason`` (of a crash
            or a failure, else empty); ``updates`` and ``untrained`` (NaN where not known); ``task``, of a program its
            function; every key of the config (``fixes`` as text).
        logged: the records of the runs, which are read when they are needed.
        returned: the numbers that programs returned, one row per run that did: ``id``, and the numbers by name (one
            that is called ``id`` is ``id_``).
        metric: the metric of the runs' scores.
        formats: the formats of the runs, in the order of the sweep's file.
        config_keys: the columns of ``runs`` that are keys of the config.
        configs: the configs of the runs, by id, as they were given.
        folders: the folders of the runs, by id.
        cases: names of the runs' cases in the sweep's file, by id, where they have one.
        costs: the cost of a step, by id, of runs counted by ``roundoff cost`` (:func:`.files.read_costs`).
        said: the warnings so far; those about records are added when the records are read.
    """

    name: str
    description: str
    runs: pd.DataFrame
    logged: Logged
    returned: pd.DataFrame
    metric: Metric
    formats: tuple[str, ...]
    config_keys: frozenset[str]
    configs: dict[str, dict[str, Any]]
    folders: dict[str, Path]
    cases: dict[str, str]
    costs: dict[str, dict[str, Any]]
    said: list[str]

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings of damaged data that were left out; reads the records to include theirs."""
        self.logged.read()
        return tuple(self.said)

    @property
    def curves(self) -> pd.DataFrame:
        """One row per evaluation, or record that holds the metric: ``id``, ``step`` and ``return``."""
        return self.logged.curves

    @property
    def exponents(self) -> pd.DataFrame:
        """The magnitudes of results of observed runs: a row per step, role and binary exponent k.

        Columns: ``id``, ``step``, ``role``, ``exponent`` and ``results``, how many results had a magnitude in
        [2^k, 2^(k+1)) since the step before.
        """
        return self.logged.exponents

    @property
    def training(self) -> pd.DataFrame:
        """One row per training episode, or record of a program: ``id``, ``step``, and every number logged there.

        At most 200 names; NaN where a run has not logged it. What a program logged and is not finite is infinite here.
        """
        return self.logged.training

    @property
    def quantized(self) -> pd.DataFrame:
        """One row per evaluation of a quantized policy: ``id``, ``step``, ``in`` (the quantization) and ``return``."""
        return self.logged.quantized

    @cached_property
    def conditions(self) -> Conditions:
        """The differences between the runs besides task, format and seed."""
        keys = self.config_keys - set(_RUN_COLUMNS)
        return Conditions(self.runs, keys, programs=not self.metric.of_agents, cases=self.cases)


def read_experiment(directory: str | Path) -> Experiment:
    """Reads the folder of a sweep, of a single run, or of several runs' folders.

    A torn last line of a metrics file (the run was killed while it wrote) is left out with a warning, as is
    everything else that cannot be understood.

    Args:
        directory: the folder.

    Raises:
        AnalysisError: the folder does not exist, or does not contain runs.
    """
    path = Path(directory)
    warnings: list[str] = []
    plan = _find_runs(path, warnings)
    configs = _configs(plan, warnings)
    outcomes = {identity: read_outcome(plan.folders[identity], warnings) for identity in sorted(configs)}
    metric = plan.metric or _most_common(configs, outcomes)
    # Leaves out runs with another metric, and duplicates
    for identity, outcome in list(outcomes.items()):
        metric_of_run = (outcome["metric"] if is_program(configs[identity]) else RETURN) or metric
        if metric_of_run.name != metric.name:
            warnings.append(f"{plan.folders[identity]}: is scored by {metric_of_run.name}, not {metric.name}; left out")
            del outcomes[identity]
    for identity in duplicates_in_fp32(configs, outcomes):
        del outcomes[identity]
    configs = {identity: configs[identity] for identity in outcomes}
    # The table of runs: outcomes and settings
    rows: list[dict[str, Any]] = []
    columns = drop_policy(_columns(configs), configs)
    for identity, outcome in outcomes.items():
        rows.append({"id": identity, **{key: outcome[key] for key in COLUMNS}, **columns[identity]})
    if not rows:
        raise AnalysisError("\n".join([f"{path}: holds no run that can be read", *warnings]))
    config_keys = {key for row in columns.values() for key in row}
    unify_types(rows, config_keys)
    runs = pd.DataFrame(rows)
    return Experiment(
        plan.name,
        plan.description,
        runs[_RUN_COLUMNS + sorted(set(runs.columns) - set(_RUN_COLUMNS))],
        Logged({identity: plan.folders[identity] for identity in outcomes}, metric.name, warnings, path),
        _values(outcomes),
        metric,
        tuple(dict.fromkeys(configs[identity]["format"] for identity in plan.folders if identity in configs)),
        frozenset(config_keys),
        configs,
        plan.folders,
        plan.cases,
        read_costs(path, warnings),
        warnings,
    )


def _configs(plan: _Plan, warnings: list[str]) -> dict[str, dict[str, Any]]:
    """The configs of distinguishable runs, by id."""
    configs: dict[str, dict[str, Any]] = {}
    for identity, folder in sorted(plan.folders.items()):
        path = RunDirectory(folder).config
        config = plan.configs.get(identity) or config_in(read_json(path, warnings))
        if config is None:
            warnings.append(f"{path}: is not the config of a run; left out")
            continue
        task = config.get("program" if is_program(config) else "task")
        if not isinstance(task, str) or not isinstance(config.get("format"), str):
            warnings.append(f"{folder / 'config.json'}: names no task and format; the run is left out")
        elif type(config.get("seed", 0)) is not int or not -LARGEST <= config.get("seed", 0) < LARGEST:
            warnings.append(f"{folder / 'config.json'}: its seed is not a 64-bit integer; the run is left out")
        else:
            configs[identity] = config
    return configs


def _columns(configs: Mapping[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Returns the config of each run, by id, as columns of a table."""
    programs = {identity: config for identity, config in configs.items() if is_program(config)}
    agents = {identity: config for identity, config in configs.items() if identity not in programs}
    columns = as_columns(programs)
    keys = {key for config in agents.values() for key in config}
    for identity, config in agents.items():
        unsaid = config_class(config).unsaid()  # a run's file leaves out some keys at their defaults
        columns[identity] = {key: value for key, value in unsaid.items() if key in keys} | config
    tasks = tasks_of(configs)
    return {identity: flatten({**columns[identity], "task": tasks[identity]}) for identity in configs}


def _most_common(configs: Mapping[str, dict[str, Any]], outcomes: Mapping[str, dict[str, Any]]) -> Metric:
    """Returns the metric of most runs."""
    per_run = [outcome["metric"] if is_program(configs[identity]) else RETURN for identity, outcome in outcomes.items()]
    metrics = {metric.model_dump_json(): metric for metric in per_run if metric is not None}
    counts = Counter(metric.model_dump_json() for metric in per_run if metric is not None)
    return metrics[counts.most_common(1)[0][0]] if counts else Metric()


def _values(outcomes: Mapping[str, dict[str, Any]]) -> pd.DataFrame:
    rows = [
        {"id": identity, **{"id_" if name == "id" else name: value for name, value in outcome["values"].items()}}
        for identity, outcome in outcomes.items()
        if outcome["values"]
    ]
    return pd.DataFrame(rows, columns=["id", *dict.fromkeys(name for row in rows for name in row if name != "id")])


class _Plan(NamedTuple):
    """The data to read, before anything of a run is read.

    Attributes:
        name: the name of the sweep, or of the folder.
        description: the description of the sweep.
        folders: the folders of the runs by id, in the order of the sweep's file.
        configs: the configs that the sweep planned, by id.
        metric: the metric of the sweep; None if no file has it.
        cases: the cases of the runs by id, where the sweep's file names them.
    """

    name: str
    description: str
    folders: dict[str, Path]
    configs: dict[str, dict[str, Any]]
    metric: Metric | None
    cases: dict[str, str]


def _find_runs(path: Path, warnings: list[str]) -> _Plan:
    if not path.is_dir():
        problem = "is no folder" if path.exists() else "does not exist"
        raise AnalysisError(f"{path}: {problem}; give the folder of a sweep, as `roundoff sweep` printed it")
    plan = _Plan(path.resolve().name, "", {}, {}, None, {})
    if (path / "sweep.json").exists():
        plan = _read_plan(path, warnings)
        warnings += unplanned_runs(path / "runs", plan.folders)
    elif (path / "config.json").exists():
        plan = plan._replace(folders={plan.name: path})
    else:
        folders = {folder.parent.name: folder.parent for folder in sorted(path.glob("*/config.json"))}
        plan = plan._replace(folders=folders)
    if not plan.folders:
        raise AnalysisError(
            f"{path}: holds no runs (there is no sweep.json, config.json or */config.json);"
            " give the folder of a sweep, as `roundoff sweep` printed it"
        )
    return plan


def _read_plan(path: Path, warnings: list[str]) -> _Plan:
    marker = path / "sweep.json"
    content = read_json(marker, warnings)
    try:
        planned = planned_runs(content)
        folders = {identity: path / "runs" / identity for identity in planned}
        metric = read_metric(content["metric"]) if content.get("metric") is not None else None
        cases = {str(run["id"]): str(run["case"]) for run in content["runs"] if run.get("case")}
        return _Plan(str(content["name"]), str(content.get("description") or ""), folders, planned, metric, cases)
    except MALFORMED as error:
        raise AnalysisError(
            f"{marker}: is not the list of a sweep's runs; the command of the sweep writes it again"
        ) from error
