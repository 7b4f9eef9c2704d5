"""The formats that differ from a given one in one choice."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from itertools import combinations
from typing import Any

from ..base.errors import FormatError
from ..base.format import Format
from ..base.names import family_of


def neighbours(fmt: Format) -> list[Format]:
    """The formats of the same family that are a step away.

    A step is a bit more or less in a field, a bit moved from one field to another, twice or half the block, or another
    choice of one of the format's rules. Fields called ``width`` or ``..._bits`` are widths; ``block`` and ``group`` are
    blocks; a rule is a flag, a member of an enumeration, or a text for which its family draws others.

    Args:
        fmt: any format; a format that is not a dataclass lacks neighbours.

    Returns:
        Those that exist, each once, in that order.
    """
    if not dataclasses.is_dataclass(type(fmt)):
        return []
    fields = {field.name: getattr(fmt, field.name) for field in dataclasses.fields(fmt)}  # type: ignore[arg-type]
    family = family_of(fmt)
    found: list[Format] = []
    for changes in (*_other_widths(fields), *_other_rules(fields, {} if family is None else family.drawn)):
        try:
            other: Format = dataclasses.replace(fmt, **changes)  # type: ignore[type-var]
        except FormatError:
            continue
        if other != fmt and other not in found:
            found.append(other)
    return found


def _other_widths(fields: dict[str, Any]) -> Iterator[dict[str, Any]]:
    parts = [name for name in fields if name.endswith("_bits")]
    for name in (*parts, *({"width"} & fields.keys())):
        yield {name: fields[name] - 1}
        yield {name: fields[name] + 1}
    for one, another in combinations(parts, 2):
        yield {one: fields[one] + 1, another: fields[another] - 1}
        yield {one: fields[one] - 1, another: fields[another] + 1}
    for name in ("block", "group"):
        if fields.get(name) is not None:
            yield {name: fields[name] // 2}
            yield {name: fields[name] * 2}


def _other_rules(fields: dict[str, Any], drawn: Mapping[str, Sequence[Any]]) -> Iterator[dict[str, Any]]:
    for name, value in fields.items():
        if isinstance(value, Enum):
            choices: Sequence[Any] = list(type(value))
        elif isinstance(value, bool):
            choices = [not value]
        else:
            choices = drawn.get(name, ()) if isinstance(value, str) else ()
        yield from ({name: choice} for choice in choices)
