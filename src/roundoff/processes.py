"""Processes that are started by others, and what is left of them: ended with their parent, adopted, ended together."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

_SET_DEATH_SIGNAL, _SET_CHILD_SUBREAPER = 1, 36  # <linux/prctl.h>
_PATIENCE = 5.0  # seconds for processes that start others faster than they are ended


def end_with(parent: int | None) -> None:
    """Has this process killed when its parent ends, however that does; None: no longer."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_SET_DEATH_SIGNAL, signal.SIGKILL if parent else 0)
    if parent and os.getppid() != parent:  # it has ended already
        os._exit(1)


def adopt_orphans() -> None:
    """Makes processes whose parents have ended children of this one, if they descend from it."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, 1)


def end_children() -> None:
    """Kills every child of this process, and, if it adopts orphans, their children in turn, and so on."""
    end = time.monotonic() + _PATIENCE
    while (found := children()) and time.monotonic() < end:
        for pid in found:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        for pid in found:
            with suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        time.sleep(0.001)


def keep_from_children(descriptor: int) -> None:
    """Has processes that this one forks begin with nothing in the place of a descriptor, as with those they execute."""
    parent, kept = os.getpid(), os.fstat(descriptor)

    def put_nothing() -> None:
        with suppress(OSError):
            found = os.fstat(descriptor)
            if os.getpid() != parent and (found.st_dev, found.st_ino) == (kept.st_dev, kept.st_ino):
                nothing = os.open(os.devnull, os.O_RDWR)
                os.dup2(nothing, descriptor, inheritable=False)
                os.close(nothing)

    os.register_at_fork(after_in_child=put_nothing)


def children() -> list[int]:
    """The processes whose parent is this one, also those that have ended and were not waited for."""
    this, found = os.getpid(), []
    for name in os.listdir("/proc"):  # noqa: PTH208  names are all that is wanted
        if name.isdecimal():
            with suppress(OSError, ValueError, IndexError):
                fields = Path(f"/proc/{name}/stat").read_bytes().rpartition(b")")[2].split()
                if int(fields[1]) == this:
                    found.append(int(name))
    return found


def terminals() -> list[int]:
    """Returns the standard streams that are a terminal; asked before it may be gone."""
    return [number for number in range(3) if os.isatty(number)]


def let_go(descriptors: list[int]) -> None:
    """Puts nothing in the place of descriptors, as those of a terminal that was closed, which fail when written to."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in descriptors:
        os.dup2(nothing, number)
    os.close(nothing)


def in_words(status: int) -> str:
    """How a process has ended, by its exit status, negative for the signal that killed it."""
    return f"was killed by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
