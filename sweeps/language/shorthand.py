"""Expands shorthand in sweep files: ``1e3`` is an integer, ``0..9`` ten integers, ``{e5mX: 1..10}`` ten formats.

It is expanded before anything is checked, so that later stages see only lists.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from ...agents.config import FIXES, OPTIONAL_FIXES, PARTS_OF_FIXES
from ..errors import Problems
from ..subjects.agents import AGENTS
from ..subjects.subject import Subject
from ..wording import RANGE, shown
from .located_yaml import Located

MANY_FORMATS = "format"
"""The key that takes ``{e5mX: 1..10}``."""
LIST_OF_NAMES, WORDS_FOR_LISTS = "fixes", ("all", "none")
"""The key of agents whose values are lists of names, and the words for some lists."""
NAME_WITH_A_GAP = re.compile(r"[^X]*X[^X]*")
_MOST = 100_000  # numbers of a range: no sweep has more runs
_EXACT = 2.0**53  # the size up to which floats hold every whole number


def expand_shorthand(document: Located, subject: Subject, problems: Problems) -> Located:
    """Expands shorthand in a sweep file, or an argument as one; mistakes are noted, and invalid parts left out."""
    values = {"base": _values, "grid": _lists, "zip": _lists, "cases": _cases, "exclude": _exclusions}
    changes = {**values, "random": _random}
    return _map_values(document, lambda name, part: changes[name](part, subject, problems) if name in changes else part)


def read_value(key: str, item: Located, subject: Subject) -> Located:
    """Reads a value of a key; for a key of integers, 1e3 also counts as an integer."""
    value = item.value
    is_whole = key in subject.keys and subject.is_whole(key)
    if is_whole and isinstance(value, float) and value.is_integer() and abs(value) <= _EXACT:
        return replace(item, value=int(value))
    return item


def read_values(key: str, item: Located, subject: Subject, problems: Problems) -> Located | None:
    """Reads a value of a key, a list of values, or shorthand for a list, which is expanded; None if it is wrong."""
    if not isinstance(item.value, list):
        expanded = _expand(key, item, subject, problems)
        if expanded is None:
            return read_value(key, item, subject)
        return replace(item, value=expanded) if expanded else None
    if key == LIST_OF_NAMES and subject is AGENTS and _are_names(item.value):
        plain = item.plain()
        separate = [value if value in WORDS_FOR_LISTS else [value] for value in plain]
        advice = f"; a run for each is {key}={_flow(separate)}" if len(separate) > 1 else ""
        problems.note(
            item.place,
            f"{key}: a list holds a value for each run, and names are no values: one list of names is"
            f" {key}={_flow([plain])}{advice}",
        )
        return None
    values: list[Located] = []
    for part in item.value:
        expanded = _expand(key, part, subject, problems)
        if expanded == []:  # wrong, and noted
            return None
        values += [read_value(key, part, subject)] if expanded is None else expanded
    return replace(item, value=values)


def _are_names(values: list[Located]) -> bool:
    """Whether values of a key of lists are names by mistake, or names and words for lists."""
    texts = {value.value if isinstance(value.value, str) else "" for value in values}
    names = texts - set(WORDS_FOR_LISTS)
    return bool(names) and names <= {*FIXES, *OPTIONAL_FIXES, *PARTS_OF_FIXES}


def _flow(value: Any) -> str:
    """Writes nested lists of text in YAML's flow style."""
    return f"[{', '.join(map(_flow, value))}]" if isinstance(value, list) else str(value)


def _expand(key: str, item: Located, subject: Subject, problems: Problems) -> list[Located] | None:
    """Expands shorthand; returns None if the item is not shorthand, and no values if it is wrong, which is noted."""
    if key not in subject.keys:
        return None
    if isinstance(item.value, str) and subject.is_whole(key):
        return _expand_range(key, item, problems)
    if key != MANY_FORMATS or not isinstance(item.value, dict) or len(item.value) != 1:
        return None
    ((name, widths),) = item.value.items()
    if not NAME_WITH_A_GAP.fullmatch(name):
        problems.note(item.place, f"{key}: {shown(name)} must have one X, for the numbers, as in {{e5mX: 1..10}}")
        return []
    numbers = _expand_range(key, widths, problems) if isinstance(widths.value, str) else None
    if numbers is None:
        message = f"{key}: {name} must have a range of integers, such as 1..10, got {shown(widths.plain())}"
        problems.note(widths.place, message)
        return []
    return [replace(width, value=name.replace("X", str(width.value))) for width in numbers]


def _expand_range(key: str, item: Located, problems: Problems) -> list[Located] | None:
    """Expands a range to its numbers; None if it is not a range, no numbers if it is wrong, which is noted."""
    ends = RANGE.fullmatch(item.value)
    if ends is None:
        return None
    first, last = int(ends[1]), int(ends[2])
    if first > last:
        problems.note(item.place, f"{key}: the range {item.value} holds no number; the smaller one comes first")
    elif last - first >= _MOST:
        problems.note(item.place, f"{key}: the range {item.value} holds more than {_MOST} numbers")
    else:
        return [replace(item, value=number) for number in range(first, last + 1)]
    return []


def _map_values(item: Located, change: Callable[[str, Located], Located | None]) -> Located:
    """Changes the values of a mapping, and drops values that become None; returns anything else unchanged."""
    if not isinstance(item.value, dict):
        return item
    changed = {name: change(name, part) for name, part in item.value.items()}
    return replace(item, value={name: part for name, part in changed.items() if part is not None})


def _map_items(item: Located, change: Callable[[Located], Located]) -> Located:
    return replace(item, value=[change(part) for part in item.value]) if isinstance(item.value, list) else item


def _values(item: Located, subject: Subject, _problems: Problems) -> Located:
    return _map_values(item, lambda key, value: read_value(key, value, subject))


def _lists(item: Located, subject: Subject, problems: Problems) -> Located:
    return _map_values(item, lambda key, values: read_values(key, values, subject, problems))


def _cases(item: Located, subject: Subject, problems: Problems) -> Located:
    return _map_items(item, lambda case: _values(case, subject, problems))


def _exclusions(item: Located, subject: Subject, problems: Problems) -> Located:
    written = _map_items(item, lambda entry: _lists(entry, subject, problems))
    if not isinstance(item.value, list):
        return item
    pairs = zip(item.value, written.value, strict=True)  # an entry that became empty is not reported again
    return replace(item, value=[after for before, after in pairs if before.value == {} or after.value != {}])


def _random(item: Located, subject: Subject, _problems: Problems) -> Located:
    def read_bounds(key: str, distribution: Located) -> Located:
        return _map_values(distribution, lambda _, item: _map_items(item, lambda x: read_value(key, x, subject)))

    return _map_values(item, lambda name, part: _map_values(part, read_bounds) if name == "values" else part)
