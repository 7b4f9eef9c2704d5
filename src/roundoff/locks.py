"""Makes locks that are safe in a forked child.

``os.fork`` copies every lock in its state, but only the thread that forks. A lock of another thread would never be
released in the child. So every lock of the package is made here, and the thread that forks takes all of them first: the
state that they guard is then complete in the child. A lock that is not free within a second, since a thread compiles
meanwhile, is replaced in the child.
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
_PAUSE = 0.0005  # seconds between two tries; most locks are held only briefly

_known: WeakValueDictionary[int, Any] = WeakValueDictionary()


_this_thread = threading.local()  # with ``taken``, the locks that the thread has taken in order to fork


def new_lock() -> threading.RLock:
    """Makes a reentrant lock."""
    return known(threading.RLock())


def known(lock: _Lock) -> _Lock:
    """Registers a reentrant lock made elsewhere, so that a fork takes it too; returns the lock."""
    _known[id(lock)] = lock
    return lock


if TYPE_CHECKING:
    from functools import cached_property
else:

    def cached_property(function: Any) -> Any:
        """Makes Python's ``cached_property``, and registers its lock, which it has in Python 3.11."""
        property_ = functools.cached_property(function)
        if hasattr(property_, "lock"):
            known(property_.lock)
        return property_


def _all() -> list[Any]:
    return [lock for reference in _known.valuerefs() if (lock := reference()) is not None]


def _take_all() -> None:
    """Takes all locks; does not wait for a lock while it holds others, as threads take them in different orders."""
    deadline = time.monotonic() + _PATIENCE
    while True:
        locks = _all()
        _this_thread.taken = [lock for lock in locks if lock.acquire(blocking=False)]
        if len(_this_thread.taken) == len(locks) or time.monotonic() > deadline:
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
