"""Bringing runs to their end: a pool of workers, wherever they are (``local.py``, ``on_ray.py``)."""

from __future__ import annotations

import itertools
import queue
import sys
import time
from collections import deque
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from dataclasses import InitVar, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, Protocol

from roundoff.own_modules import looked_in
from roundoff.runs.folder import RunDirectory
from roundoff.runs.metric import Metric

from ...agents import PATIENCE, Task, TrainConfig, may_import
from ...agents.config import module_of_algorithm
from ..errors import SweepError
from ..folder.leases import Leases
from ..subjects.program_keys import ProgramConfig
from ..subjects.subject import Run

_GRACE = PATIENCE  # seconds that workers have to save and stop
_POLL = 0.5  # seconds between two looks at runs that another sweep holds


@dataclass(frozen=True)
class Event:
    """Something that happened to a run.

    Attributes:
        kind: ``started``, ``progress``, ``elsewhere`` (another sweep has it), ``ended`` (its result is in its
            folder), or ``failed``.
        run: the run.
        progress: how far it is (``progress``): ``step``, ``return`` of the last evaluation or None, ``rate``
            (environment steps per second), ``loss_scale`` or None.
        reason: why it failed, or has to wait.
        ends_sweep: Whether all other runs would fail for the same reason.
    """

    kind: Literal["started", "progress", "elsewhere", "ended", "failed"]
    run: Run
    progress: dict[str, Any] | None = None
    reason: str = ""
    ends_sweep: bool = False


class Worker(Protocol):
    """A worker that trains one run after another; see ``process.py`` for its instructions and its events."""

    def send(self, order: dict[str, Any]) -> None:
        """Gives it a run; it may be dead already."""

    def stop(self) -> None:
        """Asks it to save a checkpoint and end."""

    def wait(self, seconds: float) -> None:
        """Waits for its end, and enforces it."""

    def death(self) -> str:
        """Describes how the worker died; called after its death."""


class Executor(Protocol):
    """A place for workers to run in: this machine, or others.

    Attributes:
        limit: the number of workers at a time, at least 1.
        tries: the number of tries of a run if its worker dies.
        is_local: whether they run on this machine, so that its devices are theirs.
    """

    limit: int
    tries: int
    is_local: bool

    def start(self, log: Path, on_message: Callable[[dict[str, Any] | None], None]) -> Worker:
        """Starts a worker.

        Args:
            log: a file for its output.
            on_message: called, in any thread, with each event of the worker, and with None once it is dead.
        """

    def close(self) -> None:
        """Releases its resources; called after the workers have ended."""


def execute(
    jobs: Sequence[tuple[Run, Path]],
    executor: Executor,
    leases: Leases,
    logs: Path,
    *,
    compiled: bool | None = None,
    population: int = 1,
    allow_imports: Collection[str] = (),
    metric: Metric | None = None,
) -> Generator[Event]:
    """Brings runs to their end, each by one worker at a time, of this sweep or of another.

    A worker that dies (killed, out of memory, lost with its node) is replaced, and its runs continue from their
    checkpoints, one by one. Closing the iterator stops all workers, as does the death of this process by any cause.

    Args:
        jobs: runs with their folders; begun in this order.
        executor: starts the workers.
        leases: the leases of the sweep.
        logs: a folder for what workers print.
        compiled: whether updates are compiled; see :func:`roundoff.agents.train`.
        population: the most runs that a worker is given at once, if they can share a program.
        allow_imports: modules that runs may import; see :func:`roundoff.agents.train`.
        metric: the returned value that counts, for programs.

    Yields:
        Events as they happen. The last event of every run is ``ended`` or ``failed``.

    Raises:
        SweepError: workers end before they have begun.
    """
    groups = group([run for run, _ in jobs], population, executor.limit, compiled=compiled)
    directories = {run.id: directory for run, directory in jobs}
    pool = _Pool(groups, directories, executor, leases, logs, compiled, allow_imports, metric)
    try:
        yield from pool.events()
    finally:
        try:
            pool.stop()
        finally:
            executor.close()


class _Slot:
    """A worker, and the pool's record of it."""

    def __init__(self, executor: Executor, log: Path, inbox: queue.SimpleQueue[tuple[_Slot, Any]]) -> None:
        self.runs: dict[str, Run] = {}
        self.ready = False
        self.worker = executor.start(log, lambda message: inbox.put((self, message)))

    @property
    def idle(self) -> bool:
        return self.ready and not self.runs


@dataclass
class _Pool:
    """Workers, the groups of runs that wait for one, and the number of tries of each run."""

    groups: InitVar[Sequence[list[Run]]]
    _directories: dict[str, Path]
    _executor: Executor
    _leases: Leases
    _logs: Path
    _compiled: bool | None
    _allow_imports: Collection[str]
    _metric: Metric | None
    _started: int = 0
    _failed_starts: int = 0  # workers in a row that died before they were ready

    def __post_init__(self, groups: Sequence[list[Run]]) -> None:
        algorithms = (getattr(run.config, "algorithm", None) for runs in groups for run in runs)
        # Those that are imported here may have registered formats, so workers import them too.
        self._modules = sorted(sys.modules.keys() & {*self._allow_imports, *map(module_of_algorithm, algorithms)})
        self._waiting = deque(groups)
        self._tries = dict.fromkeys(self._directories, 0)
        self._inbox: queue.SimpleQueue[tuple[_Slot, Any]] = queue.SimpleQueue()
        self._slots: list[_Slot] = []

    def events(self) -> Iterator[Event]:
        unfinished = len(self._directories)
        # Every event may free a worker or a run, so runs are handed out again after each.
        steps = itertools.cycle((self._hand_out, self._listen))
        while unfinished:
            for event in next(steps)():
                unfinished -= event.kind in ("ended", "failed")
                yield event

    def stop(self) -> None:
        """Asks all workers to save and end, and waits for them; an interrupt ends the wait."""
        for slot in self._slots:
            slot.worker.stop()
        end = time.monotonic() + _GRACE
        try:
            for slot in self._slots:
                slot.worker.wait(max(0.0, end - time.monotonic()))
        except KeyboardInterrupt:
            for slot in self._slots:
                slot.worker.wait(0)
            raise
        self._slots.clear()

    def _hand_out(self) -> Iterator[Event]:
        """Gives runs that nobody holds to idle workers, and starts workers for more of them."""
        idle = [slot for slot in self._slots if slot.idle]
        starting = sum(not slot.ready for slot in self._slots)
        room = self._executor.limit - len(self._slots)
        if self._waiting and (idle or room):
            ended, free = self._take_waiting(len(idle) + starting + room)
            for run in ended:
                yield Event("ended", run)
            for slot, numbers in zip(idle, free, strict=False):
                yield from self._send_runs(slot, numbers)
            for _ in range(min(room, len(free) - len(idle) - starting)):  # no more workers than runs to do
                self._started += 1
                self._slots.append(_Slot(self._executor, self._logs / f"worker-{self._started}.log", self._inbox))
        if not self._waiting:
            for slot in self._slots:
                if slot.idle:  # it may occupy the place that another worker waits for
                    slot.ready = False
                    slot.worker.stop()

    def _take_waiting(self, limit: int) -> tuple[list[Run], list[list[tuple[Run, int]]]]:
        """Finds waiting runs that another sweep has ended, which wait no longer, and groups of runs that nobody holds.

        Returns the ended runs, and at most ``limit`` free groups, each run with the number of its next lease. Runs of a
        group that another sweep holds wait one by one from now on.
        """
        ended: list[Run] = []
        free: list[list[tuple[Run, int]]] = []
        numbers = self._leases.numbers()
        waiting, self._waiting = self._waiting, deque()
        while waiting and len(free) < limit:
            members = waiting.popleft()
            held: list[Run] = []
            takeable: list[tuple[Run, int]] = []
            for run in members:
                number = self._leases.next_number(run.id, numbers)
                # Checked after the lease: a holder writes the result before it releases the lease.
                if RunDirectory(self._directories[run.id]).result.exists():
                    ended.append(run)
                elif number is not None:
                    takeable.append((run, number))
                else:
                    held.append(run)
            if takeable:
                free.append(takeable)
                self._waiting.append([run for run, _ in takeable])
            self._waiting.extend([run] for run in held)
        self._waiting.extend(waiting)
        return ended, free

    def _send_runs(self, slot: _Slot, numbers: list[tuple[Run, int]]) -> Iterator[Event]:
        self._waiting.remove([run for run, _ in numbers])
        orders = []
        for run, number in numbers:
            self._tries[run.id] += 1
            slot.runs[run.id] = run
            lease = {"folder": str(self._leases.folder.absolute()), "run": run.id, "number": number}
            module = Task.parse(run.config.task).module
            imports = [module] if module and may_import(module, self._allow_imports) else []
            details: dict[str, Any] = {"directory": str(self._directories[run.id].absolute()), "lease": lease}
            if isinstance(run.config, ProgramConfig):
                assert self._metric is not None
                program = run.config.program
                details["program"] = {"text": program.text, "folder": program.folder}
                details["metric"] = self._metric.as_json()
            orders.append({"config": run.config.as_json(), "imports": imports, **details})
        slot.worker.send({"runs": orders, "compiled": self._compiled, "modules": self._modules, "look_in": looked_in()})
        for run, _ in numbers:
            yield Event("started", run)

    def _listen(self) -> Iterator[Event]:
        """Waits for an event of a worker; not for long if a run may become free meanwhile."""
        has_room = len(self._slots) < self._executor.limit or any(slot.idle for slot in self._slots)
        try:
            slot, message = self._inbox.get(timeout=_POLL if self._waiting and has_room else None)
        except queue.Empty:
            return
        if message is None:
            yield from self._remove_dead(slot)
        elif message["event"] == "ready":
            slot.ready, self._failed_starts = True, 0
        elif message["event"] == "unusable":
            raise SweepError(message["reason"])
        elif message["run"] not in slot.runs:  # progress that was on its way when the run ended
            pass
        elif message["event"] == "progress":
            yield Event("progress", slot.runs[message["run"]], progress=message["progress"])
        else:
            run = slot.runs.pop(message["run"])
            if message["event"] == "died":
                yield from self._try_again(run, message["reason"])
                return
            if message["event"] == "elsewhere":  # another sweep was faster, or its holder still works in the folder
                self._tries[run.id] -= 1
                self._waiting.append([run])
            ends_sweep = message.get("ends_sweep", False)
            yield Event(message["event"], run, reason=message.get("reason", ""), ends_sweep=ends_sweep)

    def _remove_dead(self, slot: _Slot) -> Iterator[Event]:
        self._slots.remove(slot)
        reason = slot.worker.death()
        slot.worker.stop()
        slot.worker.wait(0)
        if not slot.runs:
            if not slot.ready and self._waiting:
                self._failed_starts += 1
            if self._failed_starts > self._executor.limit + 1:  # not bad luck: no worker starts here
                raise SweepError(f"workers end before they have begun: {reason}")
        for run in slot.runs.values():
            yield from self._try_again(run, reason)

    def _try_again(self, run: Run, reason: str) -> Iterator[Event]:
        """Has a run wait again after its process has died; or fail, if that was the last try."""
        if self._tries[run.id] < self._executor.tries:
            self._waiting.appendleft([run])  # alone: another run may have caused the death
        else:
            yield Event("failed", run, reason=reason)


def group(runs: Sequence[Run], population: int, workers: int, *, compiled: bool | None) -> list[list[Run]]:
    """Groups of runs, each for one worker at a time.

    Runs that can share a program are divided into groups of equal size, or nearly, since every size is another
    program: the fewest groups with at most ``population`` members each, but at least one for each worker.

    Args:
        runs: to do.
        population: the most members of a group; 1: every run is its own group.
        workers: at a time.
        compiled: whether updates are to be compiled; see :func:`roundoff.agents.train`.

    Returns:
        The groups, in the order of their first runs.
    """
    if population == 1 or compiled is False or len(runs) == 1:
        return [[run] for run in runs]
    by_key: dict[str, list[Run]] = {}
    for run in runs:
        by_key.setdefault(_sharing_key(run, forced=compiled is True) or run.id, []).append(run)
    groups = []
    for members in by_key.values():
        count = max(-(-len(members) // population), min(workers, len(members)))  # of groups, rounded up
        ends = [len(members) * i // count for i in range(count + 1)]
        groups += [members[begin:end] for begin, end in pairwise(ends)]
    order = {run.id: i for i, run in enumerate(runs)}
    return sorted(groups, key=lambda members: order[members[0].id])


def _sharing_key(run: Run, *, forced: bool) -> str | None:
    """Returns a key that is equal for runs that can share a program; None for a run that cannot, or gains nothing."""
    from ...agents import shared_kind, worth_sharing  # noqa: PLC0415  imports torch

    config = run.config
    if not isinstance(config, TrainConfig):
        return None
    return shared_kind(config) if forced or worth_sharing(config, config.steps // config.action_repeat) else None
