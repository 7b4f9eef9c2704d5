"""Shorthand in sweep files: ``1e3`` for an integer, ``0..9`` for ten integers, ``{e5mX: 1..10}`` for ten formats.

It is written out before anything is checked, so that later stages see only lists.
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
"""The key of agents each value of which is a list of names, and the words for some lists."""
NAME_WITH_A_GAP = re.compile(r"[^X]*X[^X]*")
_MOST = 100_000  # numbers of a range: no sweep has more runs
_EXACT = 2.0**53  # the size up to which floats hold every whole number


def written_out(document: Located, subject: Subject, problems: Problems) -> Located:
    """A sweep file, or an argument as one, in full; mistakes are noted, and invalid parts are left out."""
    values = {"base": _values, "grid": _lists, "zip": _lists, "cases": _cases, "exclude": _exclusions}
    changes = {**values, "random": _random}
    return _of_mapping(document, lambda name, part: changes[name](part, subject, problems) if name in changes else part)


def one(key: str, item: Located, subject: Subject) -> Located:
    """A value of a key; for a key of integers, 1e3 also counts as an integer."""
    value = item.value
    whole = key in subject.keys and subject.is_whole(key)
    if whole and isinstance(value, float) and value.is_integer() and abs(value) <= _EXACT:
        return replace(item, value=int(value))
    return item


def several(key: str, item: Located, subject: Subject, problems: Problems) -> Located | None:
    """A value of a key, a list of values, or shorthand for a list, which becomes the list; None if it is wrong."""
    if not isinstance(item.value, list):
        found = _all(key, item, subject, problems)
        return one(key, item, subject) if found is None else replace(item, value=found) if found else None
    if key == LIST_OF_NAMES and subject is AGENTS and _are_names(item.value):
        plain = item.plain()
        each = [value if value in WORDS_FOR_LISTS else [value] for value in plain]
        apart = f"; a run for each is {key}={_flow(each)}" if len(each) > 1 else ""
        problems.note(
            item.place,
            f"{key}: a list holds a value for each run, and names are no values: one list of names is"
            f" {key}={_flow([plain])}{apart}",
        )
        return None
    values: list[Located] = []
    for part in item.value:
        found = _all(key, part, subject, problems)
        if found == []:
            return None
        values += [one(key, part, subject)] if found is None else found
    return replace(item, value=values)


def _are_names(values: list[Located]) -> bool:
    """Whether values, which should each be a list of names or a word for one, are names, or names and words."""
    found = {value.value if isinstance(value.value, str) else "" for value in values}
    names = found - set(WORDS_FOR_LISTS)
    return bool(names) and names <= {*FIXES, *OPTIONAL_FIXES, *PARTS_OF_FIXES}


def _flow(value: Any) -> str:
    """Lists of text, as YAML has them."""
    return f"[{', '.join(map(_flow, value))}]" if isinstance(value, list) else str(value)


def _all(key: str, item: Located, subject: Subject, problems: Problems) -> list[Located] | None:
    """Expands an item: None if it is not shorthand; no values if it is wrong, which is noted."""
    if key not in subject.keys:
        return None
    if isinstance(item.value, str) and subject.is_whole(key):
        return _numbers(key, item, problems)
    if key != MANY_FORMATS or not isinstance(item.value, dict) or len(item.value) != 1:
        return None
    ((name, widths),) = item.value.items()
    if not NAME_WITH_A_GAP.fullmatch(name):
        problems.note(item.place, f"{key}: {shown(name)} must have one X, for the numbers, as in {{e5mX: 1..10}}")
        return []
    found = _numbers(key, widths, problems) if isinstance(widths.value, str) else None
    if found is None:
        message = f"{key}: {name} must have a range of whole numbers, such as 1..10, got {shown(widths.plain())}"
        problems.note(widths.place, message)
        return []
    return [replace(width, value=name.replace("X", str(width.value))) for width in found]


def _numbers(key: str, item: Located, problems: Problems) -> list[Located] | None:
    """The numbers of a range; None if it is not a range."""
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


def _of_mapping(item: Located, change: Callable[[str, Located], Located | None]) -> Located:
    """A mapping with its values changed, without the values that become None; anything else as it is."""
    if not isinstance(item.value, dict):
        return item
    changed = {name: change(name, part) for name, part in item.value.items()}
    return replace(item, value={name: part for name, part in changed.items() if part is not None})


def _of_list(item: Located, change: Callable[[Located], Located]) -> Located:
    return replace(item, value=[change(part) for part in item.value]) if isinstance(item.value, list) else item


def _values(item: Located, subject: Subject, _problems: Problems) -> Located:
    return _of_mapping(item, lambda key, value: one(key, value, subject))


def _lists(item: Located, subject: Subject, problems: Problems) -> Located:
    return _of_mapping(item, lambda key, values: several(key, values, subject, problems))


def _cases(item: Located, subject: Subject, problems: Problems) -> Located:
    return _of_list(item, lambda case: _values(case, subject, problems))


def _exclusions(item: Located, subject: Subject, problems: Problems) -> Located:
    written = _of_list(item, lambda entry: _lists(entry, subject, problems))
    if not isinstance(item.value, list):
        return item
    pairs = zip(item.value, written.value, strict=True)  # what has become empty is no further mistake
    return replace(item, value=[after for before, after in pairs if before.value == {} or after.value != {}])


def _random(item: Located, subject: Subject, _problems: Problems) -> Located:
    def drawn(key: str, how: Located) -> Located:
        return _of_mapping(how, lambda _, bounds: _of_list(bounds, lambda bound: one(key, bound, subject)))

    return _of_mapping(item, lambda name, part: _of_mapping(part, drawn) if name == "values" else part)
