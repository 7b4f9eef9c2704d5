"""A worker process: takes runs from its standard input, one JSON object a line, and reports events as JSON lines.

``{"event": "ready"}`` goes out first. ``{"runs": [{"config": {...}, "directory": "...", "imports": [...], "lease":
{...}}, ...], "modules": [...], "look_in": [...]}`` comes in, several runs if they can share a program; a run of a
user's program also has ``"program"`` and ``"metric"``. ``imports`` are modules that the run may import, ``modules`` are
imported first, for their formats and algorithms, and ``look_in`` are the folders of modules. For each run,
``{"run": id, "event": "progress", "progress": {...}}`` goes out while it trains, and then one last event:

- ``"ended"``; or ``"failed"`` with a ``"reason"``;
- ``"died"`` with a ``"reason"``, if the process of a program died: another try may succeed;
- ``"elsewhere"``, if another process was faster to take the lease (``leases.py``), or, with a ``"reason"``, if one
  works in the folder without a lease: it was silent for too long, or never had one.

At ``{"stop": true}``, or SIGTERM, the runs save checkpoints, and the process exits with status 143. If its input closes
before, the process that started it has died: it exits at once, and its leases end with it; the runs continue from their
last checkpoints. It also exits at once when it has lost a lease: another process has taken over the run.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TextIO, final

from roundoff.errors import FolderInUseError, RoundoffError
from roundoff.own_modules import import_all, look_in
from roundoff.processes import keep_from_children, let_go

from ...agents import Stopped, StopRequest, stopping_on_sigterm
from ..folder.leases import Lease

if TYPE_CHECKING:
    from ...agents import Progress
    from .fork_server import ForkServer

BETWEEN_TRIES = 5.0  # seconds between two looks at a folder in which another process still works


def main() -> None:
    """Serves runs until standard input closes."""
    # The pipe of standard output is for events only: output of libraries goes to standard error, which is a log file.
    events = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8", buffering=1)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    # The pipe of orders gets another descriptor: a program that reads from standard input finds its end.
    lines = os.fdopen(os.dup(sys.stdin.fileno()), encoding="utf-8")
    let_go([sys.stdin.fileno()])
    for descriptor in (events.fileno(), lines.fileno()):
        keep_from_children(descriptor)
    orders: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
    stop, serving = StopRequest(), threading.Event()
    threading.Thread(target=_read_orders, args=(lines, orders, stop, serving), daemon=True).start()
    from ...agents import train_together  # noqa: F401, PLC0415  seconds, and worth doing before the first order comes

    _send(events, event="ready")
    program_runs = _ProgramRuns()
    while True:
        order = orders.get()
        serving.set()
        with stopping_on_sigterm(stop):
            _serve(order, events, stop, program_runs)
        serving.clear()
        if stop.made:
            _exit_stopped()


def _read_orders(
    lines: TextIO, orders: queue.SimpleQueue[dict[str, Any]], stop: StopRequest, serving: threading.Event
) -> None:
    """Puts orders into the queue until it reads an order to stop, or the input closes."""
    for line in lines:
        order = json.loads(line)
        if "stop" not in order:
            orders.put(order)
            continue
        stop.make()  # the runs that are trained now save and end
        if not serving.is_set():
            _exit_stopped()
        return
    os._exit(0)  # the input closed: the parent has died


def _exit_stopped() -> NoReturn:
    """Ends the process without waiting for the thread that reads orders."""
    sys.stderr.write("roundoff: stopped as asked\n")
    sys.stderr.flush()
    os._exit(128 + signal.SIGTERM)


def _exit_superseded(program_runs: _ProgramRuns) -> NoReturn:
    """Ends the process before it, or the run of a program, writes anything else."""
    program_runs.abandon()
    sys.stderr.write("roundoff: was silent for so long that another process has taken over the run\n")
    sys.stderr.flush()
    os._exit(1)


def _serve(order: dict[str, Any], events: TextIO, stop: StopRequest, program_runs: _ProgramRuns) -> None:
    """Takes the leases of an order's runs, carries out the runs, and releases the leases."""
    look_in(order.get("look_in", ()))
    held_runs: list[_HeldRun] = []
    for run in order["runs"]:
        lease_data = run["lease"]
        try:
            on_loss = partial(_exit_superseded, program_runs)
            lease = Lease.take(Path(lease_data["folder"]), lease_data["run"], lease_data["number"], on_loss)
        except RoundoffError as error:
            _send(events, run=lease_data["run"], event="failed", reason=str(error))
            continue
        if lease is None:
            _send(events, run=lease_data["run"], event="elsewhere")
        else:
            held_runs.append(_HeldRun(run, lease, events, stop))
    try:
        if any(run.program for run in held_runs):
            for run in held_runs:
                program_runs.run(run, stop, order["modules"])
        else:
            _train(held_runs, stop, compiled=order.get("compiled"), modules=order["modules"])
    except KeyboardInterrupt:  # out of patience, or a second signal: ends without saving
        program_runs.end()
        for run in held_runs:
            run.give_back()
        _exit_stopped()
    finally:
        for run in held_runs:
            run.give_back()


def _train(held_runs: list[_HeldRun], stop: StopRequest, *, compiled: bool | None, modules: Sequence[str]) -> None:
    from ...agents import Job, TrainConfig, train_together  # noqa: PLC0415

    try:
        import_all(modules)  # they register formats and algorithms that the runs name
        jobs = [Job(TrainConfig(**run.config), run.directory, run.report, run.notice, run.imports) for run in held_runs]
    except Exception as error:  # noqa: BLE001  a bug in one run must not end the others
        for run in held_runs:
            run.end(error)
        return
    for i, outcome in train_together(jobs, stop, compiled=compiled):
        held_runs[i].end(outcome if isinstance(outcome, Exception) else None)


@final
class _ProgramRuns:
    """Runs a user's programs, each in a separate process: see ``fork_server.py``."""

    def __init__(self) -> None:
        self._fork_server: ForkServer | None = None
        self._program: tuple[str, str] | None = None
        self._imports_once = True

    def run(self, run: _HeldRun, stop: StopRequest, modules: Sequence[str]) -> None:
        """Carries out a run, and reports its end."""
        order = {"config": run.config, "metric": run.metric, "directory": run.directory}
        outcome = self._running_server(run.program, modules).run(order, run.report, stop)
        if outcome["event"] == "unfit":
            run.notice("the program starts threads, or uses a GPU, when it is imported: each run imports it again")
            self.end()
            self._imports_once = False
            outcome = self._running_server(run.program, modules).run(order, run.report, stop)
        if outcome["event"] == "stopped" and not stop.made:  # only the program's process got a signal
            outcome = {"event": "died", "reason": "the process of the program was told to stop"}
        run.end_with(outcome)

    def abandon(self) -> None:
        """Kills the run of a program at once."""
        if self._fork_server and self._fork_server.is_alive:
            self._fork_server.abandon()

    def end(self) -> None:
        """Ends all processes."""
        if self._fork_server and self._fork_server.is_alive:
            self._fork_server.end()
        self._fork_server = None

    def _running_server(self, program: dict[str, str], modules: Sequence[str]) -> ForkServer:
        from ..subjects.program import Program  # noqa: PLC0415  imports PyTorch
        from .fork_server import ForkServer  # noqa: PLC0415  imports PyTorch

        key = program["text"], program["folder"]
        if key != self._program:
            self.end()
            self._program, self._imports_once = key, True
        if self._fork_server is None or not self._fork_server.is_alive:
            self._fork_server = ForkServer(Program(*key), modules, imports_once=self._imports_once)
        return self._fork_server


@final
class _HeldRun:
    """A run with its lease held by this process."""

    def __init__(self, run: dict[str, Any], lease: Lease, events: TextIO, stop: StopRequest) -> None:
        self.config: dict[str, Any] = run["config"]
        self.directory: str = run["directory"]
        self.imports: list[str] = run["imports"]
        self.program: dict[str, str] = run.get("program", {})
        self.metric: dict[str, Any] = run.get("metric", {})
        self._id = run["lease"]["run"]
        self._lease: Lease | None = lease
        self._events, self._stop = events, stop
        self._first_report: tuple[int, float] | None = None

    def report(self, progress: Progress) -> None:
        """Reports the progress of the run."""
        now = time.monotonic()
        self._first_report = self._first_report or (progress.step, now)
        fields = {
            "step": progress.step,
            "return": progress.last_return,
            "rate": (progress.step - self._first_report[0]) / max(now - self._first_report[1], 1e-3),
            "loss_scale": progress.loss_scale,
        }
        if self._lease:
            self._lease.note(fields)
        _send(self._events, run=self._id, event="progress", progress=fields)

    def notice(self, text: str) -> None:
        """Writes a line to the log."""
        sys.stderr.write(f"roundoff: {self.directory}: {text}\n")

    def end(self, error: Exception | None) -> None:
        """Releases the lease, and reports the end of the run; ``error`` is None if it has a result."""
        if error is None:
            self.give_back(ended=True)
            _send(self._events, run=self._id, event="ended")
            return
        if isinstance(error, FolderInUseError):
            self.notice("another process is at work there; the run waits for it")
            deadline = time.monotonic() + BETWEEN_TRIES
            while time.monotonic() < deadline and not self._stop.made:
                time.sleep(0.1)  # and keeps the lease, so that other sweeps do not try either
        self.give_back()
        if isinstance(error, Stopped):
            self.notice(f"{error}, and saved" if error.saved else f"{error}; it starts from the beginning")
        elif isinstance(error, FolderInUseError):
            _send(self._events, run=self._id, event="elsewhere", reason=str(error))
        elif isinstance(error, RoundoffError):
            _send(self._events, run=self._id, event="failed", reason=str(error))
        else:
            traceback.print_exception(error)
            _send(self._events, run=self._id, event="failed", reason=f"{type(error).__name__}: {error}")

    def end_with(self, outcome: dict[str, Any]) -> None:
        """Ends the run with the outcome that the process of a program has reported."""
        if outcome["event"] == "ended":
            self.end(None)
        elif outcome["event"] == "in use":
            self.end(FolderInUseError(outcome["reason"]))
        elif outcome["event"] == "failed":
            self.give_back()
            _send(self._events, **outcome | {"run": self._id})
        elif outcome["event"] == "stopped":
            self.end(Stopped(outcome["step"], saved=outcome["saved"]))
        else:
            self.give_back()
            _send(self._events, run=self._id, event="died", reason=outcome["reason"])

    def give_back(self, *, ended: bool = False) -> None:
        """Releases the lease, once."""
        if self._lease:
            self._lease.release(ended=ended)
            self._lease = None


def _send(events: TextIO, **event: Any) -> None:
    events.write(json.dumps(event) + "\n")


if __name__ == "__main__":
    main()
