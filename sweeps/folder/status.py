"""Reads the state of each run of a sweep from its folder, without asking any process."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, get_args

from roundoff.files import is_name
from roundoff.printable import printable
from roundoff.runs.folder import RunDirectory, unplanned_runs
from roundoff.runs.log import last_records

from ...agents.config import leading
from ..errors import SweepError
from .directory import State, SweepDirectory
from .leases import STALE, Leases, is_alive

STATES: tuple[State, ...] = get_args(State)

_LONGEST = 100  # characters of a metric's name
_LARGEST = 1e300  # a larger number, NaN or infinity is not shown


class RunStatus(NamedTuple):
    """The state and the progress of a run.

    Attributes:
        run: the id of the run.
        state: see :data:`State`.
        steps: environment steps of the whole run.
        progress: the latest values of ``step``, ``return``, ``rate`` and ``loss_scale``, as far as known.
        reason: the reason of a crash or a failure; otherwise the worker of the run, or the reason for waiting.
        metric: the name of the metric in ``return``; None for the return of an agent.
    """

    run: str
    state: State
    steps: int
    progress: dict[str, Any]
    reason: str
    metric: str | None = None


@dataclass(frozen=True)
class SweepStatus:
    """The runs of a sweep in the order of its plan, and warnings about unreadable files.

    A search is ``searching`` until it has written its answer, since it may need more runs.
    """

    name: str
    runs: tuple[RunStatus, ...]
    warnings: tuple[str, ...]
    searching: bool = False

    def count(self, state: State) -> int:
        """Returns the number of runs in a state."""
        return sum(run.state == state for run in self.runs)


def read_status(directory: str | Path) -> SweepStatus:
    """Reads the status of a sweep from its folder, while others may be working there.

    Raises:
        SweepError: it is not a sweep's folder.
        FileError: its plan cannot be read.
    """
    store = SweepDirectory(directory)
    if not store.marker.exists():
        raise SweepError(
            f"{directory}: is not the folder of a sweep (there is no {store.marker.name}); give one that"
            " `roundoff sweep` has made"
        )
    content = store.read()
    entry = content.get("metric")
    name = entry.get("name") if isinstance(entry, dict) else None  # None for agents
    metric = printable(name)[:_LONGEST] if isinstance(name, str) else None
    warnings: list[str] = []
    leases = dict(Leases(store.leases).all())
    runs: list[RunStatus] = []
    for entry in content["runs"]:
        identity, files = entry["id"], RunDirectory(store.path / "runs" / entry["id"])
        outcome = files.outcome()
        if outcome.complaint:
            warnings.append(outcome.complaint)
        # The outcome in the folder comes first; without one, a living holder of the lease makes the run "running"
        lease = leases.get(identity)
        holder_lives = None if lease is None or lease.holder is None else is_alive(lease.holder)
        state: State = outcome.state
        reason, progress = outcome.reason, {}
        if outcome.result:
            progress = {"step": outcome.result.step, "return": outcome.result.score}
        elif files.result.exists():
            pass  # the result is damaged, whoever holds a lease
        elif lease and (holder_lives or (holder_lives is None and lease.silence < STALE)):
            state = "running"
            progress = lease.progress
            reason = f"on {lease.holder.host}, process {lease.holder.pid}" if lease.holder else "by somebody unknown"
        elif state == "waiting" and lease and lease.holder and holder_lives is None:
            reason = f"no heartbeat from {lease.holder.host} for {lease.silence:.0f} s"
        # Progress from the log, with values of the lease on top
        if state in ("running", "waiting"):
            columns = {"return": "return_mean", "loss_scale": f"{leading(entry['config'])}_loss_scale"}
            progress = last_records(files.metrics, columns) | progress
        progress = {key: value for key, value in progress.items() if _is_number(value)}
        steps = entry["config"].get("steps", 0)
        runs.append(
            RunStatus(identity, state, steps if _is_number(steps) and metric is None else 0, progress, reason, metric)
        )
    # Folders that no plan lists, and a search without its answer
    warnings += unplanned_runs(store.path / "runs", {run.run for run in runs})
    answer = content.get("answered_in")
    searching = isinstance(answer, str) and is_name(answer) and not (store.path / answer).exists()
    if searching and all(run.state in ("done", "crashed") for run in runs):
        warnings.append("the search has not finished: it is still running, or the same command continues it")
    return SweepStatus(content["name"], tuple(runs), tuple(warnings), searching)


def _is_number(value: Any) -> bool:
    """Whether a value is a number of a size that can be shown."""
    return isinstance(value, (int, float)) and abs(value) < _LARGEST
