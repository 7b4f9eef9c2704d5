"""Merge a sweep file, its included files and the command line, key by key. The later one wins."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from ..errors import Problem
from ..subjects.agents import AGENTS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ..subjects.subject import Subject
    from .located_yaml import Located


class Choice(NamedTuple):
    """One of the alternatives of an axis: settings that go together."""

    settings: dict[str, Located]
    place: str
    case: str = ""


@dataclass
class Axis:
    """Alternatives; every run takes one of them. A sweep is the product of its axes."""

    section: str
    place: str
    choices: list[Choice]

    def all_keys(self) -> list[str]:
        """Every key that an alternative sets, once."""
        return list(dict.fromkeys(key for choice in self.choices for key in choice.settings))


class Exclusion(NamedTuple):
    """An entry of ``exclude``: runs with one of the values for each of the keys are left out."""

    values: dict[str, list[Located]]
    place: str
    must_match: bool


@dataclass
class Outline:
    """A sweep before its runs are made.

    Attributes:
        name: the name of the sweep; None if nothing names it.
        description: for people.
        reproduces: names of figures and tables.
        base: values of all runs, unless an axis says otherwise.
        axes: the grid's by key, and the others by section; the last varies fastest.
        random: ``draws`` and ``seed``, and the distributions of ``values`` by key, for drawing its axis.
        exclusions: runs to leave out.
        problems: every mistake so far.
        subject: the subject of the runs: agents, or a program.
        metric: the returned value that counts, for runs of a program.
        search: the criterion of good enough, if not all formats are run.
        log_to: a tracker that records the runs.
    """

    name: str | None = None
    description: str = ""
    reproduces: tuple[str, ...] = ()
    base: dict[str, Located] = field(default_factory=dict)
    axes: dict[str, Axis] = field(default_factory=dict)
    random: dict[str, Any] = field(default_factory=dict)
    exclusions: list[Exclusion] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    subject: Subject = AGENTS
    metric: Located | None = None
    search: Located | None = None
    log_to: Located | None = None

    def complain(self, place: str, message: str) -> None:
        """Notes a mistake."""
        self.problems.append(Problem(place, message))


def alternatives(value: Located) -> list[Located]:
    """The values of a list, or the one value; as in the grid, one list of fixes is a list in a list."""
    return value.value if isinstance(value.value, list) else [value]


def names_of_cases(axes: Iterable[Axis]) -> list[str]:
    """The names of all cases."""
    return [choice.case for axis in axes for choice in axis.choices if choice.case]
