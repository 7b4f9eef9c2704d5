"""Turns the settings of runs into columns of a table."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ...agents.config import FIXES

LARGEST = 2**63
"""Upper limit of integers in tables."""
_MISSING = "default"
# Names of columns that tables have already; a key of a user's function with such a name gets a trailing `_`.
_TABLE_COLUMNS = {
    "additions", "bits", "ci_high", "ci_low", "condition", "crash_step", "crashed", "draw", "drop", "exponent_bits",
    "first_non_finite", "id", "iqm", "kind", "line", "max", "mean", "metric", "min", "n", "panel", "reason", "return",
    "return_std", "run", "runs", "score", "seconds", "series", "significand_bits", "status", "std", "step", "task",
    "untrained", "updates",
}  # fmt: skip


def is_program(config: dict[str, Any]) -> bool:
    """Whether a run is of a user program, and not of an agent."""
    return isinstance(config.get("program"), str)


def tasks_of(configs: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """Returns the task of each run, by id: an agent's task; a program's function, with its file if there are several.

    Args:
        configs: the configs of the runs, by id.
    """
    programs = {str(config["program"]) for config in configs.values() if is_program(config)}
    short = {name: name.rpartition(":")[2] if len(programs) == 1 else name for name in programs}
    return {
        identity: short[config["program"]] if is_program(config) else config.get("task")
        for identity, config in configs.items()
    }


def as_columns(configs: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Returns the settings of programs' runs by id and column, with the same columns in all runs.

    A key that only some runs have is ``default`` in the others, which use the function's own default, or roundoff's.
    """
    keys = sorted({key for config in configs.values() for key in config if key not in ("program", "seed")})
    rows = {}
    for identity, config in configs.items():
        values = {key: "none" if value is None else value for key, value in config.items()}
        rows[identity] = {f"{key}_" if key in _TABLE_COLUMNS else key: values.get(key, _MISSING) for key in keys}
        rows[identity] |= {key: config[key] for key in ("program", "seed") if key in config}
    return rows


def flatten(config: dict[str, Any]) -> dict[str, Any]:
    """Flattens a config: its values become numbers, truth values or text; entries under ``actors`` become keys."""
    fixes, actors = (None, None) if is_program(config) else (config.get("fixes"), config.get("actors"))
    if isinstance(actors, dict):
        others = {key: value for key, value in config.items() if key != "actors"}
        config = others | {f"actors.{key}": value for key, value in actors.items()}
    return {key: _groupable(value) for key, value in config.items()} | (
        {"fixes": _fixes(fixes)} if isinstance(fixes, list) else {}
    )


def _groupable(value: Any) -> Any:
    """Writes lists and mappings as text, so that runs can be grouped by them."""
    if value is None or value is True or value is False or type(value) is str:  # most values
        return value
    if isinstance(value, dict):
        if set(value) == {"preset"}:
            return value["preset"]
        return json.dumps(value, sort_keys=True).replace('"', "") if value else "none"
    if isinstance(value, (int, float)) and not abs(value) < LARGEST:
        return str(value)  # also NaN: not usable as numbers
    return " ".join(map(str, value)) or "none" if isinstance(value, list) else value


def unify_types(rows: list[dict[str, Any]], keys: set[str]) -> None:
    """Makes the values of each key truth values, or numbers, or else text, so that runs can be ordered by them."""
    for key in keys:
        values = [row[key] for row in rows if row.get(key) is not None]
        kinds = {bool if isinstance(value, bool) else str if isinstance(value, str) else float for value in values}
        if len(kinds) > 1:
            for row in rows:
                if row.get(key) is not None:
                    row[key] = str(row[key])


def _fixes(names: list[Any]) -> str:
    """Writes a selection of fixes as a short text: ``all`` means the six, as in a sweep's file."""
    names = [str(name) for name in names]
    missing = set(FIXES) - set(names)
    if not missing:
        return "+".join(["all", *(name for name in names if name not in FIXES)])
    if len(missing) == 1 and len(names) == len(FIXES) - 1:
        return f"all but {missing.pop()}"
    return "+".join(names) or "none"
