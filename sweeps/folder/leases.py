"""Leases on runs, so that sweeps that share a folder never do the same run at the same time.

A lease is a file ``<run>.<n>`` in the sweep's folder ``leases/``. Its first line says who holds it; the second, written
again every few seconds, how far the run is. It is made with its content by a hard link, which fails if it exists: of
several takers one succeeds. An empty lease was given back. One that was abandoned is never replaced, but followed by
the next number, and the highest number counts: a taker that was slow to decide cannot push away a newer holder.

Whether a holder is alive: on the same machine its process is looked up. On another, the lease must not change for
:data:`STALE` seconds of the observer's own stopwatch. No two clocks are ever compared, so none needs to be right.

What the file system must do: hard links, a listing that shows what was made before, and (shared by machines) an opened
file as it was when last closed elsewhere. Local file systems, NFS, Lustre, GPFS and CephFS do.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, final

from roundoff.files import create_file, make_directory, open_to_read, parse_json

HEARTBEAT = 5.0  # seconds between signs of life
STALE = 60.0  # seconds without one, after which a holder on another machine is taken for dead
_LONGEST = 1 << 16  # bytes of a lease; more are none of ours
_ROOM = 256  # bytes of the second line, so that it is overwritten whole


class Holder(NamedTuple):
    """A process, so that it is not taken for another."""

    host: str
    """The name of the process's machine, for people."""
    machine: str
    """The kernel since its start, and the container: within these ``pid`` means something."""
    pid: int
    started: int
    """When, in ticks of that kernel: a later process with the same ``pid`` has another."""


class Held(NamedTuple):
    """The content of a lease.

    Attributes:
        number: the number of the lease.
        holder: who has it; None if it was given back, or cannot be read.
        given_back: whether it was.
        progress: the last note of the holder.
        sign: differs whenever the holder has given a sign of life.
        silence: seconds since the last one by this machine's clock and the file system's, for people only.
    """

    number: int
    holder: Holder | None
    given_back: bool
    progress: dict[str, Any]
    sign: object
    silence: float


def this_process() -> Holder:
    """The process that calls."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    namespace = Path("/proc/self/ns/pid").stat().st_ino
    pid = os.getpid()
    return Holder(socket.gethostname(), f"{boot}/{namespace}", pid, _started(pid) or 0)


def alive(holder: Holder) -> bool | None:
    """Whether a process is; None if it is on another machine, where it cannot be seen."""
    if holder.machine != this_process().machine:
        return None
    return _started(holder.pid) == holder.started


def _started(pid: int) -> int | None:
    """Returns the start time of a process of this machine; None if the process does not exist (any more)."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return None
    return None if fields[0] in (b"Z", b"X") else int(fields[19])


@final
class Lease:
    """A run that this process holds, until it is released or the process ends; see :meth:`take`."""

    def __init__(self, path: Path, on_loss: Callable[[], None]) -> None:
        self._path = path
        self._on_loss = on_loss
        self._next = path.with_suffix(f".{int(path.suffix[1:]) + 1}")
        self._offset = path.stat().st_size - _ROOM
        self._progress: dict[str, Any] = {}
        self._beats = 0
        self._released = threading.Event()
        self._thread = threading.Thread(target=self._keep, daemon=True)
        self._thread.start()

    @classmethod
    def take(cls, folder: Path, run: str, number: int, on_loss: Callable[[], None]) -> Lease | None:
        """Takes a lease, if nobody is faster.

        Args:
            folder: the folder of the leases.
            run: what to hold.
            number: that :meth:`Leases.next_number` has allowed.
            on_loss: is called, in another thread, if this process has been silent so long that another has taken over.

        Raises:
            FileError: it cannot be written.
        """
        path = make_directory(folder) / f"{run}.{number}"
        first = json.dumps(this_process()).encode() + b"\n"
        if not create_file(path, first + b" " * (_ROOM - 1) + b"\n"):
            return None
        numbers = sorted(_numbers(folder)[run])
        if numbers[-1] > number:
            path.unlink(missing_ok=True)
            return None
        for older in numbers[:-1]:
            (folder / f"{run}.{older}").unlink(missing_ok=True)
        return cls(path, on_loss)

    def note(self, progress: dict[str, Any]) -> None:
        """Says how far the run is; shown with the next sign of life."""
        self._progress = progress

    def release(self, *, ended: bool) -> None:
        """Gives the run back.

        Args:
            ended: its result is there, and nobody will want it again.
        """
        self._released.set()
        self._thread.join()
        with contextlib.suppress(OSError):  # this process ends sooner or later, which does it as well
            if ended:
                self._path.unlink()
            else:
                os.truncate(self._path, 0)

    def _keep(self) -> None:
        while not self._released.wait(HEARTBEAT):
            if not self._beat():
                self._on_loss()
                return

    def _beat(self) -> bool:
        """Gives a sign of life; returns whether the lease is still ours."""
        self._beats += 1
        text = json.dumps({"beat": self._beats, **self._progress})
        try:
            if self._next.exists():
                return False
            with self._path.open("r+b") as file:  # which does not bring it back
                file.seek(self._offset)
                file.write(f"{text:<{_ROOM - 1}.{_ROOM - 1}}\n".encode())
        except FileNotFoundError:
            return False
        except OSError as error:  # a server that is away for a moment
            sys.stderr.write(f"roundoff: {self._path}: no sign of life could be given ({error.strerror})\n")
        return True


@final
class Leases:
    """The leases of a sweep, as one observer sees them.

    Args:
        folder: where they are.
        stopwatch: seconds that pass evenly, whatever happens to the clock.
    """

    def __init__(self, folder: Path, stopwatch: Callable[[], float] = time.monotonic) -> None:
        self.folder = folder
        self._stopwatch = stopwatch
        self._seen: dict[str, tuple[object, float]] = {}

    def next_number(self, run: str, numbers: dict[str, list[int]]) -> int | None:
        """The number of the lease that can take a run; None while somebody holds it.

        Args:
            run: the id of the run.
            numbers: from :meth:`numbers`.
        """
        if run not in numbers:
            return 1
        held = self._read(run, max(numbers[run]))
        if held is None:
            return None  # it changes at this moment
        is_alive = alive(held.holder) if held.holder else None
        if held.given_back or is_alive is False:
            return held.number + 1
        if is_alive:
            return None
        now = self._stopwatch()
        sign, since = self._seen.get(run, (None, now))
        if sign != held.sign:
            self._seen[run] = (held.sign, now)
            return None
        return held.number + 1 if now - since >= STALE else None

    def numbers(self) -> dict[str, list[int]]:
        """The numbers of all leases there are, by run."""
        return _numbers(self.folder)

    def all(self) -> Iterator[tuple[str, Held]]:
        """Yields the runs and contents of all leases that are not given back."""
        for run, numbers in self.numbers().items():
            held = self._read(run, max(numbers))
            if held and not held.given_back:
                yield run, held

    def forget(self, run: str) -> None:
        """Removes the remaining leases of a run that has ended."""
        for number in self.numbers().get(run, ()):
            with contextlib.suppress(OSError):  # in the way of nobody
                (self.folder / f"{run}.{number}").unlink()

    def _read(self, run: str, number: int) -> Held | None:
        try:
            with open_to_read(self.folder / f"{run}.{number}") as file:
                content, stat = file.read(_LONGEST), os.fstat(file.fileno())
        except OSError:
            return None
        first, _, second = content.partition(b"\n")
        try:
            host, machine, pid, started = parse_json(first)
            holder = Holder(str(host), str(machine), int(pid), int(started))
        except (ValueError, TypeError, OverflowError):
            holder = None
        try:
            progress = parse_json(second)
        except ValueError:
            progress = {}  # none yet, or it is being written at this moment
        sign = (number, stat.st_mtime_ns, stat.st_ino, content)
        return Held(
            number,
            holder,
            not content,
            progress if isinstance(progress, dict) else {},
            sign,
            time.time() - stat.st_mtime,
        )


def _numbers(folder: Path) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    try:
        names = os.listdir(folder)  # noqa: PTH208  names are all that is wanted, often
    except FileNotFoundError:
        return found
    for name in names:
        run, _, number = name.rpartition(".")
        if number.isdecimal() and not name.startswith("."):
            found.setdefault(run, []).append(int(number))
    return found
