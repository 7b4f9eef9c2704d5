"""What a step costs in the arithmetic of each run, as ``roundoff cost`` has left it in the folder of a sweep."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .files import read_json

if TYPE_CHECKING:
    import pandas as pd

    from .experiment import Experiment

COLUMNS = ("macs", "bops", "bytes_moved", "bytes_kept", "bytes_peak")
"""The costs of a step: multiply-accumulates, bit operations, bytes moved, and bytes of memory."""


def read_costs(directory: str | Path, warnings: list[str]) -> dict[str, dict[str, Any]]:
    """The costs of a step by run, with these columns and the models that were asked; empty where none were counted.

    Args:
        directory: the folder of a sweep.
        warnings: takes what could not be understood.
    """
    path = Path(directory) / "costs.json"
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
            cost["uncounted"] = [str(name) for name in entry["uncounted"]]
            cost["models"] = {str(name): dict(model) for name, model in entry["models"].items()}
            costs |= {str(run): cost for run in entry["runs"]}
    except (KeyError, TypeError, ValueError, AttributeError):
        warnings.append(f"{path}: is not what `roundoff cost` writes; it is left out, and the command writes it anew")
        return {}
    return costs


def with_costs(summary: pd.DataFrame, experiment: Experiment, costs: dict[str, dict[str, Any]]) -> pd.DataFrame:
    """A summary with the columns of :data:`COLUMNS`, of a run of each row; as it is where nothing was counted."""
    if not costs or summary.empty:
        return summary
    found = [first_run(row, experiment, costs) for row in summary.to_dict("records")]
    return summary.assign(
        **{name: [math.nan if run is None else costs[run][name] for run in found] for name in COLUMNS}
    )


def first_run(row: dict[Any, Any], experiment: Experiment, costs: dict[str, dict[str, Any]]) -> str | None:
    """A run of a row of the summary of which the cost was counted; None if there is none."""
    runs = experiment.runs
    here = runs["id"].isin(list(costs)) & (runs["task"] == row["task"]) & (runs["format"] == row["format"])
    for key in experiment.conditions.keys:
        value = row[key]
        here &= runs[key].isna() if _is_nothing(value) else runs[key] == value
    found = runs.loc[here, "id"]
    return None if found.empty else str(found.iloc[0])


def _is_nothing(value: Any) -> bool:
    return value is None or (isinstance(value, float) and math.isnan(value))
