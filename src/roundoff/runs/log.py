"""Writes and reads the curves of a run: JSON lines, and copies of them as event files of TensorBoard."""

from __future__ import annotations

import math
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Self, final
from zlib import crc32

from roundoff.errors import FileError
from roundoff.files import (
    cannot_be_written,
    json_text,
    make_directory_inside,
    open_to_append,
    open_to_read,
    parse_json,
    read_bytes,
    separate,
)

from .folder import RunDirectory

_TAIL = 4096  # bytes at the end of a file that are read for the last records


@final
class MetricsLog:
    """Appends records to ``metrics.jsonl`` and their numbers to ``tensorboard/``, as a context manager.

    A number that is not finite is written as null, since JSON cannot represent it.

    Args:
        files: Files of the run.
        length: bytes of ``metrics.jsonl`` that are kept; a killed run's records after its checkpoint are cut off.
        step: environment steps at the checkpoint; later points in earlier event files are hidden.
        checksum: the value of :attr:`checksum` at the checkpoint; None if it is not known.

    Attributes:
        checksum: CRC-32 of the bytes written so far.

    Raises:
        FileError: the file is shorter than ``length``, is damaged, or cannot be written.
    """

    def __init__(self, files: RunDirectory, *, length: int, step: int, checksum: int | None = None) -> None:
        self._path = path = files.metrics
        with self._writing():
            separate(path)  # a backup may share its bytes by a hard link
            self._file = open_to_append(path)
            size = os.fstat(self._file.fileno()).st_size
            if size < length:
                self._file.close()
                raise FileError(
                    f"{path}: has {size} bytes, but {length} had been written at the last checkpoint;"
                    " it was cut after the run was interrupted: restore it, or delete the run's folder to start again"
                )
            self.checksum = _checksum(path, length)
            if checksum not in (None, self.checksum):
                self._file.close()
                raise FileError(
                    f"{path}: was changed or damaged after the run was interrupted: restore it, or delete the run's"
                    " folder to start again"
                )
            if size > length:  # records after the checkpoint: the continued run writes them again
                self._file.truncate(length)
                self._file.seek(length)
            self._events = _event_file(make_directory_inside(files.path, files.tensorboard.name))
            if step > 0:  # hides later points in earlier event files
                from tensorboard.compat.proto.event_pb2 import Event, SessionLog  # type: ignore[import-untyped]  # noqa: PLC0415

                self._add_event(Event(step=step + 1, session_log=SessionLog(status=SessionLog.START)))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for file in (self._file, self._events):
            with suppress(OSError):  # every record was flushed, or the error was raised then
                file.close()

    def write(self, kind: str, step: int, values: dict[str, Any]) -> None:
        """Appends one record.

        Args:
            kind: ``"eval"`` or ``"train"``; or ``"eval_in"``, with the quantization as ``in``.
            step: environment steps.
            values: numbers or lists of numbers by name.

        Raises:
            FileError: it cannot be written.
        """
        record = {"kind": kind, "step": step, **{name: _finite(value) for name, value in values.items()}}
        with self._writing():
            line = json_text(record).encode() + b"\n"
            self._file.write(line)
            self.checksum = crc32(line, self.checksum)
            self._file.flush()  # a killed process loses nothing; a power failure may lose records, see `synced_length`
            self._write_event(f"{kind}/{values['in']}" if "in" in values else kind, step, values)

    def synced_length(self) -> int:
        """Syncs the file to the disk; returns the bytes written so far."""
        with self._writing():
            os.fsync(self._file.fileno())
        return self._file.tell()

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise FileError(cannot_be_written(self._path, error.strerror)) from error

    def _write_event(self, kind: str, step: int, values: dict[str, Any]) -> None:
        from tensorboard.compat.proto.event_pb2 import Event  # noqa: PLC0415
        from tensorboard.compat.proto.summary_pb2 import Summary  # type: ignore[import-untyped]  # noqa: PLC0415

        points = [
            Summary.Value(tag=f"{kind}/{name}", simple_value=value)
            for name, value in values.items()
            if isinstance(value, int | float)
        ]
        self._add_event(Event(step=step, summary=Summary(value=points)))

    def _add_event(self, event: Any) -> None:
        event.wall_time = time.time()
        self._events.write(event.SerializeToString())
        self._events.flush()


def _checksum(path: Path, length: int) -> int:
    """Computes the CRC-32 of the given number of bytes at the beginning of a file."""
    checksum = 0
    with open_to_read(path) as file:
        while length > 0 and (part := file.read(min(length, 1 << 20))):
            checksum = crc32(part, checksum)
            length -= len(part)
    return checksum


@final
class NoLog:
    """The empty log of a learner that follows another: its curves are the leader's."""

    checksum = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Does nothing: nothing is open."""

    def write(self, kind: str, step: int, values: dict[str, Any]) -> None:
        """Writes nothing."""

    def synced_length(self) -> int:
        """Returns 0: nothing was written."""
        return 0


def _event_file(directory: Path) -> Any:
    """Opens a new event file, written without a thread: errors in the thread of TensorBoard's writer would be lost."""
    from tensorboard.compat.proto.event_pb2 import Event  # noqa: PLC0415  slow
    from tensorboard.summary.writer.record_writer import (  # type: ignore[import-untyped]  # noqa: PLC0415
        RecordWriter,
    )

    # TensorBoard reads event files in the order of their names.
    name = f"events.out.tfevents.{int(time.time()):010d}.{socket.gethostname()}.{os.getpid()}.{time.monotonic_ns()}"
    writer = RecordWriter((directory / name).open("xb"))
    writer.write(Event(wall_time=time.time(), file_version="brain.Event:2").SerializeToString())
    return writer


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return value


def last_records(path: Path, names: dict[str, str]) -> dict[str, Any]:
    """Reads the step of the last complete record, and the last values of some names.

    Args:
        path: Path of ``metrics.jsonl``, which may be written at this moment.
        names: the name of each value in records, by its new name.
    """
    values: dict[str, Any] = {}
    try:
        with open_to_read(path) as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL))
            lines = file.read(_TAIL).split(b"\n")[:-1]
    except OSError:
        return values
    for line in lines:
        try:
            record = parse_json(line)
            values["step"] = record["step"]
        except (ValueError, KeyError, TypeError):
            continue  # the first line is incomplete
        values |= {new: record[logged] for new, logged in names.items() if logged in record}
    return values


def read_log(path: Path, warnings: list[str]) -> bytes:
    """Reads ``metrics.jsonl``; returns nothing if the run has not begun, or, with a warning, if it cannot be read."""
    try:
        return read_bytes(path)
    except FileNotFoundError:
        return b""
    except OSError as error:
        warnings.append(f"{path}: {error.strerror}; left out")
        return b""


def damaged_line_warning(path: Path, number: int, count: int) -> str:
    """Makes the warning about a line of ``metrics.jsonl`` that is not a record; the last one is an incomplete write."""
    problem = "is torn (the run was killed as it wrote)" if number == count else "is damaged"
    return f"{path}:{number}: this line {problem}; left out"
