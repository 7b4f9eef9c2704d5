"""The origin of runs: versions, machine, time, and how to make them again."""

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

from ..figures.drawing.axes import ordered
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
    """Says with what, where, when and how fast runs were made, by name, in words.

    The version of roundoff is in a run's ``config.json``, the rest in ``timing.json``, which a run writes when it
    ends. What a run of an earlier version does not say is not recorded. Programs have their names, hashes of their
    sources, and the commits that they stood at.
    """
    runs = [RunDirectory(experiment.folders[identity]) for identity in experiment.runs["id"]]
    begun = [try_json(run.config)[0] for run in runs if run.config.exists()]
    ended = [run.read_timing() for run in runs if run.timing.exists()]
    found = {}
    if "program" in experiment.runs:
        found = {"program": _counted(list(experiment.runs["program"]))}
        found |= {name: _counted([about.get(key) for about in ended]) for name, key in _OF_PROGRAMS.items()}
    found["roundoff"] = _counted([about.get("version") if isinstance(about, dict) else None for about in begun])
    found |= {key: _counted([about.get(key) for about in ended]) for key in _MADE_WITH}
    found["ended"] = _period([about.get("ended") for about in ended])
    if not experiment.metric.of_agents:  # which say it only if it is another than the processor
        found["device"] = _counted([str(config.get("device", "cpu")) for config in experiment.configs.values()])
    found |= {
        key: _counted(list(experiment.runs[key])) for key in _SETTINGS if key in experiment.runs and key not in found
    }
    seconds, speeds = (_numbers(about.get(key) for about in ended) for key in ("seconds", "steps_per_second"))
    if seconds:
        found["time"] = f"{number(sum(seconds) / 3600)} hours for {plural(len(seconds), 'run')}, one after the other"
    if spent := _shares([about.get("spent") for about in ended]):
        found["spent on"] = spent
    if speeds:
        steps = "environment steps" if experiment.metric.of_agents else "steps"
        found["speed"] = f"{number(min(speeds))} to {number(max(speeds))} {steps} per second and run"
    return found


def sources(experiment: Experiment) -> list[str]:
    """A warning for each program with runs made by different sources."""
    found: dict[str, list[Any]] = {}
    for identity, config in experiment.configs.items():
        source = RunDirectory(experiment.folders[identity]).read_timing().get("source")
        if source is not None:
            found.setdefault(str(config.get("program", "")), []).append(source)
    return [
        f"{program or 'the program'} was changed between runs (sources {_counted(made_by)}): what looks like a"
        " difference of formats may be one of programs"
        for program, made_by in sorted(found.items())
        if len(set(map(_text, made_by))) > 1
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
            about = {"format": run["format"], "series": experiment.conditions.series(run)}
            table = pd.read_csv(io.BytesIO(read_bytes(path)))[["role", *_COUNTS]].assign(**about)
            tables.append(table.astype(dict.fromkeys(_COUNTS, "int64")))
        except (OSError, ValueError, KeyError) as error:
            warnings.append(f"{path}: is not the table of an observed run ({error}); left out")
    if not tables:
        return pd.DataFrame(columns=["format", "series", "role", *_COUNTS])
    sums = pd.concat(tables).groupby(["format", "series", "role"], as_index=False)[_COUNTS].sum()
    order = {name: i for i, name in enumerate([*ordered(experiment.formats), *ROLES])}
    sorted_: pd.DataFrame = sums.sort_values(
        ["format", "series", "role"],
        key=lambda column: column if column.name == "series" else column.map(order),
        ignore_index=True,
    )
    return sorted_


def settings(experiment: Experiment) -> tuple[dict[str, Any], dict[str, list[Any]]]:
    """The settings that all runs share, and the values of the varying ones, in order of appearance.

    Returns:
        Keys and values as the configs have them; a key that only some runs have varies, and is None elsewhere.
    """
    configs = list(experiment.configs.values())
    shared: dict[str, Any] = {}
    varied: dict[str, list[Any]] = {}
    for key in sorted({key for config in configs for key in config}):
        values: list[Any] = []
        for config in configs:
            if config.get(key) not in values:
                values.append(config.get(key))
        if len(values) == 1:
            shared[key] = values[0]
        else:
            varied[key] = values
    return shared, varied


def recipe(experiment: Experiment) -> tuple[str, list[str]]:
    """A file and the commands that run the experiment again, whatever its own sweep file was.

    Returns:
        The text of a YAML file, and commands. If the runs are all combinations of what varies, the file is a sweep;
        else it holds the shared settings, and there is a command for each run; of a program, a case for each run.
    """
    shared, varied = settings(experiment)
    head: dict[str, Any] = {"name": experiment.name}
    if "program" in shared and not experiment.metric.of_agents:
        head |= {"program": shared.pop("program"), "metric": _described(experiment.metric)}
    present = [tuple(_text(config.get(key)) for key in varied) for config in experiment.configs.values()]
    all_there = prod(map(len, varied.values())) == len(present)  # else there may be more combinations than fit anywhere
    combinations = [tuple(map(_text, values)) for values in product(*varied.values())] if all_there else []
    name = re.sub(r"[^A-Za-z0-9_-]", "-", experiment.name).lstrip("-") or "sweep"  # a file's, and no option
    if all_there and sorted(combinations) == sorted(present):
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
            # A key of ours is a word; any other could be read as an option.
            + [shlex.quote(f"{k}={_text(config[k])}") for k in varied if config.get(k) is not None and k.isidentifier()]
        )
        for i, config in enumerate(experiment.configs.values())
    ]
    return _yaml(shared), [*commands, "roundoff report runs"]


def _described(metric: Metric) -> dict[str, Any]:
    """A metric as a sweep file says it."""
    content: dict[str, Any] = {"name": metric.name, "goal": metric.goal, "crash": metric.crash}
    content |= {"unit": metric.unit} if metric.unit else {}
    return content | ({"range": list(metric.range)} if metric.range else {})


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True)


def _counted(values: list[Any]) -> str:
    """Every value, with the number of runs that have it if there are several."""
    simple = (str, int, float)
    counts = Counter(_text(value) if isinstance(value, simple) else _NOT_RECORDED for value in values)
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
    """Shares of the time that went into each activity, over all runs, the largest first."""
    seconds: dict[str, float] = {}
    for activities in spent:
        if isinstance(activities, dict):
            for name, value in activities.items():
                seconds[name] = seconds.get(name, 0.0) + sum(_numbers([value]))
    total = sum(seconds.values())
    ordered = sorted(seconds.items(), key=lambda item: -item[1])
    return ", ".join(f"{name} {percent(value / total)}" for name, value in ordered if value > 0)


def _numbers(values: Iterable[Any]) -> list[float]:
    """Returns the numbers among values that have a size that can be shown."""
    return [float(value) for value in values if isinstance(value, (int, float)) and 0 <= value < _LARGEST]


def _yaml(content: dict[str, Any]) -> str:
    text: str = yaml.safe_dump(content, sort_keys=False, default_flow_style=None, width=100, allow_unicode=True)
    return text
