"""Runs of a program, each in a separate process, forked from a process that only imports the program.

A program may change anything of its process: the working directory, threads, settings of PyTorch, streams,
descriptors. So a run gets a process that begins like every other, in a separate session, and its remaining
descendants are ended with it. Importing PyTorch and the program takes seconds, a fork hundredths.

There are three processes: the worker, which holds the lease and speaks with the sweep; the template for forks,
which executes the program's file and nothing else of it; and the process of the run.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib import import_module
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NoReturn, final

import torch

from roundoff.origin import origin
from roundoff.processes import adopt_orphans, begin_session, end_children, end_with, in_words
from roundoff.runs.folder import RunDirectory

from ...agents import Progress, StopRequest
from ...simulate import Simulation
from ..errors import SweepError
from ..programs.guest import run_child
from ..subjects.program import Program

_POLL = 0.1  # seconds between two looks at whether to stop
_GRACE = 5.0  # seconds that a program has for what it does at its exit
_SOON = 0.005
_STDERR = 2
_THREADED = {"jax", "tensorflow"}
_LATE = (
    "tensorboard.compat.proto.event_pb2", "tensorboard.compat.proto.summary_pb2",
    "tensorboard.summary.writer.record_writer",
)  # fmt: skip
"""Modules that are imported when a run first writes something."""
_LARGEST_LOG = 32 << 20
_KEPT_OF_LOG = 1 << 20
_HOLE = 3  # FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, of linux/falloc.h


@final
class ForkServer:
    """The process that runs of a program are forked from, as the worker sees it.

    Args:
        program: to import.
        modules: to import before, for the formats that they register.
        imports: whether that is done once, before the runs; else by each run itself.

    Attributes:
        is_there: False once it has ended.
    """

    def __init__(self, program: Program, modules: Sequence[str], *, imports: bool = True) -> None:
        adopt_orphans()  # those of this process, should it be killed
        ours, theirs = socket.socketpair()
        parent = os.getpid()
        self._pid = os.fork()
        if not self._pid:
            try:
                os.close(ours.detach())
                _ForkServerProcess(Connection(theirs.detach()), program, modules, imports=imports).serve(parent)
            finally:
                os._exit(1)
        theirs.close()
        self._connection = Connection(ours.detach())
        self._run = 0
        self.is_there = True

    def run(self, order: dict[str, Any], on_progress: Callable[[Progress], None], stop: StopRequest) -> dict[str, Any]:
        """Has a run made; see :func:`~.programs.guest.run_child` for the order.

        Returns:
            ``{"event": ...}``: ``ended``, ``failed`` with a ``reason``, ``stopped``, ``died`` with a ``reason``; or
            ``unfit``: no run can be forked from a process that has imported this program.
        """
        asked = False
        try:
            self._say({"run": order})
            while True:
                if stop.made and not asked:
                    asked = True
                    self._say({"stop": True})
                if not self._connection.poll(_POLL):
                    _cut_log(while_printed_to=True)
                    continue
                told = json.loads(self._connection.recv_bytes())
                if "event" in told:
                    self._run = 0
                    _cut_log(while_printed_to=False)
                    return dict(told)
                if "pid" in told:
                    self._run = told["pid"]
                else:
                    progress = told["progress"]
                    on_progress(Progress(progress["step"], None, progress["return"]))
        except (EOFError, OSError):
            return {"event": "died", "reason": f"the process of the program {in_words(self.end())}"}

    def abandon(self) -> None:
        """Kills the run at once: it may write nothing more."""
        with suppress(ProcessLookupError):
            os.kill(self._run or self._pid, signal.SIGKILL)

    def end(self) -> int:
        """Ends the process, and all that descend from it; returns its exit status."""
        self.is_there = False
        self._connection.close()  # which it ends by, and ends what it has started
        end = time.monotonic() + _GRACE
        while not (ended := os.waitpid(self._pid, os.WNOHANG))[0]:
            if time.monotonic() > end:
                os.kill(self._pid, signal.SIGKILL)
            time.sleep(_SOON)
        end_children()
        _cut_log(while_printed_to=False)
        return os.waitstatus_to_exitcode(ended[1])

    def _say(self, what: dict[str, Any]) -> None:
        self._connection.send_bytes(json.dumps(what).encode())


@final
class _ForkServerProcess:
    """The process itself."""

    def __init__(self, worker: Connection, program: Program, modules: Sequence[str], *, imports: bool) -> None:
        self._worker, self._program, self._modules, self._imports = worker, program, modules, imports

    def serve(self, parent: int) -> NoReturn:
        """Forks a run for each order, until the worker closes the connection."""
        begin_session()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)  # the worker decides when to stop
        _let_go_of_descriptors(self._worker.fileno())
        adopt_orphans()
        end_with(parent)  # as long as it is busy importing
        fit = self._import()
        end_with(None)
        while True:
            told = self._receive()
            if "run" not in told:
                continue
            if not fit:
                self._say({"event": "unfit"})
                continue
            self._host(told["run"])

    def _import(self) -> bool:
        """Imports what every run needs; whether it can be forked from then."""
        torch.set_num_threads(1)  # more do not come through a fork; each run has its own number
        if not self._imports:
            return True
        for module in self._modules:
            import_module(module)
        with suppress(SweepError):  # each run says it
            self._program.load()
            self._program.origin()
        warm_up()
        # Neither threads nor a GPU's context come through a fork. Idle threads of libraries in C++, such as Arrow's,
        # are not missed; those of these libraries are.
        threaded = threading.active_count() > 1 or bool(sys.modules.keys() & _THREADED)
        return not (threaded or torch.cuda.is_initialized())  # type: ignore[no-untyped-call]

    def _host(self, order: dict[str, Any]) -> None:
        """Forks a run, and looks after it until nothing of it is left."""
        said, saying = os.pipe()
        stop, stopping = os.pipe()
        parent = os.getpid()
        pid = os.fork()
        if not pid:
            try:
                for descriptor in (said, stopping, self._worker.fileno()):
                    os.close(descriptor)
                for module in self._modules:
                    import_module(module)
                run_child(self._program, order, saying, stop, parent)
            finally:
                os._exit(1)
        os.close(saying)
        os.close(stop)
        self._say({"pid": pid})
        result = RunDirectory(order["directory"]).result
        outcome, status, was_stopped = self._watch(pid, said, stopping, result)
        os.close(said)
        os.close(stopping)
        end_children()
        if result.exists():  # also where it could not say so any more
            outcome = {"event": "ended"}
        elif outcome is None and was_stopped:
            outcome = {"event": "stopped", "step": 0, "saved": True}
        elif outcome is None:
            outcome = {"event": "died", "reason": f"the process of the program {in_words(status)}"}
        self._say(outcome)

    def _watch(self, pid: int, said: int, stopping: int, result: Path) -> tuple[dict[str, Any] | None, int, bool]:
        """Relays the messages of a run and the worker until the run has ended; reports how, if known, and the status.

        A run that has said how it ended, or written its result where it can say nothing any more, has a moment for
        its exit handlers, and is killed then: handlers of libraries with threads that no fork has may wait for ever.
        """
        outcome: dict[str, Any] | None = None
        rest, open_, was_stopped, deadline = b"", True, False, float("inf")
        ended = status = 0
        while True:
            if not ended:
                ended, status = os.waitpid(pid, os.WNOHANG)
            listened: list[Any] = [self._worker, *([said] if open_ else [])]
            wait = 0.0 if ended else _SOON if outcome or not open_ else _POLL
            ready, _, _ = select.select(listened, [], [], wait)
            if self._worker in ready and "stop" in self._receive():
                was_stopped = True
                with suppress(OSError):
                    os.write(stopping, b"x")
            if said in ready:
                new = os.read(said, 1 << 16)
                open_ = bool(new)
                *lines, rest = (rest + new).split(b"\n")
                for line in lines:
                    told = json.loads(line)
                    if "event" in told:
                        outcome, deadline = told, time.monotonic() + _GRACE
                    else:
                        self._say(told)
            elif ended:
                return outcome, os.waitstatus_to_exitcode(status), was_stopped
            if not open_ and deadline == float("inf") and result.exists():
                deadline = time.monotonic() + _GRACE
            if not ended and time.monotonic() > deadline:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def _receive(self) -> dict[str, Any]:
        """The next order; ends everything where the worker is gone."""
        try:
            return dict(json.loads(self._worker.recv_bytes()))
        except (EOFError, OSError):
            end_children()
            os._exit(0)

    def _say(self, what: dict[str, Any]) -> None:
        with suppress(OSError):  # that the worker is gone, the next look tells
            self._worker.send_bytes(json.dumps(what).encode())


def warm_up() -> None:
    """Has this process load what nearly every run needs: loops, what runs write with, what PyTorch imports late."""
    for module in _LATE:
        import_module(module)
    origin()
    with Simulation("e5m10"):
        (torch.ones(2) * torch.ones(2)).uniform_()


def _let_go_of_descriptors(but: int) -> None:
    """Puts nothing in the place of pipes, leases and whatever else the worker has open, but for standard streams."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208  names are all that is wanted
        if (number := int(name)) > _STDERR and number not in (but, nothing):
            with suppress(OSError):
                os.fstat(number)  # that of the listing itself is closed
                os.dup2(nothing, number, inheritable=False)
    os.close(nothing)


def _cut_log(*, while_printed_to: bool) -> None:
    """Keeps the file that a program prints to from filling the disk: the last output is kept.

    What a program prints between the reading of the end and the cut would be lost. So the disk gets back the beginning
    of a file that is printed to, which reads as zeros; when the run has ended, the file is cut. A file on a file system
    without holes is cut at once.
    """
    with suppress(OSError):  # it is no file
        found = os.fstat(_STDERR)
        before = found.st_size - _KEPT_OF_LOG
        if while_printed_to and (found.st_blocks * 512 <= _LARGEST_LOG or _made_hole(_STDERR, before)):
            return
        if found.st_size > _LARGEST_LOG:
            last = os.pread(_STDERR, _KEPT_OF_LOG, before)
            os.ftruncate(_STDERR, 0)
            os.write(_STDERR, f"[roundoff: {before} bytes that were printed before are cut]\n".encode() + last)


def _made_hole(descriptor: int, length: int) -> bool:
    """Whether the first bytes of a file now read as zeros that take no space; nothing else of it changes."""
    if sys.platform != "linux":
        return False
    try:
        fallocate = ctypes.CDLL(None).fallocate
    except AttributeError:  # the C library has none
        return False
    return bool(fallocate(descriptor, _HOLE, ctypes.c_int64(0), ctypes.c_int64(length)) == 0)
