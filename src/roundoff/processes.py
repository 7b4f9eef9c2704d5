"""Starts child processes, waits for them and ends them, also with their parent, and describes their end."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from multiprocessing import Pipe
from pathlib import Path
from typing import IO, TYPE_CHECKING, Self, final

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

GRACE = 5.0
"""Seconds that a process has to end by itself."""
ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}
"""Variables that keep a process to one thread: two on two busy cores make a small update ten times slower."""
_SET_DEATH_SIGNAL, _SET_CHILD_SUBREAPER = 1, 36  # <linux/prctl.h>
_TRIES, _BETWEEN_TRIES = 10, 0.11  # Linux accepts a change of an autogroup every 0.1 seconds
_PATIENCE = 5.0  # seconds for ending children that keep starting new ones


@final
class ChildProcess:
    """A process in a separate session: Ctrl-C goes to the parent, which decides when its children stop.

    Args:
        command: the command to run.
        descriptors: File descriptors that the process inherits.
        environment: variables in addition to this process's.
        stdin: its standard input, as ``subprocess.Popen`` takes it; nothing by default.
        stdout: its standard output; this process's by default.
        stderr: its standard error; this process's by default.

    Attributes:
        pid: its process id.
        stdin: this end of its standard input, if that is a pipe.
        stdout: this end of its standard output, if that is a pipe.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        descriptors: Sequence[int] = (),
        environment: Mapping[str, str] | None = None,
        stdin: int = subprocess.DEVNULL,
        stdout: int | IO[bytes] | None = None,
        stderr: int | IO[bytes] | None = None,
    ) -> None:
        self._process = subprocess.Popen(  # noqa: S603  our own interpreter, or what the user named
            command, pass_fds=descriptors, env={**os.environ, **(environment or {})}, start_new_session=True,
            stdin=stdin, stdout=stdout, stderr=stderr,
        )  # fmt: skip
        self.pid, self.stdin, self.stdout = self._process.pid, self._process.stdin, self._process.stdout
        _adjust_session_niceness(self.pid)

    @classmethod
    def asked_through_socket(
        cls, module: str, *arguments: str, descriptors: Sequence[int] = (), environment: Mapping[str, str] | None = None
    ) -> tuple[Self, Connection]:
        """Starts a module with a socket as its first argument; also returns this end: closing it ends the process.

        The process can import the same modules as this one. Output of libraries there goes to standard error.
        """
        parent_end, child_end = Pipe()
        # An empty entry means the current folder, which the child may change.
        path = {"PYTHONPATH": os.pathsep.join(path or str(Path.cwd()) for path in sys.path)}
        with child_end:  # closed here: otherwise reading would not end with the child
            child = cls(
                [*command_of(module), str(child_end.fileno()), *arguments],
                descriptors=(child_end.fileno(), *descriptors),
                environment={**path, **(environment or {})},
                stdout=2,
            )
        return child, parent_end

    def status(self, seconds: float | None = 0.0) -> int | None:
        """Returns the exit status, negative for the signal that killed it; None while it lives.

        Args:
            seconds: the most seconds to wait for its end; None: no limit.
        """
        try:
            return self._process.poll() if seconds == 0 else self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None

    def ask_to_end(self) -> None:
        """Sends it SIGTERM."""
        self._process.terminate()

    def end(self, seconds: float = GRACE, *, session: bool = False) -> int:
        """Waits for its end, and kills it after some seconds; returns its exit status.

        Args:
            seconds: the time until it is killed.
            session: whether the processes that it has started are killed with it.
        """
        if (status := self.status(max(0.0, seconds))) is not None:
            return status
        with suppress(ProcessLookupError):
            (os.killpg if session else os.kill)(self.pid, signal.SIGKILL)
        return self._process.wait()

    def death(self) -> str:
        """Describes how the process has ended."""
        return in_words(self._process.wait())


def command_of(module: str) -> tuple[str, ...]:
    """Returns the command that runs a module by this interpreter.

    Without -P, a file random.py in the folder that this process was started in would be imported as Python's own.
    """
    return (sys.executable, "-P", "-m", module)


def begin_session() -> None:
    """Puts this process into a new session, with the priority of this process."""
    os.setsid()
    _adjust_session_niceness(os.getpid())


def _adjust_session_niceness(pid: int) -> None:
    """Gives the session of a process the niceness of the process.

    Linux with autogroups shares processors among sessions first; niceness counts only within a session (sched(7)).
    """
    for _ in range(_TRIES if sys.platform == "linux" else 0):
        try:
            if (niceness := os.getpriority(os.PRIO_PROCESS, pid)) > 0:
                Path(f"/proc/{pid}/autogroup").write_text(str(niceness), encoding="ascii")
            break
        except BlockingIOError:  # too soon after the last change
            time.sleep(_BETWEEN_TRIES)
        except OSError:  # there are no autogroups, or the process has ended
            break


def end_with(parent: int | None) -> None:
    """Makes the system kill this process when its parent ends, in whatever way; None undoes that."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_SET_DEATH_SIGNAL, signal.SIGKILL if parent else 0)
    if parent and os.getppid() != parent:  # it has ended already
        os._exit(1)


def adopt_orphans() -> None:
    """Makes orphaned processes children of this one, if they descend from it."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, 1)


def end_children() -> None:
    """Kills every child of this process, and, if it adopts orphans, their children in turn, and so on."""
    deadline = time.monotonic() + _PATIENCE
    while (pids := children()) and time.monotonic() < deadline:  # children of a killed child arrive here as orphans
        for pid in pids:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        for pid in pids:
            with suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        time.sleep(0.001)


def keep_from_children(descriptor: int) -> None:
    """Makes forked processes replace a descriptor by /dev/null, so that they do not keep it open."""
    parent, original = os.getpid(), os.fstat(descriptor)

    def replace_descriptor() -> None:
        with suppress(OSError):
            current = os.fstat(descriptor)
            # The descriptor's number may have been used again for another file.
            if os.getpid() != parent and (current.st_dev, current.st_ino) == (original.st_dev, original.st_ino):
                null = os.open(os.devnull, os.O_RDWR)
                os.dup2(null, descriptor, inheritable=False)
                os.close(null)

    os.register_at_fork(after_in_child=replace_descriptor)


def children() -> list[int]:
    """Returns the child processes of this one, including ended processes that were not waited for."""
    parent, pids = os.getpid(), []
    for name in os.listdir("/proc"):  # noqa: PTH208  names are all that is wanted
        if name.isdecimal():
            with suppress(OSError, ValueError, IndexError):
                # proc(5): after the name, which may contain anything, in parentheses come the state and the parent.
                fields = Path(f"/proc/{name}/stat").read_bytes().rpartition(b")")[2].split()
                if int(fields[1]) == parent:
                    pids.append(int(name))
    return pids


def terminals() -> list[int]:
    """Returns the standard streams that are a terminal; to be called before the terminal may be closed."""
    return [number for number in range(3) if os.isatty(number)]


def let_go(descriptors: list[int]) -> None:
    """Redirects descriptors to /dev/null, such as a closed terminal's, where writes would fail."""
    null = os.open(os.devnull, os.O_RDWR)
    for number in descriptors:
        os.dup2(null, number)
    os.close(null)


def in_words(status: int) -> str:
    """Describes how a process has ended, by its exit status, negative for the signal that killed it."""
    if status >= 0:
        return f"ended with status {status}"
    is_known = -status in set(signal.Signals)
    return f"was killed by {signal.Signals(-status).name if is_known else f'signal {-status}'}"
