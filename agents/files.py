"""Files that are either complete or not there: atomic writes, checked reads, and the lock on a folder."""

from __future__ import annotations

import fcntl
import json
import os
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from roundoff.agents.errors import FileError

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def atomic_writer(path: str | Path) -> Iterator[IO[bytes]]:
    """Gives a binary file that becomes ``path`` when the block ends without an error.

    The bytes go to a temporary file beside it, are synced to the disk, and are renamed into place: at any moment,
    after any crash, ``path`` holds the old content or the new, never a part. One writer at a time per path.

    Args:
        path: where the content is to stand; its folder exists.

    Raises:
        FileError: it cannot be written.
    """
    path = Path(path)
    temporary = path.with_name(f".{path.name}.tmp")  # a fixed name: what a killed run left is overwritten
    try:
        with temporary.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        sync(path.parent)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise FileError(cannot_be_written(path, error.strerror)) from error
        raise


def cannot_be_written(path: str | Path, reason: str | None) -> str:
    """The message about a file that cannot be written."""
    return f"{path}: cannot be written ({reason}); free space or choose another folder"


def write_text(path: str | Path, text: str) -> None:
    """Writes ``text`` (UTF-8) to ``path`` atomically; see :func:`atomic_writer`."""
    with atomic_writer(path) as file:
        file.write(text.encode())


def write_json(path: str | Path, value: Any) -> None:
    """Writes ``value`` to ``path`` as JSON with sorted keys, atomically; see :func:`atomic_writer`.

    Raises:
        FileError: it cannot be written.
        ValueError: a number is not finite; JSON has no such numbers.
    """
    write_text(path, json.dumps(value, indent=1, sort_keys=True, allow_nan=False) + "\n")


def read_json(path: str | Path) -> Any:
    """Reads the JSON in ``path``.

    Raises:
        FileError: the file is missing, unreadable or no JSON.
    """
    try:
        return json.loads(Path(path).read_bytes())
    except OSError as error:
        raise FileError(f"{path}: cannot be read ({error.strerror})") from error
    except ValueError as error:
        raise FileError(f"{path}: is not JSON ({error}); it was damaged after it was written") from error


def make_directory(path: str | Path) -> Path:
    """Makes ``path`` and its parents if they are missing, and checks that it can be written to.

    Raises:
        FileError: it is no folder, or not ours to write to.
    """
    path = Path(path)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileError(f"{path}: cannot be made a folder ({error.strerror}); choose another one") from error
    if not os.access(path, os.W_OK | os.X_OK):
        raise FileError(f"{path}: no permission to write into this folder; choose another one")
    return path


@contextmanager
def directory_lock(path: str | Path, *, wait: bool = False) -> Iterator[None]:
    """Keeps every other process out of the folder ``path`` for the length of the block.

    The lock is the operating system's and ends with the process, however that ends.

    Args:
        path: the folder.
        wait: until another process that holds it has given it back.

    Raises:
        FileError: another process holds it, or the lock file cannot be made.
    """
    lock = Path(path) / ".lock"
    try:
        file = lock.open("ab")
    except OSError as error:
        raise FileError(f"{lock}: cannot be written ({error.strerror}); choose another folder") from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except OSError as error:
            raise FileError(f"{path}: another process is working in this folder; wait for it or stop it") from error
        yield


def sync(path: Path) -> None:
    """Makes what was written to a file durable, or what was made or renamed in a folder."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
