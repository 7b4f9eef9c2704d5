"""Leases on runs, so that sweeps that share a folder never do the same run at the same time.

A lease is a file ``<run>.<n>`` in the sweep's folder ``leases/``. Its first line names its holder; the second, written
again every few seconds, is the progress of the run. It is made with its content by a hard link, which fails if the file
exists, so that only one of several takers succeeds. An empty lease was given back. An abandoned lease is not replaced,
but followed by the next number, and the highest number counts: a slow taker cannot push away a newer holder.

A holder on the same machine is dead if its process does not exist. A holder on another machine counts as dead if the
lease has not changed for :data:`STALE` seconds of the observer's own stopwatch. No two clocks are ever compared.

The file system needs hard links, listings with all files made before, and (shared by machines) an opened file must have
the content of its last close elsewhere. Local file systems, NFS, Lustre, GPFS and CephFS do that.
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
STALE = 60.0  # seconds without a sign of life, after which a holder on another machine counts as dead
_LONGEST = 1 << 16  # bytes of a lease; a longer file was not written by this module
_PROGRESS_BYTES = 256  # length of the second line, so that it is overwritten as a whole


class Holder(NamedTuple):
    """The identity of a process."""

    host: str
    """The name of the process's machine, for people."""
    machine: str
    """The boot of the kernel, and the container: ``pid`` is unique within these."""
    pid: int
    started: int
    """The start time in ticks of that kernel: a later process with the same ``pid`` has another one."""


class LeaseContent(NamedTuple):
    """The content of a lease.

    Attributes:
        number: the number of the lease.
        holder: the process that holds it; None if it was given back, or cannot be read.
        given_back: whether it was given back.
        progress: the last progress that the holder noted.
        sign: a value that changes with each sign of life.
        silence: seconds since the last sign of life by this machine's clock and the file system's, for people only.
    """

    number: int
    holder: Holder | None
    given_back: bool
    progress: dict[str, Any]
    sign: object
    silence: float


def this_process() -> Holder:
    """Identifies the calling process."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    namespace = Path("/proc/self/ns/pid").stat().st_ino
    pid = os.getpid()
    return Holder(socket.gethostname(), f"{boot}/{namespace}", pid, _started(pid) or 0)


def is_alive(holder: Holder) -> bool | None:
    """Whether a process is alive; None if it is on another machine, where it cannot be looked up."""
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
        self._path, self._on_loss = path, on_loss
        self._next_lease = path.with_suffix(f".{int(path.suffix[1:]) + 1}")
        self._offset = path.stat().st_size - _PROGRESS_BYTES
        self._progress: dict[str, Any] = {}
        self._heartbeat_count = 0
        self._released = threading.Event()
        self._thread = threading.Thread(target=self._send_heartbeats, daemon=True)
        self._thread.start()

    @classmethod
    def take(cls, folder: Path, run: str, number: int, on_loss: Callable[[], None]) -> Lease | None:
        """Takes a lease, if nobody is faster.

        Args:
            folder: the folder of the leases.
            run: the id of the run.
            number: the number from :meth:`Leases.next_number`.
            on_loss: called, in another thread, if another process has taken over after a long silence of this one.

        Raises:
            FileError: it cannot be written.
        """
        path = make_directory(folder) / f"{run}.{number}"
        first = json.dumps(this_process()).encode() + b"\n"
        if not create_file(path, first + b" " * (_PROGRESS_BYTES - 1) + b"\n"):
            return None
        numbers = sorted(_lease_numbers(folder)[run])
        if numbers[-1] > number:
            path.unlink(missing_ok=True)
            return None
        for older in numbers[:-1]:
            (folder / f"{run}.{older}").unlink(missing_ok=True)
        return cls(path, on_loss)

    def note(self, progress: dict[str, Any]) -> None:
        """Records the progress of the run; written with the next sign of life."""
        self._progress = progress

    def release(self, *, ended: bool) -> None:
        """Gives the lease back.

        Args:
            ended: whether the run has a result, so that nobody will take it again.
        """
        self._released.set()
        self._thread.join()
        with contextlib.suppress(OSError):  # the end of this process also releases the lease
            if ended:
                self._path.unlink()
            else:
                os.truncate(self._path, 0)

    def _send_heartbeats(self) -> None:
        while not self._released.wait(HEARTBEAT):
            if not self._send_heartbeat():
                self._on_loss()
                return

    def _send_heartbeat(self) -> bool:
        """Gives a sign of life; returns whether the lease is still ours."""
        self._heartbeat_count += 1
        text = json.dumps({"beat": self._heartbeat_count, **self._progress})
        try:
            if self._next_lease.exists():
                return False
            with self._path.open("r+b") as file:  # does not recreate a removed lease
                file.seek(self._offset)
                file.write(f"{text:<{_PROGRESS_BYTES - 1}.{_PROGRESS_BYTES - 1}}\n".encode())
        except FileNotFoundError:
            return False
        except OSError as error:  # the server does not answer at this moment
            sys.stderr.write(f"roundoff: {self._path}: no heartbeat could be written ({error.strerror})\n")
        return True


@final
class Leases:
    """The leases of a sweep, as one observer sees them.

    Args:
        folder: the folder of the leases.
        stopwatch: returns seconds that pass evenly, even if the clock is set.
    """

    def __init__(self, folder: Path, stopwatch: Callable[[], float] = time.monotonic) -> None:
        self.folder, self._stopwatch = folder, stopwatch
        self._last_signs: dict[str, tuple[object, float]] = {}

    def next_number(self, run: str, numbers: dict[str, list[int]]) -> int | None:
        """The number of the next lease on a run; None while somebody holds the run.

        Args:
            run: the id of the run.
            numbers: from :meth:`numbers`.
        """
        if run not in numbers:
            return 1
        lease = self._read(run, max(numbers[run]))
        if lease is None:
            return None  # it is being changed at this moment
        holder_lives = is_alive(lease.holder) if lease.holder else None
        if lease.given_back or holder_lives is False:
            return lease.number + 1
        if holder_lives:
            return None
        now = self._stopwatch()
        sign, since = self._last_signs.get(run, (None, now))
        if sign != lease.sign:
            self._last_signs[run] = (lease.sign, now)
            return None
        return lease.number + 1 if now - since >= STALE else None

    def numbers(self) -> dict[str, list[int]]:
        """The numbers of all leases, by run."""
        return _lease_numbers(self.folder)

    def all(self) -> Iterator[tuple[str, LeaseContent]]:
        """Yields the runs and contents of all leases that are not given back."""
        for run, numbers in self.numbers().items():
            lease = self._read(run, max(numbers))
            if lease and not lease.given_back:
                yield run, lease

    def forget(self, run: str) -> None:
        """Removes the remaining leases of a run that has ended."""
        for number in self.numbers().get(run, ()):
            with contextlib.suppress(OSError):  # a leftover lease does no harm
                (self.folder / f"{run}.{number}").unlink()

    def _read(self, run: str, number: int) -> LeaseContent | None:
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
        return LeaseContent(
            number,
            holder,
            not content,
            progress if isinstance(progress, dict) else {},
            sign,
            time.time() - stat.st_mtime,
        )


def _lease_numbers(folder: Path) -> dict[str, list[int]]:
    numbers: dict[str, list[int]] = {}
    try:
        names = os.listdir(folder)  # noqa: PTH208  called often, and only the names are needed
    except FileNotFoundError:
        return numbers
    for name in names:
        run, _, number = name.rpartition(".")
        if number.isdecimal() and not name.startswith("."):
            numbers.setdefault(run, []).append(int(number))
    return numbers
