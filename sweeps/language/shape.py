"""Checks the shape of documents, and reports mistakes with their places."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from pydantic import TypeAdapter, ValidationError

from ...agents.config import ALGORITHMS, LIBRARIES, check_own_algorithm, module_of_algorithm
from ..errors import Problems
from ..wording import shown, unknown
from .located_yaml import Located
from .sweep_file import DISTRIBUTIONS, Shape, shape_of

Location = tuple[str | int, ...]

_MOST = 20  # unknown keys of a mapping that are named one by one: what each may have meant takes a while to find out
_INSIDE = {"a sweep": "base or grid", "random": "values"}  # where keys of runs stand


def sections(document: Located, keys: tuple[str, ...], problems: Problems) -> dict[str, Located]:
    """The sections of a sweep file, without empty sections and invalid parts, which are noted."""
    shape = shape_of(keys)
    found = _checked(document, shape.sweep, shape, "a sweep", problems)
    return {name: item for name, item in found.items() if item.value is not None}


def settings(document: Located, keys: tuple[str, ...], problems: Problems) -> dict[str, Located]:
    """The settings in the file of a single run, without invalid ones, which are noted."""
    shape = shape_of(keys)
    return _checked(document, shape.run, shape, "a run", problems)


def _checked(
    document: Located, adapter: TypeAdapter[Any], shape: Shape, whole: str, problems: Problems
) -> dict[str, Located]:
    try:
        adapter.validate_python(document.plain())
    except ValidationError as error:
        mistakes = error.errors(include_url=False)
    else:
        mistakes = []
    unknown_keys: dict[Location, list[str]] = {}
    for mistake in mistakes:
        location = mistake["loc"]
        if mistake["type"] == "extra_forbidden":
            unknown_keys.setdefault(location[:-1], []).append(str(location[-1]))
        else:
            message = f"{_named(location) or whole} {mistake['msg']}, got {shown(mistake['input'])}"
            problems.note(_at(document, location).place, message)
    missing = dict(_not_imported(document)) if unknown_keys else {}  # whose keys these may be
    for place, reason in missing.items():
        problems.note(place, reason)
    for mapping, keys in unknown_keys.items() if not missing else ():
        places = _at(document, mapping).key_places or {}
        for key in keys[:_MOST]:
            problems.note(places[key], _unknown(mapping, key, whole, shape))
        if len(keys) > _MOST:
            problems.note(places[keys[_MOST]], f"{len(keys) - _MOST} more are unknown from here on")
    wrong = {mistake["loc"] for mistake in mistakes}
    return {} if () in wrong else _without(wrong, document).value


def _not_imported(item: Located, key: object = None) -> Iterator[tuple[str, str]]:
    """Yields where a document names a user's algorithms that no module has, and why each is not known."""
    if isinstance(item.value, dict | list):
        parts = item.value.items() if isinstance(item.value, dict) else ((key, part) for part in item.value)
        for name, part in parts:
            yield from _not_imported(part, name)
    elif key == "algorithm" and module_of_algorithm(item.value):
        try:
            check_own_algorithm(item.value, (*ALGORITHMS, *LIBRARIES))
        except ValueError as error:
            yield item.place, str(error)


def _unknown(mapping: Location, key: str, whole: str, shape: Shape) -> str:
    where = _named(mapping) or whole
    section = where.partition("[")[0]
    known = DISTRIBUTIONS if len(mapping) > 2 else shape.other_keys.get(section, shape.keys)
    hint = f" (keys of runs stand inside {_INSIDE[where]})" if key in shape.keys and where in _INSIDE else ""
    return unknown(f"key in {where}", key, known) + hint


def _named(location: Location) -> str:
    """Writes a location as in ``cases[0].name``."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in location).removeprefix(".")


def _at(document: Located, location: Location) -> Located:
    for part in location:
        document = document.value[part]
    return document


def _without(wrong: set[Location], item: Located, here: Location = ()) -> Located:
    """A copy without the invalid parts."""
    if isinstance(item.value, dict):
        value: Any = {
            key: _without(wrong, part, (*here, key)) for key, part in item.value.items() if (*here, key) not in wrong
        }
    elif isinstance(item.value, list):
        value = [_without(wrong, part, (*here, i)) for i, part in enumerate(item.value) if (*here, i) not in wrong]
    else:
        return item
    return dataclasses.replace(item, value=value)
