"""Files that are either complete or not there, and never somebody else's: written, read and locked in one way by all.

A folder of results may have been made by anybody, and hold links, pipes and devices in place of files. A write
never follows a link at the path of the file, and a read takes only a regular file of a size that this package's
files may have.
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
"""Bytes of a file that is read as a whole, at most."""

_BETWEEN_TRIES = 0.1  # seconds
# What open() is told on every system: Windows has none of the others, and would change ends of lines.
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
            os.link(temporary, path)
        except FileExistsError:
            return temporary.stat().st_nlink > 1  # it is ours: NFS has asked twice
    return True


def copy_directory(source: Path, target: Path) -> None:
    """Copies a folder; at any moment ``target`` is complete, and on the disk, or not there.

    The copy is made next to the parent folder of ``target``.

    Raises:
        FileError: it cannot be written, or something exists there.
    """
    with _temporary(beside=target.parent, target=target) as temporary:
        shutil.copytree(source, temporary)
        for path in (*temporary.rglob("*"), temporary):
            sync(path)
        temporary.rename(target)
        sync(target.parent)


@contextmanager
def _temporary(*, beside: Path, target: Path) -> Iterator[Path]:
    """Gives a temporary name for a new ``target``; anything that still has the name when the block ends is removed.

    Whoever opens the name must make the file (mode x), or it is an error: nobody can have put a link there.
    """
    if not beside.name:  # such as "." or "/"
        raise FileError(cannot_be_written(target, "Is a directory"))
    temporary = temporary_beside(beside)
    try:
        yield temporary
    except OSError as error:
        # shutil.Error has a list of what went wrong, each with its reason as text.
        reason = error.args[0][0][2] if isinstance(error, shutil.Error) else error.strerror or str(error)
        raise FileError(cannot_be_written(target, reason)) from error
    finally:
        _remove(temporary)


def temporary_beside(path: Path) -> Path:
    """A name in the folder of ``path`` that nobody can know before; :func:`remove_temporaries` knows it afterwards."""
    return path.with_name(f".roundoff-{secrets.token_hex(8)}.tmp")


def is_temporary(name: str) -> bool:
    """Whether a file or folder of this name was left by a process that was killed as it wrote."""
    return _TEMPORARY.fullmatch(name) is not None


def remove_temporaries(folder: Path) -> None:
    """Removes the leftovers of killed processes from a folder; nobody else may be writing there."""
    for path in filter(lambda path: is_temporary(path.name), folder.iterdir()):
        _remove(path)


def _remove(path: Path) -> None:
    """Removes a file, a link or a folder, if that is possible: it is in the way of nobody."""
    with suppress(OSError):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


def cannot_be_written(path: str | Path, reason: str | None) -> str:
    """The message about a file that cannot be written."""
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


def json_text(value: Any, **how: Any) -> str:
    r"""``value`` as JSON, in ASCII, that :func:`parse_json` reads.

    Halves of surrogate pairs, which are not valid text, are written as their escapes: ``\\ud800``.

    Args:
        value: what JSON has words for; keys are text.
        how: as for ``json.dumps``.

    Raises:
        ValueError: a number is not finite, which JSON cannot represent.
    """
    text = json.dumps(value, allow_nan=False, **how)
    return text if "\\ud" not in text else json.dumps(_encodable(value), allow_nan=False, **how)


def encodable(text: str) -> str:
    r"""``text`` as a file can hold it: with halves of surrogate pairs as their escapes, ``\ud800``."""
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
    return _regular(descriptor, path, "ab")


def separate(path: str | Path) -> None:
    """Gives a file with other names, such as a backup's hard links, its own copy of the bytes; the others keep theirs.

    Raises:
        OSError: it cannot be read.
        FileError: it cannot be written.
    """
    try:
        with open_to_read(path) as shared:
            if os.fstat(shared.fileno()).st_nlink > 1:
                with atomic_writer(path) as own:
                    shutil.copyfileobj(shared, own)
    except FileNotFoundError:
        pass


def open_to_read(path: str | Path) -> IO[bytes]:
    """Opens a file; a link is followed.

    Raises:
        OSError: it cannot be read, or is a pipe, a device or anything else but a regular file.
    """
    # Without the flag, a pipe would be waited for until somebody writes into it.
    return _regular(os.open(path, os.O_RDONLY | _FLAGS), path, "rb")


def _regular(descriptor: int, path: str | Path, mode: str) -> IO[bytes]:
    kind = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(kind):
        os.close(descriptor)
        raise OSError(0, "is a directory" if stat.S_ISDIR(kind) else "is no regular file", str(path))
    return os.fdopen(descriptor, mode)


def read_bytes(path: str | Path, largest: int = LARGEST) -> bytes:
    """The content of a file of at most ``largest`` bytes.

    Raises:
        OSError: it cannot be read, is larger, or is not a regular file.
    """
    with open_to_read(path) as file:
        if os.fstat(file.fileno()).st_size > largest:
            raise OSError(0, f"has more than {largest} bytes", str(path))
        return file.read()


def parse_json(content: bytes) -> Any:
    """The value of JSON text.

    Raises:
        ValueError: it is not JSON, not in UTF-8, or nested deeper than Python can follow.
    """
    try:
        value = json.loads(content.decode("utf-8-sig"))
        if b"\\u" in content:
            json.dumps(value, ensure_ascii=False).encode()  # halves of surrogate pairs are no text
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    return value


def try_json(path: Path) -> tuple[Any, str]:
    """The JSON in a file, which may be damaged or somebody else's, and why it cannot be read, in words.

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
        raise FileError(f"{path}: cannot be made a folder ({error.strerror}); choose another one") from error
    if not os.access(path, os.W_OK | os.X_OK):
        raise FileError(f"{path}: no permission to write into this folder; choose another one")
    return path


def make_directory_inside(root: Path, name: str) -> Path:
    """Makes the folder ``name`` in ``root``, which somebody else may have filled; it may not lead out of it.

    Raises:
        FileError: it is a link to a place outside of ``root``, or cannot be made.
    """
    path = root / name
    target = Path(os.path.realpath(path))  # which follows links that lead to themselves as far as it can
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
    """Keeps every other process out of the folder ``path`` for the length of the block.

    The lock is the operating system's and ends with the process, however that ends.

    Args:
        path: the folder.
        wait: until another process that holds it has given it back; a number is the most seconds to wait.

    Raises:
        FolderInUseError: another process holds it, or has held it for as long as was waited. One that is stopped, as by
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
    """Locks a file, after waiting or not; raises BlockingIOError where another process holds it."""
    try:
        import fcntl  # noqa: PLC0415  Windows has none
    except ModuleNotFoundError as error:
        raise OSError(errno.ENOTSUP, "this system has no locks of whole files") from error
    last = time.monotonic() + (0 if wait is True else wait)
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if wait is True else fcntl.LOCK_NB))
        except BlockingIOError:
            if time.monotonic() >= last:
                raise
            time.sleep(_BETWEEN_TRIES)
        else:
            return


def sync(path: Path) -> None:
    """Makes the contents of a file durable, or the new and renamed entries of a folder."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
