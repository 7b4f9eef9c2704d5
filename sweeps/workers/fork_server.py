"""Runs of a program, each in a separate process, forked from a process that only imports the program.

A program may change anything of its process: the working directory, threads, settings of PyTorch, streams,
descriptors. So a run gets a process that begins like every other, in a separate session, and its remaining
descendants are ended with it. Importing PyTorch and the program takes seconds, a fork hundredths.

There are three processes: the worker, which holds the lease and exchanges messages with the sweep; the fork server,
which only imports the program; and the process of the run.
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

_POLL = 0.1  # seconds between two checks of a request to stop
_GRACE = 5.0  # seconds that a program has for its exit handlers
_SHORT_POLL = 0.005  # seconds between two checks of a process that is about to end
_STDERR = 2
_THREADED_LIBRARIES = {"jax", "tensorflow"}
_LATE_IMPORTS = (
    "tensorboard.compat.proto.event_pb2", "tensorboard.compat.proto.summary_pb2",
    "tensorboard.summary.writer.record_writer",
)  # fmt: skip
"""Modules that are imported when a run first writes something."""
_LARGEST_LOG = 32 << 20
_KEPT_OF_LOG = 1 << 20
_PUNCH_HOLE = 3  # FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, of linux/falloc.h


@final
class ForkServer:
    """The process that runs of a program are forked from, as the worker sees it.

    Args:
        program: to import.
        modules: modules to import before the program, for the formats that they register.
        imports_once: whether the fork server imports modules and program, once; else each run imports them.

    Attributes:
        is_alive: False once it has ended.
    """

    def __init__(self, program: Program, modules: Sequence[str], *, imports_once: bool = True) -> None:
        adopt_orphans()  # runs whose fork server was killed become children of this process
        ours, theirs = socket.socketpair()
        parent = os.getpid()
        self._pid = os.fork()
        if not self._pid:
            try:
                os.close(ours.detach())
                worker = Connection(theirs.detach())
                _ForkServerProcess(worker, program, modules, imports_once=imports_once).serve(parent)
            finally:
                os._exit(1)
        theirs.close()
        self._connection = Connection(ours.detach())
        self._run = 0
        self.is_alive = True

    def run(self, order: dict[str, Any], on_progress: Callable[[Progress], None], stop: StopRequest) -> dict[str, Any]:
        """Carries out a run; see :func:`~.programs.guest.run_child` for the order.

        Returns:
            ``{"event": ...}``: ``ended``, ``failed`` with a ``reason``, ``stopped``, ``died`` with a ``reason``; or
            ``unfit``: no run can be forked from a process that has imported this program.
        """
        stop_sent = False
        try:
            self._send({"run": order})
            while True:
                if stop.made and not stop_sent:
                    stop_sent = True
                    self._send({"stop": True})
                if not self._connection.poll(_POLL):
                    _cut_log(while_printed_to=True)
                    continue
                message = json.loads(self._connection.recv_bytes())
                if "event" in message:
                    self._run = 0
                    _cut_log(while_printed_to=False)
                    return dict(message)
                if "pid" in message:
                    self._run = message["pid"]
                else:
                    progress = message["progress"]
                    on_progress(Progress(progress["step"], None, progress["return"]))
        except (EOFError, OSError):
            return {"event": "died", "reason": f"the process of the program {in_words(self.end())}"}

    def abandon(self) -> None:
        """Kills the run at once: it may write nothing more."""
        with suppress(ProcessLookupError):
            os.kill(self._run or self._pid, signal.SIGKILL)

    def end(self) -> int:
        """Ends the process, and all that descend from it; returns its exit status."""
        self.is_alive = False
        self._connection.close()  # the process then ends its run and itself
        deadline = time.monotonic() + _GRACE
        while not (waited := os.waitpid(self._pid, os.WNOHANG))[0]:
            if time.monotonic() > deadline:
                os.kill(self._pid, signal.SIGKILL)
            time.sleep(_SHORT_POLL)
        end_children()
        _cut_log(while_printed_to=False)
        return os.waitstatus_to_exitcode(waited[1])

    def _send(self, message: dict[str, Any]) -> None:
        self._connection.send_bytes(json.dumps(message).encode())


@final
class _ForkServerProcess:
    """The fork server's side of the connection to :class:`ForkServer`."""

    def __init__(self, worker: Connection, program: Program, modules: Sequence[str], *, imports_once: bool) -> None:
        self._worker, self._program, self._modules, self._imports_once = worker, program, modules, imports_once

    def serve(self, parent: int) -> NoReturn:
        """Forks a run for each order, until the worker closes the connection."""
        begin_session()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)  # the worker decides when to stop
        _close_descriptors(self._worker.fileno())
        adopt_orphans()
        end_with(parent)  # as long as it is busy importing
        can_fork = self._import()
        end_with(None)
        while True:
            order = self._receive()
            if "run" not in order:
                continue
            if not can_fork:
                self._send({"event": "unfit"})
                continue
            self._run_fork(order["run"])

    def _import(self) -> bool:
        """Imports what every run needs; returns whether runs can be forked from this process afterwards."""
        torch.set_num_threads(1)  # further threads do not survive a fork; each run sets its own number
        if not self._imports_once:
            return True
        for module in self._modules:
            import_module(module)
        with suppress(SweepError):  # each run reports the error
            self._program.load()
            self._program.origin()
        warm_up()
        # Neither threads nor a GPU's context survive a fork. Lost idle threads of libraries in C++, such as Arrow's,
        # do no harm; lost threads of these libraries do.
        threaded = threading.active_count() > 1 or bool(sys.modules.keys() & _THREADED_LIBRARIES)
        return not (threaded or torch.cuda.is_initialized())  # type: ignore[no-untyped-call]

    def _run_fork(self, order: dict[str, Any]) -> None:
        """Forks a run, watches it until it has ended, ends its remaining children, and reports its outcome."""
        message_reader, message_writer = os.pipe()
        stop_reader, stop_writer = os.pipe()
        parent = os.getpid()
        pid = os.fork()
        if not pid:
            try:
                for descriptor in (message_reader, stop_writer, self._worker.fileno()):
                    os.close(descriptor)
                for module in self._modules:
                    import_module(module)
                run_child(self._program, order, message_writer, stop_reader, parent)
            finally:
                os._exit(1)
        os.close(message_writer)
        os.close(stop_reader)
        self._send({"pid": pid})
        result = RunDirectory(order["directory"]).result
        outcome, status, was_stopped = self._watch(pid, message_reader, stop_writer, result)
        os.close(message_reader)
        os.close(stop_writer)
        end_children()
        if result.exists():  # even if the run could not report it
            outcome = {"event": "ended"}
        elif outcome is None and was_stopped:
            outcome = {"event": "stopped", "step": 0, "saved": True}
        elif outcome is None:
            outcome = {"event": "died", "reason": f"the process of the program {in_words(status)}"}
        self._send(outcome)

    def _watch(self, pid: int, messages: int, stop: int, result: Path) -> tuple[dict[str, Any] | None, int, bool]:
        """Relays messages between a run and the worker until the run has ended.

        A run that has reported its outcome, or has written its result after closing the pipe, gets a few seconds for
        its exit handlers, and is killed then: handlers that wait for threads lost in the fork would wait for ever.
        Returns the reported outcome, if any, the exit status, and whether the worker requested a stop.
        """
        outcome: dict[str, Any] | None = None
        unread, pipe_is_open, was_stopped, deadline = b"", True, False, float("inf")
        ended = status = 0
        while True:
            if not ended:
                ended, status = os.waitpid(pid, os.WNOHANG)
            sources: list[Any] = [self._worker, *([messages] if pipe_is_open else [])]
            timeout = 0.0 if ended else _SHORT_POLL if outcome or not pipe_is_open else _POLL
            ready, _, _ = select.select(sources, [], [], timeout)
            if self._worker in ready and "stop" in self._receive():
                was_stopped = True
                with suppress(OSError):
                    os.write(stop, b"x")
            if messages in ready:
                data = os.read(messages, 1 << 16)
                pipe_is_open = bool(data)
                *lines, unread = (unread + data).split(b"\n")
                for line in lines:
                    message = json.loads(line)
                    if "event" in message:
                        outcome, deadline = message, time.monotonic() + _GRACE
                    else:
                        self._send(message)
            elif ended:
                return outcome, os.waitstatus_to_exitcode(status), was_stopped
            if not pipe_is_open and deadline == float("inf") and result.exists():
                deadline = time.monotonic() + _GRACE
            if not ended and time.monotonic() > deadline:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def _receive(self) -> dict[str, Any]:
        """Returns the next order; ends this process and its children if the worker has died."""
        try:
            return dict(json.loads(self._worker.recv_bytes()))
        except (EOFError, OSError):
            end_children()
            os._exit(0)

    def _send(self, message: dict[str, Any]) -> None:
        with suppress(OSError):  # the worker has died, which `_receive` notices
            self._worker.send_bytes(json.dumps(message).encode())


def warm_up() -> None:
    """Loads what nearly every run needs: compiled loops, writers of logs, and what PyTorch imports late."""
    for module in _LATE_IMPORTS:
        import_module(module)
    origin()
    with Simulation("e5m10"):
        (torch.ones(2) * torch.ones(2)).uniform_()


def _close_descriptors(kept: int) -> None:
    """Replaces the descriptors inherited from the worker (pipes, leases) by /dev/null, but for standard streams."""
    null = os.open(os.devnull, os.O_RDWR)
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208  only the names are needed
        if (number := int(name)) > _STDERR and number not in (kept, null):
            with suppress(OSError):
                os.fstat(number)  # fails for the descriptor of the listing, which is closed by now
                os.dup2(null, number, inheritable=False)
    os.close(null)


def _cut_log(*, while_printed_to: bool) -> None:
    """Limits the file that a program prints to: its beginning is dropped.

    Output printed while the file is being rewritten would be lost. So during a run the beginning becomes a hole, which
    takes no space and reads as zeros, and the file is rewritten after the run. On a file system without holes it is
    rewritten at once.
    """
    with suppress(OSError):  # standard error is not a file
        status = os.fstat(_STDERR)
        excess = status.st_size - _KEPT_OF_LOG
        if while_printed_to and (status.st_blocks * 512 <= _LARGEST_LOG or _punch_hole(_STDERR, excess)):
            return
        if status.st_size > _LARGEST_LOG:
            tail = os.pread(_STDERR, _KEPT_OF_LOG, excess)
            os.ftruncate(_STDERR, 0)
            os.write(_STDERR, f"[roundoff: {excess} bytes that were printed before are cut]\n".encode() + tail)


def _punch_hole(descriptor: int, length: int) -> bool:
    """Frees the disk space of the first bytes of a file, which then read as zeros; returns whether that worked."""
    if sys.platform != "linux":
        return False
    try:
        fallocate = ctypes.CDLL(None).fallocate
    except AttributeError:  # the C library has none
        return False
    return bool(fallocate(descriptor, _PUNCH_HOLE, ctypes.c_int64(0), ctypes.c_int64(length)) == 0)
