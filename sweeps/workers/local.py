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

_POLL = 0.5  # seconds between two looks at whether a worker lives
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
        separate(log)
        with open_to_append(log) as errors:
            self._process = ChildProcess(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, environment=ONE_THREAD
            )
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
        assert self._process.stdin is not None
        with suppress(OSError):  # the other end is gone, and with it whatever was still to be written
            self._process.stdin.close()

    def wait(self, seconds: float) -> None:
        """Waits for its end, and enforces it."""
        self._process.end(seconds)

    def death(self) -> str:
        """Describes how the process died."""
        how = f"the worker process {self._process.death()}"
        killed = (self._process.status() or 0) < 0
        return how if killed else f"{how}; its last words are in {self._log}"

    def _listen(self, say: Callable[[dict[str, Any] | None], None]) -> None:
        """Passes on its messages until it ends, even if a child process of it keeps the pipe open."""
        assert self._process.stdout is not None
        pipe, rest = self._process.stdout.fileno(), b""
        while True:
            ended = self._process.status() is not None
            if select.select([pipe], [], [], 0.0 if ended else _POLL)[0]:
                said = os.read(pipe, 1 << 16)
                *lines, rest = (rest + said).split(b"\n")
                for line in lines:
                    say(json.loads(line))
                ended = not said
            if ended:
                break
        say(None)
        self._process.stdout.close()
