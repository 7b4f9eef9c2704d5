"""Errors of sweeps that a user can fix."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from typing import NamedTuple

from roundoff.errors import RoundoffError


class Problem(NamedTuple):
    """One mistake in a sweep file or on the command line."""

    place: str
    """``file:line:column``, or which argument."""
    message: str

    def __str__(self) -> str:
        return f"{self.place}: {self.message}"


class Problems(list[Problem]):
    """The mistakes that the steps of planning have found so far."""

    def note(self, place: str, message: str) -> None:
        """Adds a mistake."""
        self.append(Problem(place, message))


class SweepError(RoundoffError):
    """A sweep that cannot be planned, or a folder that cannot hold it."""


class SweepFileError(SweepError):
    """Everything that is wrong with a sweep file, a line each.

    Attributes:
        problems: the mistakes, in the order of the file.
    """

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(sorted(problems, key=_position))
        super().__init__("\n".join(map(str, self.problems)))


def _position(problem: Problem) -> tuple[int, int]:
    """Line and column; problems without either come last."""
    match = re.search(r":(\d+):(\d+)$", problem.place)
    return (int(match[1]), int(match[2])) if match else (sys.maxsize, 0)
