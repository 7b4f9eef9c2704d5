"""Reads the files of runs and sweeps, which may be damaged or come from somebody else, and writes results."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from roundoff.errors import FileError
from roundoff.files import atomic_writer, is_name, make_directory, try_json

from ..errors import AnalysisError


def read_json(path: Path, warnings: list[str]) -> Any:
    """Reads the JSON in a file; returns None if it is missing, or, with a warning, if it cannot be read."""
    content, complaint = try_json(path)
    if complaint:
        warnings.append(f"{path}: {complaint}; left out")
    return content


def planned_runs(plan: Any) -> dict[str, dict[str, Any]]:
    """Reads the configs of runs from the content of ``sweep.json``, by id, which is the name of a run's folder.

    Raises:
        ValueError, KeyError, TypeError, AttributeError: it is not the plan of a sweep.
    """
    planned = {str(run["id"]): dict(run["config"]) for run in plan["runs"]}
    for identity in planned:
        if not is_name(identity):
            raise ValueError(f"{identity!r} is not the name of a folder")
    return planned


def replace_file(path: Path, content: bytes) -> Path:
    """Replaces a file as a whole, so that a killed command does not leave an incomplete one; returns its path.

    Raises:
        AnalysisError: it cannot be written.
    """
    return write_file(path, lambda file: file.write(content))


def make_folder(path: Path) -> None:
    """Makes a folder that is missing.

    Raises:
        AnalysisError: it cannot be made, or not be written to.
    """
    try:
        make_directory(path)
    except FileError as error:
        raise AnalysisError(str(error)) from error


def write_file(path: Path, write: Callable[[IO[bytes]], object]) -> Path:
    """Replaces a file as :func:`replace_file` does, with the output of ``write``."""
    try:
        with atomic_writer(path) as file:
            write(file)
    except FileError as error:
        raise AnalysisError(str(error)) from error
    return path


COSTS = "costs.json"
COST_COLUMNS = ("macs", "bops", "bytes_moved", "bytes_kept", "bytes_peak")
"""The costs of a step: multiply-accumulates, bit operations, bytes moved, and bytes of memory."""


def read_costs(directory: str | Path, warnings: list[str]) -> dict[str, dict[str, Any]]:
    """Reads the costs of a step by run: these columns, and the results of cost models; empty if none were counted.

    ``bytes_sent`` is NaN if nothing is sent.

    Args:
        directory: the folder of a sweep.
        warnings: gets a line if the file cannot be understood.
    """
    path = Path(directory) / COSTS
    if not path.exists():
        return {}
    content = read_json(path, warnings)
    costs: dict[str, dict[str, Any]] = {}
    try:
        for entry in content["costs"]:
            if "reason" in entry:
                continue
            cost: dict[str, Any] = {name: float(entry[name]) for name in ("macs", "bops", "bytes_kept", "bytes_peak")}
            cost["bytes_moved"] = float(entry["bytes_read"]) + float(entry["bytes_written"])
            cost["bytes_sent"] = math.fsum(map(float, entry["sent"].values())) if entry.get("sent") else math.nan
            cost["uncounted"] = [str(name) for name in entry["uncounted"]]
            cost["models"] = {str(name): dict(model) for name, model in entry["models"].items()}
            costs |= {str(run): cost for run in entry["runs"]}
    except (KeyError, TypeError, ValueError, AttributeError):
        warnings.append(f"{path}: is not what `roundoff cost` writes; left out")
        return {}
    return costs
