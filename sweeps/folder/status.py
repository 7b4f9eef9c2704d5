"""What has become of the runs of a sweep, read from its folder alone; whoever works on them need not be asked."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, get_args

from roundoff.files import open_to_read, parse_json, read_bytes
from roundoff.printable import printable
from roundoff.unplanned import unplanned_runs

from ...agents.config.registry import leading
from ..errors import SweepError
from .directory import FAILURE, State, SweepDirectory
from .leases import STALE, Leases, alive

if TYPE_CHECKING:
    from pathlib import Path

STATES: tuple[State, ...] = get_args(State)

_LONGEST = 100  # characters of a metric's name
_LARGEST = 1e300  # of a number that a run notes; NaN and infinity are none
_TAIL = 4096  # bytes of a metrics file that are looked at for its last records


class RunStatus(NamedTuple):
    """One run.

    Attributes:
        run: its id.
        state: see :data:`State`.
        steps: environment steps of the whole run.
        progress: how far it is: ``step``, ``return``, ``rate``, ``loss_scale``; those that are known.
        reason: of a crash or a failure; who is at work; why nobody is.
        metric: name of what its ``return`` is, where that is none.
    """

    run: str
    state: State
    steps: int
    progress: dict[str, Any]
    reason: str
    metric: str | None = None


@dataclass(frozen=True)
class SweepStatus:
    """All of a sweep's runs, in the order of its plan, and what could not be read."""

    name: str
    runs: tuple[RunStatus, ...]
    warnings: tuple[str, ...]

    def count(self, state: State) -> int:
        """How many runs are in a state."""
        return sum(run.state == state for run in self.runs)


def read_status(directory: str | Path) -> SweepStatus:
    """Looks at a sweep's folder, which others may be working in.

    Raises:
        SweepError: it is no sweep's folder.
        FileError: its plan cannot be read.
    """
    store = SweepDirectory(directory)
    if not store.marker.exists():
        raise SweepError(
            f"{directory}: is no sweep's folder (there is no {store.marker.name}); give one that"
            " `roundoff sweep` has made"
        )
    content = store.read()
    metric = _metric(content.get("metric"))
    warnings: list[str] = []
    held = dict(Leases(store.leases).all())
    runs: list[RunStatus] = []
    for entry in content["runs"]:
        identity, folder = entry["id"], store.path / "runs" / entry["id"]
        result = _read(folder / "result.json", warnings)
        lease = held.get(identity)
        seen = None if lease is None or lease.holder is None else alive(lease.holder)
        state: State = "waiting"
        reason, progress = "", {}
        if isinstance(result, dict) and result.get("status") in ("done", "crashed"):
            state, progress = result["status"], {"step": result.get("step"), "return": result.get("return")}
            crash = result.get("crash")
            reason = str(crash.get("reason", "")) if isinstance(crash, dict) else ""
        elif result is not None:
            state, reason = "failed", "result.json is damaged; delete it to repeat the run"
        elif lease and (seen or (seen is None and lease.silence < STALE)):
            state = "running"
            progress = lease.progress
            reason = f"on {lease.holder.host}, process {lease.holder.pid}" if lease.holder else "by somebody unknown"
        elif failure := _read(folder / FAILURE, warnings):
            state, reason = "failed", str(failure.get("reason", "")) if isinstance(failure, dict) else "unknown"
        elif lease and lease.holder and seen is None:
            reason = f"no sign of life from {lease.holder.host} for {lease.silence:.0f} s"
        if state in ("running", "waiting"):
            progress = _last_records(folder / "metrics.jsonl", f"{leading(entry['config'])}_loss_scale") | progress
        progress = {key: value for key, value in progress.items() if _is_number(value)}
        steps = entry["config"].get("steps", 0)
        runs.append(
            RunStatus(identity, state, steps if _is_number(steps) and metric is None else 0, progress, reason, metric)
        )
    warnings += unplanned_runs(store.path / "runs", {run.run for run in runs})
    return SweepStatus(content["name"], tuple(runs), tuple(warnings))


def _read(path: Path, warnings: list[str]) -> Any:
    """The JSON in a file; None if there is none, and False if it cannot be read."""
    try:
        return parse_json(read_bytes(path))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "is not JSON"
        warnings.append(f"{path}: {reason}")
        return False


def _metric(told: Any) -> str | None:
    """The name of what counts of a program's values; None where agents are trained."""
    name = told.get("name") if isinstance(told, dict) else None
    return printable(name)[:_LONGEST] if isinstance(name, str) else None


def _is_number(value: Any) -> bool:
    """Whether it is one of a size that can be shown."""
    return isinstance(value, (int, float)) and abs(value) < _LARGEST


def _last_records(path: Path, loss_scale: str) -> dict[str, Any]:
    """Step, return and the loss scale of this name in the last whole records."""
    found: dict[str, Any] = {}
    try:
        with open_to_read(path) as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL))
            lines = file.read(_TAIL).split(b"\n")[:-1]
    except OSError:
        return found
    for line in lines:
        try:
            record = parse_json(line)
            found["step"] = record["step"]
        except (ValueError, KeyError, TypeError):
            continue  # the first is cut
        for ours, theirs in (("return", "return_mean"), ("loss_scale", loss_scale)):
            if theirs in record:
                found[ours] = record[theirs]
    return found
