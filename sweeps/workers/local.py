"""Workers as processes of this machine, one thread each."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from typing import IO, TYPE_CHECKING, Any, final

from roundoff.files import open_to_append

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

# One thread a worker: two threads on two busy cores make a small update ten times slower.
_ENVIRONMENT = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}

# -P: without it, a file random.py in the folder that the sweep is started in would be imported as Python's own.
_COMMAND = (sys.executable, "-P", "-m", "roundoff.sweeps.workers.process")


@final
class LocalProcesses:
    """An ``Executor`` on this machine.

    Args:
        limit: processes at a time, at least 1.
        command: starts a worker; for tests.
    """

    tries = 2
    is_local = True

    def __init__(self, limit: int, command: Sequence[str] = _COMMAND) -> None:
        self.limit = limit
        self._command = command

    def start(self, log: Path, say: Callable[[dict[str, Any] | None], None]) -> WorkerProcess:
        """Starts a process."""
        return WorkerProcess(log, say, self._command)

    def close(self) -> None:
        """Nothing is left to be done."""


@final
class WorkerProcess:
    """A process that trains, told what by JSON lines on its standard input; see ``Worker`` in ``pool.py``."""

    def __init__(
        self, log: Path, say: Callable[[dict[str, Any] | None], None], command: Sequence[str] = _COMMAND
    ) -> None:
        self._log = log
        with open_to_append(log) as errors:
            self._process = subprocess.Popen(  # noqa: S603  our own interpreter
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors,
                env={**os.environ, **_ENVIRONMENT},
                start_new_session=True,  # Ctrl-C is for the parent, which tells its workers to stop
            )  # fmt: skip
        threading.Thread(target=self._listen, args=(say,), daemon=True).start()

    def send(self, order: dict[str, Any]) -> None:
        """Gives it a run."""
        try:
            assert self._process.stdin is not None
            self._process.stdin.write(json.dumps(order).encode() + b"\n")
            self._process.stdin.flush()
        except (OSError, ValueError):
            pass  # it has died, which the listener will say, or has been told to stop before

    def stop(self) -> None:
        """Asks it to save a checkpoint and end."""
        self.send({"stop": True})
        _close(self._process.stdin)

    def wait(self, seconds: float) -> None:
        """Waits for its end, and enforces it."""
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        _close(self._process.stdout)

    def death(self) -> str:
        """How it died."""
        code = self._process.wait()
        if code < 0:
            return f"the worker process was killed by {signal.Signals(-code).name}"
        return f"the worker process ended with status {code}; its last words are in {self._log}"

    def _listen(self, say: Callable[[dict[str, Any] | None], None]) -> None:
        assert self._process.stdout is not None
        try:
            for line in self._process.stdout:
                say(json.loads(line))
        except ValueError:
            pass  # a torn last line, or the pipe was closed
        say(None)


def _close(pipe: IO[bytes] | None) -> None:
    try:
        if pipe is not None:
            pipe.close()
    except OSError:
        pass  # the other end is gone, and with it whatever was still to be written
