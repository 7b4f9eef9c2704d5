"""The state of a run and how it ended, read from its folder."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from .files import MALFORMED, read_json
from .metric import read_metric
from .settings import LARGEST

if TYPE_CHECKING:
    from pathlib import Path

COLUMNS = ("status", "return", "return_std", "step", "crash_step", "reason", "updates", "untrained")
"""What :func:`read_outcome` tells of a run."""


def read_outcome(folder: Path, warnings: list[str]) -> dict[str, Any]:
    """Tells what has become of a run.

    Args:
        folder: of the run.
        warnings: gets a line for each file that is damaged.

    Returns:
        The :data:`COLUMNS`; and of a program's run ``metric`` (:class:`.Metric`; None of others) and ``values``, the
        numbers that it returned, by name. ``status`` has the names of ``roundoff status``: ``done`` and ``crashed``,
        which are results; ``failed``, which the next sweep tries again; ``waiting``, which is every other run: who is
        at work on one is not looked up, so none is ``running`` here. ``return`` is the score: 0 for the crash of an
        agent, what its metric says for that of a program; NaN where there is none. ``updates`` is how many were made,
        and ``untrained`` the return before the first one; NaN where that is not known.
    """
    path = folder / "result.json"
    result = read_json(path, warnings)
    if result is not None:
        try:
            return _ended(result)
        except MALFORMED:
            warnings.append(f"{path}: is not the result of a run; left out")
    if path.exists():
        return _open("failed", "result.json is damaged; delete it to repeat the run")
    failure = read_json(folder / "failed.json", warnings)
    if failure is None:
        return _open("waiting")
    reason = failure.get("reason") if isinstance(failure, dict) else None
    return _open("failed", str(reason or "unknown"))


def finite(value: Any) -> float:
    """A number as it is; raises ValueError or TypeError for NaN, infinity and anything else."""
    if not math.isfinite(value):
        raise ValueError
    return float(value)


def _ended(result: dict[str, Any]) -> dict[str, Any]:
    crash, score, values = result["crash"], result["return"], result.get("values") or {}
    unscored = score is None and result["status"] == "crashed"
    return {
        "status": {"done": "done", "crashed": "crashed"}[result["status"]],
        "return": math.nan if unscored else finite(score),
        "return_std": float(result["return_std"]),
        "step": whole(result["step"]),
        "crash_step": float(whole(crash["step"])) if crash else math.nan,
        "reason": str(crash.get("reason", "unknown")) if crash else "",
        "updates": _if_known(result.get("updates")),
        "untrained": _if_known(result.get("untrained")),
        "metric": read_metric(result["metric"]) if result.get("metric") is not None else None,
        "values": {str(name): float(value) for name, value in values.items() if isinstance(value, (int, float))},
    }


def whole(value: Any) -> int:
    """A whole number that tables can hold; raises ValueError, TypeError or OverflowError for anything else."""
    number = int(value)
    if not -LARGEST < number < LARGEST:
        raise ValueError
    return number


def _if_known(value: Any) -> float:
    return math.nan if value is None else finite(value)


def _open(status: str, reason: str = "") -> dict[str, Any]:
    nothing = {"return": math.nan, "return_std": math.nan, "step": 0, "crash_step": math.nan}
    unknown = {"updates": math.nan, "untrained": math.nan}
    return {"status": status, **nothing, "reason": reason, **unknown, "metric": None, "values": {}}
