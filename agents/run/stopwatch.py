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
        self._counted = 0.0
        self._since: float | None = time.perf_counter()

    @property
    def total(self) -> float:
        """Wall-clock time spent on the run that was not lost to interruptions, nor to others."""
        return self._counted + (0.0 if self._since is None else time.perf_counter() - self._since)

    def count(self, seconds: float) -> None:
        """Adds seconds to the total that passed elsewhere; negative ones leave out what was spent on others."""
        self._counted += seconds

    def pause(self) -> None:
        """The total stands still until :meth:`go_on`."""
        self._counted, self._since = self.total, None

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
        finally:
            spent = time.perf_counter() - began
            self.seconds[name] += spent - self._inside
            self._inside = around + spent

    def add(self, name: str, seconds: float) -> None:
        """Counts what was measured elsewhere."""
        self.seconds[name] = self.seconds.get(name, 0.0) + seconds
