"""Merges a sweep file, its included files and the command line, key by key: a later value replaces an earlier one."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ..errors import Problems
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
        axes: the grid's axes by key, and the others by section; the last varies fastest.
        random: ``draws`` and ``seed``, and the distributions of ``values`` by key, for drawing its axis.
        exclusions: runs to leave out.
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
    metric: Located | None = None
    search: Located | None = None
    log_to: Located | None = None


class Document(NamedTuple):
    """A document of a sweep: the file, a file that it includes, or an argument."""

    sections: dict[str, Located]
    """Sections of the right shape, in the order of the file."""
    is_main: bool
    """Whether its name and description are the sweep's, unlike an included file's."""
    strict: bool
    """Whether its exclusions must match something."""


def alternatives(value: Located) -> list[Located]:
    """Returns the values of a list, or the single value; as in the grid, one list of fixes is a list in a list."""
    return value.value if isinstance(value.value, list) else [value]


_JOINT_SECTIONS = ("zip", "cases")  # sections whose keys go together


def merge(documents: Iterable[Document], problems: Problems) -> Outline:
    """Merges the documents of a sweep, included ones first and arguments last; mistakes are noted."""
    outline = Outline()
    for sections, is_main, strict in documents:
        # Names, description and figures are the sweep's own: included files have others.
        if is_main and "name" in sections:
            outline.name = sections["name"].value
        if is_main and "description" in sections:
            outline.description = sections["description"].value.strip()
        if is_main and "reproduces" in sections:
            outline.reproduces = tuple(name.value for name in alternatives(sections["reproduces"]))
        for name in ("metric", "search", "log_to"):
            if name in sections:
                setattr(outline, name, _merge_section(getattr(outline, name), sections[name]))
        _Merger(outline, problems).merge(sections)
        if "exclude" in sections:  # replaces earlier exclusions as a whole
            outline.exclusions = [
                Exclusion({key: alternatives(value) for key, value in entry.value.items()}, entry.place, strict)
                for entry in sections["exclude"].value
                if entry.value
            ]
    return outline


def _merge_section(earlier: Located | None, later: Located) -> Located:
    """Merges two versions of a section: the later document's values replace the earlier ones."""
    if earlier is None or not isinstance(later.value, dict):
        return later
    values = earlier.value if isinstance(earlier.value, dict) else {"name": earlier}  # `metric: accuracy`
    return dataclasses.replace(later, value=values | later.value)


class _Merger:
    """Merges one document into the outline. No key may be in two of its sections."""

    def __init__(self, outline: Outline, problems: Problems) -> None:
        self._outline, self._problems = outline, problems
        self._claims: dict[str, tuple[str, str]] = {}

    def merge(self, sections: dict[str, Located]) -> None:
        """Merges the base first, then the other sections in the file's order, which is the order of variation."""
        for section in _JOINT_SECTIONS:
            if section in sections and section in self._outline.axes:
                self._outline.axes[section].choices = []  # replaced as a whole
        if "base" in sections:
            for key, value in sections["base"].value.items():
                self._claim(key, "base", value.place)
                self._release(key, value.place)
                self._outline.base[key] = value
        readers = {"grid": self._grid, "zip": self._zip, "cases": self._cases, "random": self._random}
        for section, item in sections.items():
            if section in readers:
                readers[section](item)

    def _claim(self, key: str, section: str, place: str) -> None:
        """Notes a key that is in two sections of one document. A case may differ from the base."""
        if key in self._claims and (self._claims[key][0], section) != ("base", "cases"):
            other, other_place = self._claims[key]
            self._problems.note(place, f"{key} is in {section} and in {other} ({other_place}); keep one of them")
        self._claims.setdefault(key, (section, place))

    def _release(self, key: str, place: str, *, keep: str = "") -> None:
        """Removes a key from the sections of earlier documents, before it is put into another section than ``keep``."""
        outline = self._outline
        if keep != "cases":  # a case may differ from the base
            outline.base.pop(key, None)
        if key != keep:
            outline.axes.pop(key, None)
        drawn = outline.random.get("values", {})
        if drawn.pop(key, None) and not drawn and keep != "random":  # nothing is left to draw
            outline.axes.pop("random", None)
            outline.random.clear()
        for section in _JOINT_SECTIONS:
            axis = outline.axes.get(section)
            keys = axis.all_keys() if axis and section != keep else []
            if axis and key in keys and self._claims.get(key, ("",))[0] != section:
                advice = "all of its keys" if section == "zip" else "all cases"
                self._problems.note(
                    place,
                    f"{key} is in {section} ({axis.place}), where values belong together; give {section} again"
                    f" ({advice}), or choose among its runs with --only {key}=...",
                )

    def _grid(self, item: Located) -> None:
        for key, values in item.value.items():
            self._claim(key, "grid", values.place)
            self._release(key, values.place, keep=key)
            self._outline.axes[key] = Axis("grid", values.place, [Choice({key: v}, v.place) for v in values.value])

    def _zip(self, item: Located) -> None:
        lists: dict[str, list[Located]] = {key: values.value for key, values in item.value.items()}
        longest = max(lists, key=lambda key: len(lists[key]), default="")
        for key, values in lists.items():
            self._claim(key, "zip", item.value[key].place)
            if len(values) != len(lists[longest]):
                self._problems.note(
                    item.value[key].place,
                    f"the lists of zip go together, so they need the same length: {key} has {len(values)} values,"
                    f" {longest} has {len(lists[longest])}",
                )
        rows = [dict(zip(lists, row, strict=True)) for row in zip(*lists.values(), strict=False)]  # by position
        if rows:
            self._set("zip", item, [Choice(row, next(iter(row.values())).place) for row in rows])

    def _cases(self, item: Located) -> None:
        choices, names = [], dict[str, str]()
        for entry in item.value:
            settings = dict(entry.value)
            name = settings.pop("name", None)
            if name and names.setdefault(name.value, name.place) != name.place:
                self._problems.note(name.place, f"the case {name.value!r} is given twice ({names[name.value]})")
            choices.append(Choice(settings, entry.place, name.value if name else ""))
        for key in dict.fromkeys(key for choice in choices for key in choice.settings):
            self._claim(key, "cases", next(c.settings[key].place for c in choices if key in c.settings))
        self._set("cases", item, choices)

    def _set(self, section: str, item: Located, choices: list[Choice]) -> None:
        """Replaces an axis of keys that vary together; its position among the axes stays."""
        axis = self._outline.axes.setdefault(section, Axis(section, item.place, []))
        axis.place, axis.choices = item.place, choices
        for key in axis.all_keys():
            self._release(key, item.place, keep=section)

    def _random(self, item: Located) -> None:
        parts = self._outline.random
        parts |= {key: part for key, part in item.value.items() if key != "values"}
        drawn = parts.setdefault("values", {})
        for key, distribution in item.value["values"].value.items() if "values" in item.value else ():
            self._claim(key, "random", distribution.place)
            self._release(key, distribution.place, keep="random")
            drawn[key] = distribution
        self._outline.axes.setdefault("random", Axis("random", item.place, []))
