"""Describes the origin of runs: versions, machine, time, and how to repeat them."""

from __future__ import annotations

import io
import json
import re
import shlex
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from datetime import UTC, datetime
from itertools import product
from math import prod
from typing import Any

import pandas as pd
import yaml

from roundoff.files import read_bytes, try_json
from roundoff.runs.folder import RunDirectory
from roundoff.runs.metric import Metric

from ..figures.drawing.axes import sort_formats
from ..figures.magnitudes import ROLES
from ..runs.experiment import Experiment
from ..tables.summary import records
from ..tables.wording import number, percent, plural

_MADE_WITH = ("python", "torch", "numpy", "processor", "commit")
_OF_PROGRAMS = {"source": "source", "commit of the program": "program_commit"}
_SETTINGS = ("device", "threads", "native")
_NOT_RECORDED = "not recorded"
_LARGEST = 1e15
_COUNTS = ["results", "overflow", "underflow", "subnormal", "infinite", "nan", "inexact", "additions", "absorbed"]


def environment(experiment: Experiment) -> dict[str, str]:
    """Describes versions, machine, time and speed of runs, in words, by name.

    The version of roundoff is in a run's ``config.json``, the rest in ``timing.json``, which a run writes when it
    ends. Facts that an earlier version did not write are "not recorded". Programs have their names, hashes of their
    sources, and their commits.
    """
    runs = [RunDirectory(experiment.folders[identity]) for identity in experiment.runs["id"]]
    configs = [try_json(run.config)[0] for run in runs if run.config.exists()]
    timings = [run.read_timing() for run in runs if run.timing.exists()]
    facts = {}
    if "program" in experiment.runs:
        facts = {"program": _count_values(list(experiment.runs["program"]))}
        facts |= {name: _count_values([entry.get(key) for entry in timings]) for name, key in _OF_PROGRAMS.items()}
    facts["roundoff"] = _count_values([entry.get("version") if isinstance(entry, dict) else None for entry in configs])
    facts |= {key: _count_values([entry.get(key) for entry in timings]) for key in _MADE_WITH}
    facts["ended"] = _period([entry.get("ended") for entry in timings])
    if not experiment.metric.of_agents:  # configs of programs have a device only if it is not the CPU
        facts["device"] = _count_values([str(config.get("device", "cpu")) for config in experiment.configs.values()])
    for key in _SETTINGS:
        if key in experiment.runs and key not in facts:
            facts[key] = _count_values(list(experiment.runs[key]))
    seconds, speeds = (_showable(entry.get(key) for entry in timings) for key in ("seconds", "steps_per_second"))
    if seconds:
        facts["time"] = f"{number(sum(seconds) / 3600)} hours for {plural(len(seconds), 'run')}, one after the other"
    if spent := _shares([entry.get("spent") for entry in timings]):
        facts["spent on"] = spent
    if speeds:
        steps = "environment steps" if experiment.metric.of_agents else "steps"
        facts["speed"] = f"{number(min(speeds))} to {number(max(speeds))} {steps} per second and run"
    return facts


def sources(experiment: Experiment) -> list[str]:
    """Returns a warning for each program with runs of different sources."""
    sources_by_program: dict[str, list[Any]] = {}
    for identity, config in experiment.configs.items():
        source = RunDirectory(experiment.folders[identity]).read_timing().get("source")
        if source is not None:
            sources_by_program.setdefault(str(config.get("program", "")), []).append(source)
    return [
        f"{program or 'the program'} was changed between runs (sources {_count_values(made_by)}): what looks like a"
        " difference of formats may be one of programs"
        for program, made_by in sorted(sources_by_program.items())
        if len(set(map(_setting_text, made_by))) > 1
    ]


def numerics(experiment: Experiment, warnings: list[str]) -> pd.DataFrame:
    """Returns the effects of rounding in observed runs: the sums of their ``numerics.csv`` by series and role.

    Args:
        experiment: the runs.
        warnings: gets a line for each file that cannot be understood.

    Returns:
        ``format``, ``series`` (the format, and the condition if there are several), ``role`` and counts (see
        :mod:`.observer`); no rows if no run was observed.
    """
    tables = []
    for run in records(experiment.runs):
        path = RunDirectory(experiment.folders[run["id"]]).numerics
        if not path.exists():
            continue
        try:
            columns = {"format": run["format"], "series": experiment.conditions.series(run)}
            table = pd.read_csv(io.BytesIO(read_bytes(path)))[["role", *_COUNTS]].assign(**columns)
            tables.append(table.astype(dict.fromkeys(_COUNTS, "int64")))
        except (OSError, ValueError, KeyError) as error:
            warnings.append(f"{path}: is not the table of an observed run ({error}); left out")
    if not tables:
        return pd.DataFrame(columns=["format", "series", "role", *_COUNTS])
    sums = pd.concat(tables).groupby(["format", "series", "role"], as_index=False)[_COUNTS].sum()
    order = {name: i for i, name in enumerate([*sort_formats(experiment.formats), *ROLES])}
    sorted_: pd.DataFrame = sums.sort_values(
        ["format", "series", "role"],
        key=lambda column: column if column.name == "series" else column.map(order),
        ignore_index=True,
    )
    return sorted_


def settings(experiment: Experiment) -> tuple[dict[str, Any], dict[str, list[Any]]]:
    """Returns the settings that all runs share, and the values of the varying ones, in order of appearance.

    Returns:
        Keys and values as the configs have them; a key that only some runs have varies, and is None elsewhere.
    """
    configs = list(experiment.configs.values())
    shared: dict[str, Any] = {}
    varied: dict[str, list[Any]] = {}
    for key in sorted({key for config in configs for key in config}):
        values: list[Any] = []  # not a set: settings may be lists and mappings
        for config in configs:
            if config.get(key) not in values:
                values.append(config.get(key))
        if len(values) == 1:
            shared[key] = values[0]
        else:
            varied[key] = values
    return shared, varied


def recipe(experiment: Experiment) -> tuple[str, list[str]]:
    """Writes a file and the commands that repeat the experiment, whatever its own sweep file was.

    Returns:
        The text of a YAML file, and commands. If the runs are all combinations of what varies, the file is a sweep;
        else it holds the shared settings, and there is a command for each run; of a program, a case for each run.
    """
    shared, varied = settings(experiment)
    head: dict[str, Any] = {"name": experiment.name}
    if "program" in shared and not experiment.metric.of_agents:
        head |= {"program": shared.pop("program"), "metric": _metric_section(experiment.metric)}
    rows = [tuple(_setting_text(config.get(key)) for key in varied) for config in experiment.configs.values()]
    is_full_grid = prod(map(len, varied.values())) == len(rows)  # else there may be more combinations than fit anywhere
    # Compared as sorted lists: a run may have been left out while another one is there twice.
    combinations = [tuple(map(_setting_text, values)) for values in product(*varied.values())] if is_full_grid else []
    name = re.sub(r"[^A-Za-z0-9_-]", "-", experiment.name).lstrip("-") or "sweep"  # not to be read as an option
    if is_full_grid and sorted(combinations) == sorted(rows):
        content = {**head, "base": shared, "grid": varied or {"seed": [shared.pop("seed", 0)]}}
        return _yaml(content), [f"roundoff sweep {name}.yaml", f"roundoff report results/{name}"]
    if "program" in head:
        cases = [{key: config[key] for key in varied if key in config} for config in experiment.configs.values()]
        return _yaml({**head, "base": shared, "cases": cases}), [
            f"roundoff sweep {name}.yaml", f"roundoff report results/{name}",
        ]  # fmt: skip
    commands = [
        " ".join(
            [f"roundoff train --config {name}.yaml --out runs/{i}"]
            # Keys of roundoff are words; any other key could be read as an option.
            + [
                shlex.quote(f"{k}={_setting_text(config[k])}")
                for k in varied
                if config.get(k) is not None and k.isidentifier()
            ]
        )
        for i, config in enumerate(experiment.configs.values())
    ]
    return _yaml(shared), [*commands, "roundoff report runs"]


def _metric_section(metric: Metric) -> dict[str, Any]:
    """Writes a metric as the section of a sweep file."""
    content: dict[str, Any] = {"name": metric.name, "goal": metric.goal, "crash": metric.crash}
    content |= {"unit": metric.unit} if metric.unit else {}
    return content | ({"range": list(metric.range)} if metric.range else {})


def _setting_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True)


def _count_values(values: list[Any]) -> str:
    """Lists the distinct values; if there are several, with the number of runs of each."""
    simple = (str, int, float)
    counts = Counter(_setting_text(value) if isinstance(value, simple) else _NOT_RECORDED for value in values)
    if len(counts) < 2:
        return next(iter(counts), _NOT_RECORDED)
    return ", ".join(f"{name} ({plural(count, 'run')})" for name, count in sorted(counts.items()))


def _period(values: list[Any]) -> str:
    """Writes the span from the first to the last of some times."""
    times = []
    for value in values:
        with suppress(TypeError, ValueError, OverflowError):
            times.append(datetime.fromisoformat(value).astimezone(UTC))
    if not times:
        return _NOT_RECORDED
    ends = dict.fromkeys(f"{time:%Y-%m-%d %H:%M}" for time in (min(times), max(times)))
    missing = len(values) - len(times)
    return " to ".join(ends) + " UTC" + (f", {_NOT_RECORDED} for {plural(missing, 'run')}" if missing else "")


def _shares(spent: list[Any]) -> str:
    """Lists the share of the time of each activity, over all runs, the largest first."""
    seconds: dict[str, float] = {}
    for activities in spent:
        if isinstance(activities, dict):
            for name, value in activities.items():
                seconds[name] = seconds.get(name, 0.0) + sum(_showable([value]))
    total = sum(seconds.values())
    ordered = sorted(seconds.items(), key=lambda item: -item[1])
    return ", ".join(f"{name} {percent(value / total)}" for name, value in ordered if value > 0)


def _showable(values: Iterable[Any]) -> list[float]:
    """Returns the numbers among values that have a size that can be shown."""
    return [float(value) for value in values if isinstance(value, (int, float)) and 0 <= value < _LARGEST]


def _yaml(content: dict[str, Any]) -> str:
    text: str = yaml.safe_dump(content, sort_keys=False, default_flow_style=None, width=100, allow_unicode=True)
    return text
