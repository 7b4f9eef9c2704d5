"""The formats that differ from a given one in one choice."""

from __future__ import annotations

import dataclasses
from enum import Enum
from typing import TYPE_CHECKING, Any

from ..base.errors import FormatError
from ..families.mx import ELEMENTS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..base.format import Format

_WIDTHS = ("exponent_bits", "significand_bits", "integer_bits", "fraction_bits", "width")
_TRADED = (("exponent_bits", "significand_bits"), ("integer_bits", "fraction_bits"))
_FLAGS = ("signed", "symmetric", "subnormals")


def neighbours(fmt: Format) -> list[Format]:
    """The formats of the same family that are a step away.

    A step is a bit more or less in a field, a bit moved from one field to another, twice or half the block, or another
    choice of one of the format's rules.

    Args:
        fmt: any format that is a dataclass.

    Returns:
        Those that exist, each once, in that order.
    """
    fields = {field.name: getattr(fmt, field.name) for field in dataclasses.fields(fmt)}  # type: ignore[arg-type]
    found: list[Format] = []
    for changes in _changes(fields):
        try:
            other: Format = dataclasses.replace(fmt, **changes)  # type: ignore[type-var]
        except FormatError:
            continue
        if other != fmt and other not in found:
            found.append(other)
    return found


def _changes(fields: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield from _other_widths(fields)
    yield from _other_rules(fields)


def _other_widths(fields: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for name in _WIDTHS:
        if name in fields:
            yield {name: fields[name] - 1}
            yield {name: fields[name] + 1}
    for one, another in _TRADED:
        if one in fields and another in fields:
            yield {one: fields[one] + 1, another: fields[another] - 1}
            yield {one: fields[one] - 1, another: fields[another] + 1}
    for name in ("block", "group"):
        if fields.get(name) is not None:
            yield {name: fields[name] // 2}
            yield {name: fields[name] * 2}


def _other_rules(fields: dict[str, Any]) -> Iterator[dict[str, Any]]:
    if fields.get("name") in ELEMENTS:
        for element in ELEMENTS:
            yield {"name": element}
    for name, value in fields.items():
        if isinstance(value, Enum):
            for choice in type(value):
                yield {name: choice}
        elif name in _FLAGS:
            yield {name: not value}
