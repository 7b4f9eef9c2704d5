"""Observers of a sweep: its display, and a tracker if it has one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol, final

from roundoff.errors import RoundoffError
from roundoff.files import create_file, directory_lock, make_directory_inside, parse_json
from roundoff.runs.log import read_log
from roundoff.runs.result import ProgramResult

from .folder.directory import State, SweepDirectory
from .language.plan import Plan
from .subjects.subject import Run
from .trackers import MLflow, TrackedRun, WandB, finite, flat, open_tracker
from .workers.pool import Event

_LONGEST = 1000  # characters of a reason that are logged


class SweepWatcher(Protocol):
    """Shows a sweep's progress."""

    def begin(self, waiting: Sequence[Run], finished: int, workers: int) -> None:
        """Announces the sweep: the runs to do, and how many of the plan were finished before."""

    def notice(self, text: str) -> None:
        """Shows a remark for the user, before the sweep begins."""

    def event(self, event: Event, state: State, score: float | None) -> None:
        """Shows an event of a run; ``state`` and ``score`` (its return, or its metric) count when it has ended."""


def tracked(watcher: SweepWatcher, plan: Plan, directory: Path) -> SweepWatcher:
    """A watcher that also logs runs, if the plan names a tracker; else the watcher itself.

    Raises:
        MissingExtraError: the tracker's package is not installed.
        SweepError: the tracker cannot be used.
    """
    if plan.log_to is None:
        return watcher
    return _Tracked(watcher, plan, directory, open_tracker(plan.log_to, plan.name))


@final
class _Tracked:
    """Logs a run when it has ended, and at the beginning all ended runs that were not logged."""

    def __init__(self, watcher: SweepWatcher, plan: Plan, directory: Path, tracker: WandB | MLflow) -> None:
        assert plan.log_to is not None
        self._watcher, self._plan, self._tracker = watcher, plan, tracker
        self._directory, self._name = directory, plan.log_to.name

    def begin(self, waiting: Sequence[Run], finished: int, workers: int) -> None:
        """Passes it on, and logs the runs that ended before."""
        self._watcher.begin(waiting, finished, workers)
        store = SweepDirectory(self._directory)
        for run in self._plan.runs:
            if store.has_ended(run):
                self._log(run)

    def notice(self, text: str) -> None:
        """Passes it on."""
        self._watcher.notice(text)

    def event(self, event: Event, state: State, score: float | None) -> None:
        """Passes it on, and logs a run that has ended."""
        self._watcher.event(event, state, score)
        if event.kind == "ended":
            self._log(event.run)

    def _log(self, run: Run) -> None:
        """Logs a run, unless that was done before; another sweep in this folder may do it at the same time."""
        logged = make_directory_inside(self._directory, f"logged-to-{self._name}")
        mark = logged / run.id
        if mark.exists():
            return
        with directory_lock(logged, wait=True):
            if mark.exists():
                return
            try:
                self._tracker.log(_tracked_run(run, self._directory))
            except RoundoffError as error:  # the run itself is complete, and is logged when the sweep is called again
                self._watcher.notice(f"{run.id} is not logged yet: {error}")
            else:
                create_file(mark, b"")


def _tracked_run(run: Run, directory: Path) -> TrackedRun:
    store = SweepDirectory(directory)
    result = store.result(run)
    values: dict[str, Any] = {"score": result.score, "steps": result.step}
    if isinstance(result, ProgramResult):
        values |= result.values
    reason = result.crash.reason[:_LONGEST] if result.crash else ""
    case = {"case": run.case} if run.case else {}
    # The records of a run's log, with names as its log for TensorBoard has them: `eval/return`, `train/loss`
    curves = []
    for line in read_log(store.files(run).metrics, []).splitlines():
        try:
            record = parse_json(line)
            kind, step = record.pop("kind"), int(record.pop("step"))
        except (ValueError, KeyError, TypeError, AttributeError):
            continue  # a damaged line, of which `roundoff plot` warns
        kind = f"{kind}/{record['in']}" if "in" in record else kind
        curves.append((step, {f"{kind}/{name}": value for name, value in finite(record).items()}))
    return TrackedRun(run.id, result.status, flat(run.config.as_json()) | case, curves, finite(values), reason)
