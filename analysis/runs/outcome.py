"""Reads the state of a run, and its outcome, from its folder."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from roundoff.runs.folder import Outcome, RunDirectory
from roundoff.runs.result import MALFORMED, ProgramResult, Result

from .settings import LARGEST

COLUMNS = ("status", "return", "return_std", "step", "crash_step", "reason", "updates", "untrained")
"""Columns that :func:`read_outcome` gives for a run."""


def read_outcome(folder: Path, warnings: list[str]) -> dict[str, Any]:
    """Reads the outcome of a run.

    Args:
        folder: the folder of the run.
        warnings: gets a line for each file that is damaged.

    Returns:
        The :data:`COLUMNS`; and of a program's run ``metric`` (:class:`.Metric`; None of others) and ``values``, the
        numbers that it returned, by name. ``status`` has the names of ``roundoff status``: ``done`` and ``crashed``,
        which are results; ``failed``, which the next sweep tries again; ``waiting``, which is every other run: who is
        at work on one is not looked up, so none is ``running`` here. ``return`` is the score: 0 for the crash of an
        agent, the metric's ``crash`` for a program; NaN for a missing score. ``updates`` is the number of updates made,
        and ``untrained`` the return before the first one; NaN where that is not known.
    """
    outcome = RunDirectory(folder).outcome()
    complaint = outcome.complaint
    if outcome.result:
        try:
            program = outcome.result if isinstance(outcome.result, ProgramResult) else None
            agent = outcome.result if isinstance(outcome.result, Result) else None
            crash = outcome.result.crash
            return {
                "status": outcome.result.status,
                "return": math.nan if outcome.result.score is None else outcome.result.score,
                "return_std": agent.return_std if agent else 0.0,
                "step": whole(outcome.result.step),
                "crash_step": float(whole(crash.step)) if crash else math.nan,
                "reason": crash.reason if crash else "",
                "updates": _if_known(agent and agent.updates),
                "untrained": _if_known(agent and agent.untrained),
                "metric": program and program.metric,
                "values": program.values if program else {},
            }
        except MALFORMED:  # numbers that tables do not hold
            outcome = Outcome("failed", "result.json is damaged; delete it to repeat the run")
            complaint = f"{RunDirectory(folder).result}: is not the result of a run"
    if complaint:
        warnings.append(f"{complaint}; left out")
    missing = {"return": math.nan, "return_std": math.nan, "step": 0, "crash_step": math.nan}
    unknown = {"updates": math.nan, "untrained": math.nan}
    return {"status": outcome.state, **missing, "reason": outcome.reason, **unknown, "metric": None, "values": {}}


def finite(value: Any) -> float:
    """Converts a number to float; raises ValueError or TypeError for NaN, infinity and anything else."""
    if not math.isfinite(value):
        raise ValueError
    return float(value)


def whole(value: Any) -> int:
    """Converts to an integer that tables can hold; raises ValueError, TypeError or OverflowError for anything else."""
    number = int(value)
    if not -LARGEST < number < LARGEST:
        raise ValueError
    return number


def _if_known(value: float | None) -> float:
    return math.nan if value is None else float(value)
