"""Where runs come from: versions, machine, time, and how to make them again."""

from __future__ import annotations

import io
import json
import re
import shlex
from collections import Counter
from itertools import product
from typing import TYPE_CHECKING, Any

import pandas as pd
import yaml

from roundoff.files import parse_json, read_bytes

from ..figures.axes import from_wide_to_narrow
from ..figures.magnitudes import ROLES
from .markup import number, plural

if TYPE_CHECKING:
    from pathlib import Path

    from ..runs.experiment import Experiment

_COUNTS = ["results", "overflow", "underflow", "subnormal", "infinite", "nan", "inexact", "additions", "absorbed"]


def environment(experiment: Experiment) -> dict[str, str]:
    """What the runs' ``config.json`` and ``timing.json`` say about versions, machine and time, by name, in words."""
    facts: dict[str, list[Any]] = {"version": []}
    for identity in experiment.runs["id"]:
        folder = experiment.folders[identity]
        about = {key: value for key, value in _read(folder / "config.json").items() if key != "config"}
        for key, value in (about | _read(folder / "timing.json")).items():
            facts.setdefault(key, []).append(value)
    for key in ("device", "threads", "native"):
        if key in experiment.runs:
            facts[key] = list(experiment.runs[key])
    seconds, speeds = (
        [value for value in facts.pop(key, []) if isinstance(value, (int, float))]
        for key in ("seconds", "steps_per_second")
    )
    found = {key: _counted(Counter(map(_text, values))) for key, values in facts.items() if values}
    if "version" in found:
        found = {"roundoff": found.pop("version")} | found
    if seconds:
        found["time"] = f"{number(sum(seconds) / 3600)} hours for {plural(len(seconds), 'run')}, one after the other"
    if speeds:
        found["speed"] = f"{number(min(speeds))} to {number(max(speeds))} environment steps per second and run"
    return found


def numerics(experiment: Experiment, warnings: list[str]) -> pd.DataFrame:
    """What rounding did in observed runs: the sums of their ``numerics.csv`` by format and role.

    Args:
        experiment: the runs.
        warnings: gets a line for each file that cannot be understood.

    Returns:
        ``format``, ``role`` and counts (see :mod:`.observer`); no rows if no run was observed.
    """
    tables = []
    for identity, name in zip(experiment.runs["id"], experiment.runs["format"], strict=True):
        path = experiment.folders[identity] / "numerics.csv"
        if not path.exists():
            continue
        try:
            table = pd.read_csv(io.BytesIO(read_bytes(path)))[["role", *_COUNTS]].assign(format=name)
            tables.append(table.astype(dict.fromkeys(_COUNTS, "int64")))
        except (OSError, ValueError, KeyError) as error:
            warnings.append(f"{path}: is not the table of an observed run ({error}); left out")
    if not tables:
        return pd.DataFrame(columns=["format", "role", *_COUNTS])
    sums = pd.concat(tables).groupby(["format", "role"], as_index=False)[_COUNTS].sum()
    order = {name: i for i, name in enumerate([*sorted(set(sums["format"]), key=from_wide_to_narrow), *ROLES])}
    ordered: pd.DataFrame = sums.sort_values(
        ["format", "role"], key=lambda column: column.map(order), ignore_index=True
    )
    return ordered


def settings(experiment: Experiment) -> tuple[dict[str, Any], dict[str, list[Any]]]:
    """The settings that all runs share, and the values of those that vary, in order of appearance.

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
        else it holds the shared settings, and there is a command for each run.
    """
    shared, varied = settings(experiment)
    combinations = [tuple(map(_text, values)) for values in product(*varied.values())]
    present = [tuple(_text(config.get(key)) for key in varied) for config in experiment.configs.values()]
    name = re.sub(r"[^A-Za-z0-9_-]", "-", experiment.name).lstrip("-") or "sweep"  # a file's, and no option
    if sorted(combinations) == sorted(present):
        content = {"name": experiment.name, "base": shared, "grid": varied or {"seed": [shared.pop("seed", 0)]}}
        return _yaml(content), [f"roundoff sweep {name}.yaml", f"roundoff report results/{name}"]
    commands = [
        " ".join(
            [f"roundoff train --config {name}.yaml --out runs/{i}"]
            # A key of ours is a word; any other could be read as an option.
            + [shlex.quote(f"{k}={_text(config[k])}") for k in varied if config.get(k) is not None and k.isidentifier()]
        )
        for i, config in enumerate(experiment.configs.values())
    ]
    return _yaml(shared), [*commands, "roundoff report runs"]


def _read(path: Path) -> dict[str, Any]:
    try:
        content = parse_json(read_bytes(path))
    except (OSError, ValueError):  # said when the runs were read, or of no consequence
        return {}
    return content if isinstance(content, dict) else {}


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True)


def _counted(counts: Counter[str]) -> str:
    if len(counts) == 1:
        return next(iter(counts))
    return ", ".join(f"{name} ({count} runs)" for name, count in sorted(counts.items()))


def _yaml(content: dict[str, Any]) -> str:
    text: str = yaml.safe_dump(content, sort_keys=False, default_flow_style=None, width=100, allow_unicode=True)
    return text
