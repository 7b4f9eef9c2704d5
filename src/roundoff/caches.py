"""Finds folders for compiled programs, kept from one process to the next, and private to this user.

Their files are loaded and run. So they are never looked for where others can write: not in a folder of the shared
temporary directory that somebody else can have made first.
"""

from __future__ import annotations

import atexit
import os
import shutil
import stat
import sys
import tempfile
import warnings
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import FrameType


class CacheWarning(UserWarning):
    """A warning: every process compiles programs again, since they cannot be kept."""


def cache_folder(name: str, chosen: str | None = None) -> Path | None:
    """Returns the folder for one kind of programs, and makes it if it is missing.

    It is ``$XDG_CACHE_HOME/roundoff/NAME``, by default ``~/.cache/roundoff/NAME``; where that cannot be written,
    ``roundoff-UID/NAME`` in the temporary directory. These are folders of this user, and writable by nobody else, or
    they are not used.

    Args:
        name: Name of the kind.
        chosen: a folder that the user has chosen for such programs; ``roundoff`` in it is used as it is.

    Returns:
        The folder; None, with a warning (once in a process), if no folder is usable.
    """
    if chosen:
        folder = Path(chosen).absolute() / "roundoff"
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError:
            pass
        else:
            if os.access(folder, os.W_OK | os.X_OK):
                return folder
    for parent in _parents():
        if _is_private(parent) and _is_private(parent / name):
            return parent / name
    advise("no folder for them can be written")
    return None


@cache
def advise(reason: str) -> None:
    """Warns, once, that programs cannot be kept, and names the remedy."""
    warnings.warn(
        f"compiled code cannot be kept ({reason}), so every process compiles it again, which takes seconds; set"
        " XDG_CACHE_HOME to a folder of your own that can be written",
        CacheWarning,
        stacklevel=_caller_depth(),
    )


def _caller_depth() -> int:
    """Returns the ``stacklevel`` of the code that called this package, for a warning about the caller."""
    depth = depth_of_package = 0
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001  as warnings itself does
    while frame:
        depth += 1
        if frame.f_globals.get("__name__", "").partition(".")[0] == "roundoff":
            depth_of_package = depth
        frame = frame.f_back
    return depth_of_package + 1


@cache
def folder_of_process(kind: str) -> Path:
    """Makes a folder for one kind of programs, which is removed at the end of the process."""
    folder = tempfile.mkdtemp(prefix=f"roundoff-{kind}-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


def _parents() -> Iterator[Path]:
    """Yields folders of this user, the best first."""
    home = os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(home):  # noqa: PTH117  the specification ignores others
        home = os.path.expanduser("~/.cache")  # noqa: PTH111  which never fails
    if os.path.isabs(home):  # noqa: PTH117
        yield Path(home) / "roundoff"
    try:
        yield Path(tempfile.gettempdir()) / f"roundoff-{_user()}"
    except FileNotFoundError:  # not even a temporary directory
        return


def _user() -> int:
    """Returns the number of this user; 0 on a system without user numbers."""
    return os.geteuid() if hasattr(os, "geteuid") else 0


def _is_private(folder: Path) -> bool:
    """Whether ``folder``, made if it is missing, is this user's, and nobody else can write to it or replace it."""
    try:
        folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
        status = folder.lstat()  # not `stat`: somebody else could change the target of a link
        paths = (folder.parent.absolute(), folder.parent.resolve())
        is_protected = all(_protects_entries(ancestor.stat()) for path in paths for ancestor in (path, *path.parents))
    except OSError:
        return False
    is_own = stat.S_ISDIR(status.st_mode) and status.st_uid == _user() and not status.st_mode & 0o022
    return bool(is_protected and is_own and os.access(folder, os.W_OK | os.X_OK))


def _protects_entries(folder: os.stat_result) -> bool:
    """Whether only this user and the system can replace the entries of a folder."""
    if folder.st_uid not in (_user(), Path("/").stat().st_uid):
        return False
    if folder.st_mode & stat.S_ISVTX:  # as /tmp: entries can be removed only by their owner
        return True
    others = stat.S_IWOTH if _is_private_group(folder.st_gid) else stat.S_IWOTH | stat.S_IWGRP
    return not folder.st_mode & others


def _is_private_group(group: int) -> bool:
    """Whether a group has the name of this user, and no other member. The system's accounts may share root's group."""
    try:
        import grp  # noqa: PLC0415  only systems with such groups have it
        import pwd  # noqa: PLC0415  as above

        name, entry = pwd.getpwuid(_user()).pw_name, grp.getgrgid(group)
    except (ImportError, KeyError):
        return False
    return bool(_user()) and entry.gr_name == name and set(entry.gr_mem) <= {name}
