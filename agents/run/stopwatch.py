"""The time of a run by activity: seconds of wall clock."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import final


@final
class Stopwatch:
    """Adds up seconds by name. Activities within another count for themselves, not for the one around them.

    Args:
        wait: called at the end of each activity, which counts until it returns. On a GPU operations are only handed
            over; without waiting they count for whatever waits for them next.

    Attributes:
        seconds: the time spent, by name, in the order of first use.
        wait: the same.
    """

    def __init__(self, wait: Callable[[], None] = lambda: None) -> None:
        self.seconds: dict[str, float] = {}
        self.wait = wait
        self._inside = 0.0
        self._counted = self._earlier = 0.0
        self._since: float | None = time.perf_counter()

    @property
    def total(self) -> float:
        """Wall-clock time spent on the run that was not lost to interruptions, nor to others."""
        now = 0.0 if self._since is None else time.perf_counter() - self._since
        return self._earlier + self._counted + now

    def spent(self) -> dict[str, float]:
        """The seconds by name, and under ``other`` the rest of the total since the run was last begun."""
        return {**self.seconds, "other": max(0.0, self.total - self._earlier - sum(self.seconds.values()))}

    def continue_from(self, seconds: float) -> None:
        """Continues the total from the total of an earlier process."""
        self._earlier += seconds

    def count(self, seconds: float) -> None:
        """Adds seconds to the total that passed elsewhere; negative ones leave out time spent on others."""
        self._counted += seconds

    def pause(self) -> None:
        """Stops the total until :meth:`go_on`."""
        self._counted, self._since = self.total - self._earlier, None

    def go_on(self) -> None:
        """Counts for the total again."""
        self._since = time.perf_counter()

    @contextmanager
    def measure(self, name: str) -> Iterator[None]:
        """Counts the block for ``name``."""
        around, self._inside = self._inside, 0.0
        self.seconds.setdefault(name, 0.0)
        began = time.perf_counter()
        try:
            yield
            self.wait()
        finally:
            spent = time.perf_counter() - began
            self.seconds[name] += spent - self._inside
            self._inside = around + spent

    def add(self, name: str, seconds: float) -> None:
        """Counts time that was measured elsewhere."""
        self.seconds[name] = self.seconds.get(name, 0.0) + seconds
