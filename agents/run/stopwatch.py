"""Where the time of a run goes: seconds of wall clock by activity."""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, final

if TYPE_CHECKING:
    from collections.abc import Iterator


@final
class Stopwatch:
    """Adds up seconds by name. Activities within another count for themselves, not for the one around them.

    On a GPU the seconds are those until operations were given to it, not until they were done.

    Attributes:
        seconds: what was spent, by name, in the order of the first beginnings.
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._inside = 0.0

    @contextmanager
    def measure(self, name: str) -> Iterator[None]:
        """Counts the block for ``name``."""
        around, self._inside = self._inside, 0.0
        self.seconds.setdefault(name, 0.0)
        began = time.perf_counter()
        try:
            yield
        finally:
            spent = time.perf_counter() - began
            self.seconds[name] += spent - self._inside
            self._inside = around + spent

    def add(self, name: str, seconds: float) -> None:
        """Counts what was measured elsewhere."""
        self.seconds[name] = self.seconds.get(name, 0.0) + seconds
