"""Locks that do not outlive their thread in a forked child.

``os.fork`` copies every lock as it is, but only the thread that forks. A lock of another thread would never be
released in the child. So every lock of the package is made here, and the thread that forks takes all of them first: the
state that they guard is then complete in the child. A lock that is not free within a second, since a thread compiles
meanwhile, is new in the child.
"""

from __future__ import annotations

import functools
import os
import threading
import time
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakValueDictionary

__all__ = ["cached_property", "known", "new_lock"]

_Lock = TypeVar("_Lock")

_PATIENCE = 1.0  # seconds for all locks together
_PAUSE = 0.0005  # seconds; only short work is done under most locks

_known: WeakValueDictionary[int, Any] = WeakValueDictionary()


_this_thread = threading.local()  # with ``taken``, the locks that the thread has taken in order to fork


def new_lock() -> threading.RLock:
    """Makes a lock, which the thread that holds it may take again."""
    return known(threading.RLock())


def known(lock: _Lock) -> _Lock:
    """Returns a reentrant lock made elsewhere, which a fork then takes like the locks of the package."""
    _known[id(lock)] = lock
    return lock


if TYPE_CHECKING:
    from functools import cached_property
else:

    def cached_property(function: Any) -> Any:
        """Makes Python's ``cached_property``. In Python 3.11 each has a lock, which is made known."""
        made = functools.cached_property(function)
        if hasattr(made, "lock"):
            known(made.lock)
        return made


def _all() -> list[Any]:
    return [lock for reference in _known.valuerefs() if (lock := reference()) is not None]


def _take_all() -> None:
    """Takes all locks, and waits for none while it holds others: threads take them in different orders."""
    end = time.monotonic() + _PATIENCE
    while True:
        locks = _all()
        _this_thread.taken = [lock for lock in locks if lock.acquire(blocking=False)]
        if len(_this_thread.taken) == len(locks) or time.monotonic() > end:
            return
        _release()
        time.sleep(_PAUSE)


def _release() -> None:
    for lock in _this_thread.taken:
        lock.release()


def _release_in_child() -> None:
    taken = {id(lock) for lock in _this_thread.taken}
    for lock in _all():
        if id(lock) not in taken:
            lock._at_fork_reinit()  # noqa: SLF001  as the standard library does with its own locks
    _release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_take_all, after_in_parent=_release, after_in_child=_release_in_child)
