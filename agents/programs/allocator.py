"""Memory that a process has freed, and keeps for the next time."""

from __future__ import annotations

import ctypes
import sys

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of malloc.h
_MOST_KEPT = 1 << 30
_LARGEST_FROM_HEAP = 1 << 25  # the largest that glibc allows


def keep_freed_memory() -> bool:
    """Lets the C library keep up to 1 GiB of freed memory, instead of giving it back to the system at once.

    An update of a population makes and frees tensors of megabytes hundreds of times a second. Given back each time,
    their pages come anew from the system, cleared: a quarter of the update's time with 8 members of 128 units.

    Returns:
        Whether it could be done: with glibc. For the rest of the process.
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL("libc.so.6").mallopt
    except (OSError, AttributeError):
        return False
    settings = ((_M_MMAP_THRESHOLD, _LARGEST_FROM_HEAP), (_M_TRIM_THRESHOLD, _MOST_KEPT))
    return all(mallopt(name, value) == 1 for name, value in settings)
