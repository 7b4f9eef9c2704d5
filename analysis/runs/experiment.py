"""Run directories as tables: one row per run, and one row per evaluation."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from roundoff.files import parse_json, read_bytes
from roundoff.unplanned import unplanned_runs

from ...agents.config.fixes import FIXES
from ...agents.config.registry import implied
from ..errors import AnalysisError
from .conditions import Conditions
from .files import MALFORMED, planned_runs, read_json
from .outcome import COLUMNS, finite, read_outcome

if TYPE_CHECKING:
    from collections.abc import Iterator

_LARGEST = 2.0**63
_MOST_LOGGED = 200  # names: each is a column, which every record fills
_RUN_COLUMNS = ["id", *COLUMNS]


@dataclass(frozen=True)
class Experiment:
    """What was found in a folder.

    Attributes:
        name: of the sweep, or of the folder.
        description: of the sweep, in words; empty if it has none.
        runs: one row per run: ``id``; ``status`` (done, crashed, failed or waiting: see :func:`.outcome.read_outcome`);
            ``return`` (0 for a crash, NaN before the end); ``return_std`` over the episodes of the final evaluation;
            ``step``; ``crash_step``; ``reason`` (of a crash or a failure, else empty); every key of the config
            (``fixes`` as text).
        curves: one row per evaluation: ``id``, ``step`` (environment steps) and ``return``.
        exponents: of observed runs, one row per step, role and binary exponent k: ``id``, ``step``, ``role``,
            ``exponent`` and ``results``, how many results had a magnitude in [2^k, 2^(k+1)) since the step before.
        training: one row per training episode: ``id``, ``step``, and every number that a run has logged at its end, by
            name (at most 200 of them); NaN where it was not.
        config_keys: the columns of ``runs`` that are keys of the config.
        configs: of the runs, by id, as they were given.
        folders: of the runs, by id.
        warnings: what was damaged and left out.
    """

    name: str
    description: str
    runs: pd.DataFrame
    curves: pd.DataFrame
    exponents: pd.DataFrame
    training: pd.DataFrame
    config_keys: frozenset[str]
    configs: dict[str, dict[str, Any]]
    folders: dict[str, Path]
    warnings: tuple[str, ...]

    @cached_property
    def conditions(self) -> Conditions:
        """What sets the runs apart beside task, format and seed."""
        return Conditions(self.runs, self.config_keys - set(_RUN_COLUMNS))


def read_experiment(directory: str | Path) -> Experiment:
    """Reads the folder of a sweep, of a single run, or one that holds folders of runs.

    A torn last line of a metrics file (the run was killed while it wrote) is left out with a warning, as is
    everything else that cannot be understood.

    Args:
        directory: the folder.

    Raises:
        AnalysisError: there is no such folder, or no run in it.
    """
    path = Path(directory)
    warnings: list[str] = []
    name, description, folders, planned = _find_runs(path, warnings)
    rows: list[dict[str, Any]] = []
    points: dict[str, list[dict[str, Any]]] = {"eval": [], "numerics": [], "train": []}
    config_keys: set[str] = set()
    configs: dict[str, dict[str, Any]] = {}
    for identity, folder in sorted(folders.items()):
        config = planned.get(identity) or _read_config(folder / "config.json", warnings)
        if config is None:
            continue
        if not all(isinstance(config.get(key), str) for key in ("task", "format")):
            warnings.append(f"{folder / 'config.json'}: names no task and format; the run is left out")
        elif type(config.get("seed", 0)) is not int:
            warnings.append(f"{folder / 'config.json'}: its seed is no whole number; the run is left out")
        else:
            configs[identity] = config
    said = {key for config in configs.values() for key in config}
    for identity, config in configs.items():
        folder = folders[identity]
        unsaid = {key: value for key, value in implied(config).items() if key in said}  # by this run, not by others
        rows.append({"id": identity, **read_outcome(folder, warnings), **_flat(unsaid | config)})
        config_keys |= config.keys()
        for kind, point in _read_metrics(folder / "metrics.jsonl", warnings):
            points[kind].append({"id": identity, **point})
    if not rows:
        raise AnalysisError("\n".join([f"{path}: holds no run that can be read", *warnings]))
    _make_alike(rows, config_keys)
    logged = sorted({name for point in points["train"] for name in point} - {"id", "step"})
    if len(logged) > _MOST_LOGGED:
        warnings.append(f"{path}: its runs log {len(logged)} values; all but the first {_MOST_LOGGED} are left out")
    runs = pd.DataFrame(rows)
    return Experiment(
        name,
        description,
        runs[_RUN_COLUMNS + sorted(set(runs.columns) - set(_RUN_COLUMNS))],
        pd.DataFrame(points["eval"], columns=["id", "step", "return"]),
        pd.DataFrame(points["numerics"], columns=["id", "step", "role", "exponent", "results"]),
        pd.DataFrame(points["train"], columns=["id", "step", *logged[:_MOST_LOGGED]]),
        frozenset(config_keys),
        configs,
        folders,
        tuple(warnings),
    )


def _find_runs(path: Path, warnings: list[str]) -> tuple[str, str, dict[str, Path], dict[str, dict[str, Any]]]:
    """Name, description, the folders of runs by id, and the configs that a sweep planned."""
    if not path.is_dir():
        what = "is no folder" if path.exists() else "does not exist"
        raise AnalysisError(f"{path}: {what}; give the folder of a sweep, as `roundoff sweep` printed it")
    name, description = path.resolve().name, ""
    planned: dict[str, dict[str, Any]] = {}
    if (path / "sweep.json").exists():
        name, description, planned = _read_plan(path / "sweep.json", warnings)
        folders = {identity: path / "runs" / identity for identity in planned}
        warnings += unplanned_runs(path / "runs", planned)
    elif (path / "config.json").exists():
        folders = {name: path}
    else:
        folders = {folder.parent.name: folder.parent for folder in sorted(path.glob("*/config.json"))}
    if not folders:
        raise AnalysisError(
            f"{path}: holds no runs (there is no sweep.json, config.json or */config.json);"
            " give the folder of a sweep, as `roundoff sweep` printed it"
        )
    return name, description, folders, planned


def _read_plan(path: Path, warnings: list[str]) -> tuple[str, str, dict[str, dict[str, Any]]]:
    content = read_json(path, warnings)
    try:
        return str(content["name"]), str(content.get("description") or ""), planned_runs(content)
    except MALFORMED as error:
        raise AnalysisError(
            f"{path}: is not the list of a sweep's runs; the command of the sweep writes it anew"
        ) from error


def _read_config(path: Path, warnings: list[str]) -> dict[str, Any] | None:
    content = read_json(path, warnings)
    if isinstance(content, dict) and isinstance(content.get("config"), dict):
        config: dict[str, Any] = content["config"]
        return config
    warnings.append(f"{path}: is not the config of a run; left out")
    return None


def _flat(config: dict[str, Any]) -> dict[str, Any]:
    fixes = config.get("fixes")
    return {key: _text(value) for key, value in config.items()} | (
        {"fixes": _fixes(fixes)} if isinstance(fixes, list) else {}
    )


def _text(value: Any) -> Any:
    """Lists and mappings as text, so that runs can be grouped by them."""
    if isinstance(value, dict):
        if set(value) == {"preset"}:
            return value["preset"]
        return json.dumps(value, sort_keys=True).replace('"', "") if value else "none"
    if isinstance(value, (int, float)) and not abs(value) < _LARGEST:
        return str(value)  # NaN too: what is no number that counts
    return " ".join(map(str, value)) or "none" if isinstance(value, list) else value


def _make_alike(rows: list[dict[str, Any]], keys: set[str]) -> None:
    """Makes the values of each key truth values, or numbers, or else text, so that runs can be ordered by them."""
    for key in keys:
        values = [row[key] for row in rows if row.get(key) is not None]
        kinds = {bool if isinstance(value, bool) else str if isinstance(value, str) else float for value in values}
        if len(kinds) > 1:
            for row in rows:
                if row.get(key) is not None:
                    row[key] = str(row[key])


def _fixes(names: list[Any]) -> str:
    """A short text for a selection of fixes."""
    names = [str(name) for name in names]
    missing = set(FIXES) - set(names)
    if len(names) == len(FIXES) - len(missing) and len(missing) < 2:
        return f"all but {missing.pop()}" if missing else "all"
    return "+".join(names) or "none"


def _read_metrics(path: Path, warnings: list[str]) -> list[tuple[str, dict[str, Any]]]:
    """The points of the learning curve, of the exponent histograms and of training, each with its kind."""
    try:
        lines = read_bytes(path).split(b"\n")
    except FileNotFoundError:
        return []
    except OSError as error:
        warnings.append(f"{path}: {error.strerror}; left out")
        return []
    try:  # all at once, which is several times as fast as one by one
        whole = [line for line in lines if line]
        records = parse_json(b"[%b]" % b",".join(whole))
        if len(records) == len(whole):
            return [point for record in records for point in _points(record)]
    except MALFORMED:
        pass
    return list(_points_of_undamaged(lines, path, warnings))


def _points_of_undamaged(lines: list[bytes], path: Path, warnings: list[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    for number, line in enumerate(lines, 1):
        try:
            yield from _points(parse_json(line)) if line else []
        except MALFORMED:
            what = "is torn (the run was killed as it wrote)" if number == len(lines) else "is damaged"
            warnings.append(f"{path}:{number}: this line {what}; left out")


def _points(record: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    if record["kind"] == "eval":
        return [("eval", {"step": int(record["step"]), "return": finite(record["return_mean"])})]
    if record["kind"] == "numerics":
        return [("numerics", point) for point in _exponents(record)]
    if record["kind"] == "train":
        return [("train", {"step": int(record["step"]), **_numbers(record)})]
    return []


def _numbers(record: dict[str, Any]) -> dict[str, float]:
    """What a record holds beside its kind and step; NaN for null, which stands for what is not finite."""
    return {
        name: float("nan") if value is None else float(value)
        for name, value in record.items()
        if name not in ("kind", "step", "id") and (value is None or isinstance(value, (int, float)))
    }


def _exponents(record: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        {"step": int(record["step"]), "role": role, "exponent": int(exponent), "results": int(results)}
        for role, counts in record.items()
        if role not in ("kind", "step")
        for exponent, results in counts["exponents"].items()
    ]
