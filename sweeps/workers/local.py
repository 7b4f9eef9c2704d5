"""Workers as processes of this machine, one thread each."""

from __future__ import annotations

import json
import os
import select
import subprocess
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, final

from roundoff.files import open_to_append, separate
from roundoff.processes import ONE_THREAD, ChildProcess, command_of

_POLL = 0.5  # seconds between two checks that a worker is alive
_COMMAND = command_of("roundoff.sweeps.workers.process")


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
        self.limit, self._command = limit, command

    def start(self, log: Path, on_message: Callable[[dict[str, Any] | None], None]) -> WorkerProcess:
        """Starts a process."""
        return WorkerProcess(log, on_message, self._command)

    def close(self) -> None:
        """Does nothing: processes end with their workers."""


@final
class WorkerProcess:
    """A process that trains runs that it reads from its standard input; see ``Worker`` in ``pool.py``."""

    def __init__(
        self, log: Path, on_message: Callable[[dict[str, Any] | None], None], command: Sequence[str] = _COMMAND
    ) -> None:
        self._log = log
        separate(log)
        with open_to_append(log) as errors:
            self._process = ChildProcess(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, environment=ONE_THREAD
            )
        threading.Thread(target=self._listen, args=(on_message,), daemon=True).start()

    def send(self, order: dict[str, Any]) -> None:
        """Gives it a run."""
        try:
            assert self._process.stdin is not None
            self._process.stdin.write(json.dumps(order).encode() + b"\n")
            self._process.stdin.flush()
        except (OSError, ValueError):
            pass  # it has died, which the listener reports, or was asked to stop before

    def stop(self) -> None:
        """Asks it to save a checkpoint and end."""
        self.send({"stop": True})
        assert self._process.stdin is not None
        with suppress(OSError):  # the worker has died
            self._process.stdin.close()

    def wait(self, seconds: float) -> None:
        """Waits for its end, and enforces it."""
        self._process.end(seconds)

    def death(self) -> str:
        """Describes how the process died."""
        description = f"the worker process {self._process.death()}"
        killed = (self._process.status() or 0) < 0
        return description if killed else f"{description}; its last output is in {self._log}"

    def _listen(self, on_message: Callable[[dict[str, Any] | None], None]) -> None:
        """Passes its messages to ``on_message`` until it ends, even if a child process of it keeps the pipe open."""
        assert self._process.stdout is not None
        pipe, unread = self._process.stdout.fileno(), b""
        while True:
            ended = self._process.status() is not None
            if select.select([pipe], [], [], 0.0 if ended else _POLL)[0]:
                data = os.read(pipe, 1 << 16)
                *lines, unread = (unread + data).split(b"\n")
                for line in lines:
                    on_message(json.loads(line))
                ended = not data
            if ended:
                break
        on_message(None)
        self._process.stdout.close()
