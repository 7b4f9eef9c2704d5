"""Bringing runs to their end on the cores of one machine: a pool of worker processes, one thread each."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from roundoff.agents.stopping import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Sequence
    from pathlib import Path
    from typing import IO

    from roundoff.sweeps.plan import Run

_TRIES = 2  # of a run whose worker dies under it
_GRACE = PATIENCE  # seconds that workers have to save and stop

# One thread a worker: two threads on two busy cores make a small update ten times slower.
_ENVIRONMENT = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}


@dataclass(frozen=True)
class Event:
    """Something that happened to a run.

    Attributes:
        kind: ``started``, ``progress``, ``ended`` (its result is in its folder), or ``failed``.
        run: which.
        step: environment steps so far (``progress``).
        last_return: of its last evaluation, if there was one (``progress``).
        reason: why it failed.
    """

    kind: Literal["started", "progress", "ended", "failed"]
    run: Run
    step: int = 0
    last_return: float | None = None
    reason: str = ""


def execute(
    jobs: Sequence[tuple[Run, Path]], workers: int, logs: Path, command: Sequence[str] = ()
) -> Generator[Event]:
    """Brings runs to their end in ``workers`` processes at a time.

    A worker that dies (killed, out of memory) is replaced, and its run tried once more from its checkpoint. Closing
    the iterator stops all workers; so does the death of this process, however it dies.

    Args:
        jobs: runs with their folders; begun in this order.
        workers: number of processes, at least 1.
        logs: a folder for what workers print.
        command: starts a worker; for tests.

    Yields:
        What happens, as it happens. The last event of every run is ``ended`` or ``failed``.
    """
    pool = _Pool(jobs, workers, logs, command or (sys.executable, "-m", "roundoff.sweeps.worker"))
    try:
        yield from pool.events()
    finally:
        pool.stop()


class _Worker:
    """One process, and the run it has been given."""

    def __init__(self, command: Sequence[str], log: Path, inbox: queue.SimpleQueue[tuple[_Worker, Any]]) -> None:
        environment = {**os.environ, **_ENVIRONMENT}
        self.run: Run | None = None
        self.log = log
        with log.open("ab") as errors:
            self.process = subprocess.Popen(  # noqa: S603  our own interpreter
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, env=environment,
                start_new_session=True,  # Ctrl-C is for the parent, which tells its workers to stop
            )  # fmt: skip
        threading.Thread(target=self._listen, args=(inbox,), daemon=True).start()

    def give(self, run: Run, directory: Path) -> None:
        """Hands over a run."""
        self.run = run
        order = {"config": run.config.as_json(), "directory": str(directory)}
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps(order).encode() + b"\n")
            self.process.stdin.flush()
        except OSError:
            pass  # it has died, and the listener will say so

    def stop(self) -> None:
        """Asks it to save a checkpoint and stop."""
        try:
            assert self.process.stdin is not None
            self.process.stdin.write(b'{"stop": true}\n')
            self.process.stdin.flush()
        except (OSError, ValueError):
            pass  # it has died, or was asked before
        _close(self.process.stdin)

    def wait(self, seconds: float) -> None:
        """Waits for its end, and enforces it."""
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        _close(self.process.stdout)

    def death(self) -> str:
        """How it died."""
        code = self.process.wait()
        if code < 0:
            return f"the worker process was killed by {signal.Signals(-code).name}"
        return f"the worker process ended with status {code}; its last words are in {self.log}"

    def _listen(self, inbox: queue.SimpleQueue[tuple[_Worker, Any]]) -> None:
        assert self.process.stdout is not None
        try:
            for line in self.process.stdout:
                inbox.put((self, json.loads(line)))
        except ValueError:
            pass  # a torn last line, or the pipe was closed
        inbox.put((self, None))


class _Pool:
    def __init__(self, jobs: Sequence[tuple[Run, Path]], workers: int, logs: Path, command: Sequence[str]) -> None:
        self._command = command
        self._logs = logs
        self._started = 0
        self._waiting = deque(jobs)
        self._directories = {run.id: directory for run, directory in jobs}
        self._tries = dict.fromkeys(self._directories, 0)
        self._inbox: queue.SimpleQueue[tuple[_Worker, Any]] = queue.SimpleQueue()
        self._workers: set[_Worker] = set()
        self._limit = min(workers, len(jobs))

    def events(self) -> Iterator[Event]:
        unfinished = len(self._waiting)
        while unfinished:
            while self._waiting and len(self._workers) < self._limit:
                yield self._start()
            worker, message = self._inbox.get()
            for event in self._digest(worker, message):
                unfinished -= event.kind in ("ended", "failed")
                yield event

    def stop(self) -> None:
        for worker in self._workers:
            worker.stop()
        end = time.monotonic() + _GRACE
        for worker in self._workers:
            worker.wait(max(0.0, end - time.monotonic()))
        self._workers.clear()

    def _start(self) -> Event:
        """Starts a worker with the next run."""
        self._started += 1
        worker = _Worker(self._command, self._logs / f"worker-{self._started}.log", self._inbox)
        self._workers.add(worker)
        return self._give(worker, *self._waiting.popleft())

    def _give(self, worker: _Worker, run: Run, directory: Path) -> Event:
        self._tries[run.id] += 1
        worker.give(run, directory)
        return Event("started", run)

    def _digest(self, worker: _Worker, message: Any) -> Iterator[Event]:
        run = worker.run
        if message is None:
            yield from self._bury(worker)
        elif run is None or message["event"] == "ready":
            pass
        elif message["event"] == "progress":
            yield Event("progress", run, step=message["step"], last_return=message["last_return"])
        else:
            worker.run = None
            yield Event(message["event"], run, reason=message.get("reason", ""))
            if self._waiting:
                yield self._give(worker, *self._waiting.popleft())

    def _bury(self, worker: _Worker) -> Iterator[Event]:
        if worker not in self._workers:
            return
        self._workers.remove(worker)
        reason = worker.death()
        worker.stop()
        worker.wait(0)
        run = worker.run
        if run is None:
            return
        if self._tries[run.id] < _TRIES:
            self._waiting.appendleft((run, self._directories[run.id]))
        else:
            yield Event("failed", run, reason=reason)


def _close(pipe: IO[bytes] | None) -> None:
    try:
        if pipe is not None:
            pipe.close()
    except OSError:
        pass  # the other end is gone, and with it whatever was still to be written
