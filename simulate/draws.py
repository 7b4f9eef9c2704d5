"""Counting stochastic roundings: the random bits of each depend on its number within the step."""

from __future__ import annotations

import threading
from typing import final


@final
class Draws:
    """How many stochastic roundings were made in the current step.

    The threads that entered the simulation count each for itself; those that work for them, as autograd's do on a GPU,
    count on.
    """

    def __init__(self) -> None:
        self._here = threading.local()
        self._latest = [0]

    def enter(self) -> None:
        """This thread counts for itself from now on."""
        if not hasattr(self._here, "count"):
            self._here.count = [0]
        self._latest = self._here.count

    def reset(self) -> None:
        """A new step begins in this thread."""
        self._mine()[0] = 0

    def made(self) -> int:
        """How many there were."""
        return self._mine()[0]

    def skip(self, count: int) -> None:
        """Counts roundings that were made elsewhere."""
        self._mine()[0] += count

    def next(self) -> int:
        """The number of the next rounding."""
        mine = self._mine()
        mine[0] += 1
        return mine[0] - 1

    def _mine(self) -> list[int]:
        return getattr(self._here, "count", self._latest)
