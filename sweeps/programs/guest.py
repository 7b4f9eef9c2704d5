"""A run of a program in a separate process, from the fork to the exit, whatever the program does to it."""

from __future__ import annotations

import atexit
import fcntl
import json
import os
import signal
import sys
import threading
import traceback
from contextlib import suppress
from typing import Any, NoReturn, final

from roundoff.errors import FolderInUseError, RoundoffError
from roundoff.processes import begin_session, end_with
from roundoff.runs.metric import Metric

from ...agents import Progress, Stopped, StopRequest, stopping_on_sigterm
from ..subjects.program import Program
from ..user_code import describe_error
from .run import NoMetricError, config_of, run_program

_HIGH = 200  # descriptors from here on are out of the way of what programs close and open


def run_child(program: Program, order: dict[str, Any], message_pipe: int, stop_pipe: int, parent: int) -> NoReturn:
    """Carries out a run in a separate process and session.

    Args:
        program: the program of the run.
        order: ``config``, ``metric`` and ``directory`` of the run.
        message_pipe: a pipe to write JSON lines to: ``{"progress": {...}}``, and at the end ``{"event": ...}`` with
            ``ended``, ``failed`` with a ``reason`` and whether it ``ends_sweep``, or ``stopped`` and whether ``saved``.
        stop_pipe: a pipe to read from; any message asks the run to save and stop.
        parent: the process that forked this one; this one ends with it.
    """
    begin_session()
    end_with(parent)
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGALRM):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    messages, request, stop_descriptor = _MessageWriter(message_pipe), StopRequest(), _duplicate_high(stop_pipe)

    def wait_for_stop() -> None:
        with suppress(OSError):  # closed by the program
            if os.read(stop_descriptor, 1):
                request.make()

    threading.Thread(target=wait_for_stop, daemon=True).start()
    try:
        with stopping_on_sigterm(request):
            outcome = _outcome(program, order, messages, request)
    except KeyboardInterrupt:  # out of patience, or a second signal: ends without saving
        os._exit(128 + signal.SIGTERM)
    messages.send(outcome)
    # Ends the process as the interpreter does, running the program's exit handlers
    try:
        threading._shutdown()  # type: ignore[attr-defined]  # noqa: SLF001  waits for threads
        atexit._run_exitfuncs()  # noqa: SLF001  the interpreter's next step
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
    finally:
        os._exit(0)


def _outcome(program: Program, order: dict[str, Any], messages: _MessageWriter, stop: StopRequest) -> dict[str, Any]:
    """Runs the program; returns its last message, an ``event``."""
    try:
        config = config_of(program, order["config"])
        run_program(config, Metric(**order["metric"]), order["directory"], messages.send_progress, stop)
    except Stopped as stopped:
        return {"event": "stopped", "step": stopped.step, "saved": stopped.saved}
    except FolderInUseError as error:
        return {"event": "in use", "reason": str(error)}
    except RoundoffError as error:
        return {"event": "failed", "reason": str(error), "ends_sweep": isinstance(error, NoMetricError)}
    except KeyboardInterrupt:
        if stop.made:
            raise
        return {"event": "failed", "reason": "KeyboardInterrupt was raised"}
    except BaseException as error:  # noqa: BLE001  a program may raise anything
        with suppress(Exception):  # it may have closed everything
            traceback.print_exception(error)
        return {"event": "failed", "reason": describe_error(error)}
    return {"event": "ended"}


def _duplicate_high(descriptor: int) -> int:
    return fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, _HIGH)


@final
class _MessageWriter:
    """Writes messages as long as the descriptor is unchanged: a program may close it, and open others."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = _duplicate_high(descriptor)
        os.close(descriptor)
        self._pipe, self._process = os.fstat(self._descriptor).st_ino, os.getpid()

    def send(self, message: dict[str, Any]) -> None:
        """Writes one message as a line of JSON."""
        with suppress(OSError):
            if os.fstat(self._descriptor).st_ino == self._pipe:
                os.write(self._descriptor, json.dumps(message).encode() + b"\n")

    def send_progress(self, progress: Progress) -> None:
        """Reports how far the program is."""
        self.send({"progress": {"step": progress.step, "return": progress.last_return}})
