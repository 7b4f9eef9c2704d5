"""Read the cost of a step in the arithmetic of each run, as ``roundoff cost`` stored it in a sweep's folder."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from .files import read_json

COSTS = "costs.json"
COLUMNS = ("macs", "bops", "bytes_moved", "bytes_kept", "bytes_peak")
"""The costs of a step: multiply-accumulates, bit operations, bytes moved, and bytes of memory."""


def read_costs(directory: str | Path, warnings: list[str]) -> dict[str, dict[str, Any]]:
    """The costs of a step by run, with these columns and the models that were asked; empty where none were counted.

    ``bytes_sent`` is not a number where nothing is sent.

    Args:
        directory: the folder of a sweep.
        warnings: takes what could not be understood.
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
