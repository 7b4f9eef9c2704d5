"""Writes, reads and locks files for all parts: files appear only complete, and links are not followed by writes.

A folder of results may have been made by anybody, and hold links, pipes and devices in place of files. A write never
follows a link at the file's path, and a read takes only a regular file of a size that this package's files may have.
"""

from __future__ import annotations

import errno
import json
import os
import re
import secrets
import shutil
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from roundoff.errors import FileError, FolderInUseError

LARGEST = 1 << 30
"""The most bytes of a file that is read as a whole."""

_RETRY_SECONDS = 0.1  # seconds
# Flags of open() on every system: Windows lacks the first two, and would change ends of lines without the third.
_FLAGS = sum(getattr(os, name, 0) for name in ("O_NONBLOCK", "O_CLOEXEC", "O_BINARY"))
_TEMPORARY = re.compile(r"\.roundoff-[0-9a-f]{16}\.tmp")


@contextmanager
def atomic_writer(path: str | Path) -> Iterator[IO[bytes]]:
    """Gives a binary file that becomes ``path`` when the block ends without an error.

    The bytes go to a new file with a random name in the same folder, are synced to the disk, and are renamed into
    place: at any moment, after any crash, ``path`` holds the old content or the new, never a part. A link at
    ``path`` is replaced; its target stays as it is.

    Args:
        path: Path of the content; its folder exists.

    Raises:
        FileError: it cannot be written.
    """
    path = Path(path)
    with _temporary(beside=path, target=path) as temporary:
        with temporary.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        # The content is on the disk before the name changes, and the name before this returns.
        temporary.replace(path)
        sync(path.parent)


def create_file(path: Path, content: bytes) -> bool:
    """Makes the file ``path`` with its content in one step; of several processes that try, one succeeds.

    Returns:
        Whether this call created it; False if something exists there.

    Raises:
        FileError: it cannot be written.
    """
    with _temporary(beside=path, target=path) as temporary:
        with temporary.open("xb") as file:
            file.write(content)
        try:
            # A hard link, unlike a rename, fails if something exists, and also does so on NFS.
            os.link(temporary, path)
        except FileExistsError:
            return temporary.stat().st_nlink > 1  # True if this call made it: NFS may repeat a request
    return True


def copy_directory(source: Path, target: Path) -> None:
    """Copies a folder; at any moment ``target`` is complete, and on the disk, or not there.

    The copy is made next to the parent folder of ``target``.

    Raises:
        FileError: it cannot be written, or something exists there.
    """
    with _temporary(beside=target.parent, target=target) as temporary:
        shutil.copytree(source, temporary)
        # Everything in the copy is on the disk before its name is.
        for path in (*temporary.rglob("*"), temporary):
            sync(path)
        temporary.rename(target)
        sync(target.parent)


@contextmanager
def _temporary(*, beside: Path, target: Path) -> Iterator[Path]:
    """Yields a temporary name for a new ``target``; anything that still has the name when the block ends is removed.

    The block must create the file exclusively (mode x), so that nobody can have put a link there.
    """
    if not beside.name:  # such as "." or "/"
        raise FileError(cannot_be_written(target, "Is a directory"))
    temporary = temporary_beside(beside)
    try:
        yield temporary
    except OSError as error:
        # shutil.Error has a list of failures, each with its reason as text.
        reason = error.args[0][0][2] if isinstance(error, shutil.Error) else error.strerror or str(error)
        raise FileError(cannot_be_written(target, reason)) from error
    finally:
        _remove(temporary)


def temporary_beside(path: Path) -> Path:
    """Makes an unpredictable name in the folder of ``path``, which :func:`remove_temporaries` recognizes."""
    return path.with_name(f".roundoff-{secrets.token_hex(8)}.tmp")


def is_temporary(name: str) -> bool:
    """Whether a file or folder of this name is the leftover of a process that was killed while it wrote."""
    return _TEMPORARY.fullmatch(name) is not None


def remove_temporaries(folder: Path) -> None:
    """Removes the leftovers of killed processes from a folder; nobody else may be writing there."""
    for path in filter(lambda path: is_temporary(path.name), folder.iterdir()):
        _remove(path)


def _remove(path: Path) -> None:
    """Removes a file, a link or a folder if possible: a leftover does no harm."""
    with suppress(OSError):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


def cannot_be_written(path: str | Path, reason: str | None) -> str:
    """Makes the message about a file that cannot be written."""
    return f"{path}: cannot be written ({reason}); free space or choose another folder"


def write_bytes(path: str | Path, content: bytes) -> None:
    """Writes ``content`` to ``path`` atomically; see :func:`atomic_writer`."""
    with atomic_writer(path) as file:
        file.write(content)


def write_text(path: str | Path, text: str) -> None:
    """Writes ``text`` (UTF-8) to ``path`` atomically; see :func:`atomic_writer`."""
    write_bytes(path, text.encode())


def write_json(path: str | Path, value: Any) -> None:
    """Writes ``value`` to ``path`` as JSON with sorted keys, atomically; see :func:`atomic_writer`.

    Raises:
        FileError: it cannot be written.
        ValueError: a number is not finite, which JSON cannot represent.
    """
    write_text(path, json_text(value, indent=1, sort_keys=True) + "\n")


def json_text(value: Any, **options: Any) -> str:
    r"""Writes ``value`` as JSON, in ASCII, that :func:`parse_json` reads.

    Halves of surrogate pairs, which are not valid text, are written as their escapes: ``\\ud800``.

    Args:
        value: a value that JSON can represent; keys are text.
        options: arguments of ``json.dumps``.

    Raises:
        ValueError: a number is not finite, which JSON cannot represent.
    """
    text = json.dumps(value, allow_nan=False, **options)  # json.dumps writes half of a pair as "\udXXX"
    return text if "\\ud" not in text else json.dumps(_encodable(value), allow_nan=False, **options)


def encodable(text: str) -> str:
    r"""Replaces halves of surrogate pairs by their escapes, ``\ud800``, so that a file can hold the text."""
    return text.encode(errors="backslashreplace").decode()


def _encodable(value: Any) -> Any:
    if isinstance(value, str):
        return encodable(value)
    if isinstance(value, dict):
        return {_encodable(key): _encodable(part) for key, part in value.items()}
    return [_encodable(part) for part in value] if isinstance(value, (list, tuple)) else value


def open_to_append(path: str | Path) -> IO[bytes]:
    """Opens a file to write at its end; it is made if it is missing.

    Raises:
        OSError: it cannot be written, or is a link or anything else but a regular file.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | getattr(os, "O_NOFOLLOW", 0) | _FLAGS
    try:
        descriptor = os.open(path, flags, 0o666)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise OSError(errno.ELOOP, "is a link", str(path)) from error
        raise
    return _regular_file(descriptor, path, "ab")


def separate(path: str | Path) -> None:
    """Gives a file with other hard links, such as a backup's, a separate copy of the bytes.

    Raises:
        OSError: it cannot be read.
        FileError: it cannot be written.
    """
    try:
        with open_to_read(path) as shared:
            # Appending to the shared bytes would also change the backup.
            if os.fstat(shared.fileno()).st_nlink > 1:
                with atomic_writer(path) as copy:
                    shutil.copyfileobj(shared, copy)
    except FileNotFoundError:
        pass


def open_to_read(path: str | Path) -> IO[bytes]:
    """Opens a file; a link is followed.

    Raises:
        OSError: it cannot be read, or is a pipe, a device or anything else but a regular file.
    """
    # Without O_NONBLOCK, opening a pipe would wait until somebody writes into it.
    return _regular_file(os.open(path, os.O_RDONLY | _FLAGS), path, "rb")


def _regular_file(descriptor: int, path: str | Path, mode: str) -> IO[bytes]:
    kind = os.fstat(descriptor).st_mode
    # Checked on the open file: a check of the path could see another file than the one that is opened.
    if not stat.S_ISREG(kind):
        os.close(descriptor)
        raise OSError(0, "is a directory" if stat.S_ISDIR(kind) else "is not a regular file", str(path))
    return os.fdopen(descriptor, mode)


def read_bytes(path: str | Path, largest: int = LARGEST) -> bytes:
    """Reads the content of a file of at most ``largest`` bytes.

    Raises:
        OSError: it cannot be read, is larger, or is not a regular file.
    """
    with open_to_read(path) as file:
        if os.fstat(file.fileno()).st_size > largest:
            raise OSError(0, f"has more than {largest} bytes", str(path))
        return file.read()


def parse_json(content: bytes) -> Any:
    """Parses JSON text.

    Raises:
        ValueError: it is not JSON, not in UTF-8, or nested deeper than Python can follow.
    """
    try:
        value = json.loads(content.decode("utf-8-sig"))  # editors on Windows add a byte order mark
        if b"\\u" in content:
            json.dumps(value, ensure_ascii=False).encode()  # halves of surrogate pairs are no text
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    return value


def try_json(path: Path) -> tuple[Any, str]:
    """Reads the JSON in a file, which may be damaged or foreign; also returns why it cannot be read.

    The JSON is None if it cannot be read; the reason is empty if it can, or if the file does not exist.
    """
    try:
        return parse_json(read_bytes(path)), ""
    except FileNotFoundError:
        return None, ""
    except OSError as error:
        return None, str(error.strerror)
    except ValueError:
        return None, "is not JSON"


def read_json(path: str | Path) -> Any:
    """Reads the JSON in ``path``.

    Raises:
        FileError: the file is missing, unreadable or no JSON.
    """
    try:
        return parse_json(read_bytes(path))
    except OSError as error:
        raise FileError(f"{path}: cannot be read ({error.strerror})") from error
    except ValueError as error:
        raise FileError(f"{path}: is not JSON ({error}); it was damaged after it was written") from error


def make_directory(path: str | Path) -> Path:
    """Makes ``path`` and its parents if they are missing, and checks that it can be written to.

    Raises:
        FileError: it is not a folder, or this process cannot write to it.
    """
    path = Path(path)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileError(f"{path}: cannot be made a folder ({error.strerror}); choose another path") from error
    if not os.access(path, os.W_OK | os.X_OK):
        raise FileError(f"{path}: no permission to write into this folder; choose another folder")
    return path


def make_directory_inside(root: Path, name: str) -> Path:
    """Makes the folder ``name`` in ``root``; refuses a link, by somebody else, that leads out of ``root``.

    Raises:
        FileError: it is a link to a place outside of ``root``, or cannot be made.
    """
    path = root / name
    target = Path(os.path.realpath(path))  # works also for links that lead to themselves
    if not target.is_relative_to(os.path.realpath(root)):
        raise FileError(
            f"{path}: is a link that leads out of {root}, to {target}; nothing is written there: remove the"
            " link, or, to keep results elsewhere, give that place as the folder"
        )
    return make_directory(path)


def is_name(text: object) -> bool:
    """Whether ``text`` can be the name of a file in a folder, and leads nowhere else."""
    return isinstance(text, str) and text not in ("", ".", "..") and "/" not in text and "\0" not in text


@contextmanager
def directory_lock(path: str | Path, *, wait: bool | float = False) -> Iterator[None]:
    """Keeps every other process out of the folder ``path`` during the block.

    The lock is the operating system's and ends with the process, however that ends.

    Args:
        path: the folder.
        wait: whether to wait until another process releases the lock; a number is the most seconds to wait.

    Raises:
        FolderInUseError: another process holds the lock, also after the wait. A process that is stopped, as by
            Ctrl-Z, holds it until it is continued.
        FileError: the lock file cannot be made, or its file system does not support locks.
    """
    lock = Path(path) / ".lock"
    try:
        file = open_to_append(lock)
    except OSError as error:
        raise FileError(f"{lock}: cannot be written ({error.strerror}); choose another folder") from error
    with file:
        try:
            _lock(file, wait)
        except BlockingIOError as error:
            raise FolderInUseError(
                f"{path}: another process is working in this folder; wait for it or stop it"
            ) from error
        except OSError as error:
            raise FileError(f"{lock}: cannot be locked ({error.strerror}); choose a folder on another disk") from error
        yield


def _lock(file: IO[Any], wait: bool | float) -> None:
    """Locks a file, after waiting if asked to; raises BlockingIOError if another process holds the lock."""
    try:
        import fcntl  # noqa: PLC0415  Windows has none
    except ModuleNotFoundError as error:
        raise OSError(errno.ENOTSUP, "this system has no locks of whole files") from error
    deadline = time.monotonic() + (0 if wait is True else wait)
    while True:
        try:
            # With a limit of time it polls, since flock has no timeout.
            fcntl.flock(file, fcntl.LOCK_EX | (0 if wait is True else fcntl.LOCK_NB))
        except BlockingIOError:
            if time.monotonic() >= deadline:
                raise
            time.sleep(_RETRY_SECONDS)
        else:
            return


def sync(path: Path) -> None:
    """Makes the contents of a file durable, or the new and renamed entries of a folder."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
