"""Folders for compiled programs, kept from one process to the next, and private to this user.

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
    """Every process compiles programs again, since they cannot be kept."""


def cache_folder(name: str, chosen: str | None = None) -> Path | None:
    """The folder for one kind of programs; it is made if it is missing.

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
        if _is_ours(parent) and _is_ours(parent / name):
            return parent / name
    advise("no folder for them can be written")
    return None


@cache
def advise(reason: str) -> None:
    """Says, once, that programs cannot be kept, and what helps."""
    warnings.warn(
        f"what roundoff compiles cannot be kept ({reason}), so every process compiles it anew, which takes seconds; set"
        " XDG_CACHE_HOME to a folder of your own that can be written",
        CacheWarning,
        stacklevel=_depth(),
    )


def _depth() -> int:
    """Returns the ``stacklevel`` of the code that has called ours, for a warning of the caller."""
    depth = ours = 0
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001  as warnings itself does
    while frame:
        depth += 1
        if frame.f_globals.get("__name__", "").partition(".")[0] == "roundoff":
            ours = depth
        frame = frame.f_back
    return ours + 1


@cache
def folder_of_process(kind: str) -> Path:
    """A folder for one kind of programs that ends with the process."""
    folder = tempfile.mkdtemp(prefix=f"roundoff-{kind}-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


def _parents() -> Iterator[Path]:
    """Folders of this user, the best first."""
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
    """The number of this user; 0 on a system without user numbers."""
    return os.geteuid() if hasattr(os, "geteuid") else 0


def _is_ours(folder: Path) -> bool:
    """Whether ``folder``, made if it is missing, is this user's, and nobody else can write to it or replace it."""
    try:
        folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()  # the target of a link would be another's to change
        ends = (folder.parent.absolute(), folder.parent.resolve())
        stays = all(_keeps_its_entries(above.stat()) for end in ends for above in (end, *end.parents))
    except OSError:
        return False
    ours = stat.S_ISDIR(found.st_mode) and found.st_uid == _user() and not found.st_mode & 0o022
    return bool(stays and ours and os.access(folder, os.W_OK | os.X_OK))


def _keeps_its_entries(folder: os.stat_result) -> bool:
    """Whether only this user and the system can replace the entries of a folder."""
    if folder.st_uid not in (_user(), Path("/").stat().st_uid):
        return False
    if folder.st_mode & stat.S_ISVTX:
        return True
    others = stat.S_IWOTH if _is_only_ours(folder.st_gid) else stat.S_IWOTH | stat.S_IWGRP
    return not folder.st_mode & others


def _is_only_ours(group: int) -> bool:
    """Whether a group has the name of this user, and no other member. The system's accounts may share root's group."""
    try:
        import grp  # noqa: PLC0415  only systems with such groups have it
        import pwd  # noqa: PLC0415  as above

        name, found = pwd.getpwuid(_user()).pw_name, grp.getgrgid(group)
    except (ImportError, KeyError):
        return False
    return bool(_user()) and found.gr_name == name and set(found.gr_mem) <= {name}
