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

_MOST = 20  # unknown keys of a mapping that are reported one by one: finding the nearest known key takes a while
_HOLDERS = {"a sweep": "base or grid", "random": "values"}  # where keys of runs belong, by the place of a misplaced one


def sections(document: Located, keys: tuple[str, ...], problems: Problems) -> dict[str, Located]:
    """Returns the sections of a sweep file, without empty sections and invalid parts, which are noted."""
    shape = shape_of(keys)
    checked = _validate(document, shape.sweep, shape, "a sweep", problems)
    return {name: item for name, item in checked.items() if item.value is not None}


def settings(document: Located, keys: tuple[str, ...], problems: Problems) -> dict[str, Located]:
    """Returns the settings in the file of a single run, without invalid ones, which are noted."""
    shape = shape_of(keys)
    return _validate(document, shape.run, shape, "a run", problems)


def _validate(
    document: Located, adapter: TypeAdapter[Any], shape: Shape, document_name: str, problems: Problems
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
            message = f"{_format_location(location) or document_name} {mistake['msg']}, got {shown(mistake['input'])}"
            problems.note(_part_at(document, location).place, message)
    missing = dict(_unknown_algorithms(document)) if unknown_keys else {}  # the keys may be theirs
    for place, reason in missing.items():
        problems.note(place, reason)
    for mapping, keys in unknown_keys.items() if not missing else ():
        places = _part_at(document, mapping).key_places or {}
        for key in keys[:_MOST]:
            problems.note(places[key], _describe_unknown_key(mapping, key, document_name, shape))
        if len(keys) > _MOST:
            problems.note(places[keys[_MOST]], f"{len(keys) - _MOST} more are unknown from here on")
    wrong_parts = {mistake["loc"] for mistake in mistakes}
    return {} if () in wrong_parts else _drop(wrong_parts, document).value


def _unknown_algorithms(item: Located, key: object = None) -> Iterator[tuple[str, str]]:
    """Yields the places where a document names a user's algorithm that no module has, and the reason of each."""
    if isinstance(item.value, dict | list):
        parts = item.value.items() if isinstance(item.value, dict) else ((key, part) for part in item.value)
        for name, part in parts:
            yield from _unknown_algorithms(part, name)
    elif key == "algorithm" and module_of_algorithm(item.value):
        try:
            check_own_algorithm(item.value, (*ALGORITHMS, *LIBRARIES))
        except ValueError as error:
            yield item.place, str(error)


def _describe_unknown_key(mapping: Location, key: str, document_name: str, shape: Shape) -> str:
    holder = _format_location(mapping) or document_name
    section = holder.partition("[")[0]
    known = DISTRIBUTIONS if len(mapping) > 2 else shape.other_keys.get(section, shape.keys)
    hint = f" (keys of runs belong in {_HOLDERS[holder]})" if key in shape.keys and holder in _HOLDERS else ""
    return unknown(f"key in {holder}", key, known) + hint


def _format_location(location: Location) -> str:
    """Writes a location as text, such as ``cases[0].name``."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in location).removeprefix(".")


def _part_at(document: Located, location: Location) -> Located:
    for part in location:
        document = document.value[part]
    return document


def _drop(wrong: set[Location], item: Located, path: Location = ()) -> Located:
    """Copies an item without its wrong parts, given by their locations."""
    if isinstance(item.value, dict):
        value: Any = {
            key: _drop(wrong, part, (*path, key)) for key, part in item.value.items() if (*path, key) not in wrong
        }
    elif isinstance(item.value, list):
        value = [_drop(wrong, part, (*path, i)) for i, part in enumerate(item.value) if (*path, i) not in wrong]
    else:
        return item
    return dataclasses.replace(item, value=value)
