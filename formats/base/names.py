"""The names of formats: the registry of families, and the parser that turns text into a format."""

from __future__ import annotations

import dataclasses
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

from roundoff.errors import nearest

from .errors import FormatError
from .modes import Overflow

Fields = dict[str, Any]

_LONGEST_SHOWN = 80  # Characters of a name in a message.


class Beginning(NamedTuple):
    """The pattern that names of a family begin with."""

    syntax: str
    """The syntax for messages: ``eXmY``."""
    pattern: str
    """The regular expression that matches it, in lower case."""
    fields: Callable[[re.Match[str]], Fields]
    """Makes the arguments of the format; raises FormatError if a value is out of range."""
    behind: tuple[type[Any], tuple[str, ...]] | None = None
    """For messages, if the name is one of another class with a suffix: that class, and the syntax of the suffixes."""


class Suffix(NamedTuple):
    """An optional part at the end of a name, after an underscore."""

    syntax: str
    """The syntax for messages: ``_bBLOCK``."""
    field: str
    """The field that the part sets; no two parts set the same one."""
    pattern: str
    """The regular expression that matches it, without the underscore."""
    value: Callable[[str], Any]
    """Converts the text of the pattern's first group to the field's value."""


class FamilyEntry(NamedTuple):
    """The registry entry of one class of formats; :func:`register` describes its fields."""

    kind: type[Any]
    beginnings: tuple[Beginning, ...]
    suffixes: tuple[Suffix, ...]
    called: str
    shown: tuple[str, ...]
    verified: tuple[str, ...]
    drawn: Mapping[str, Sequence[Any]]


FAMILIES: dict[str, FamilyEntry] = {}
"""The families by module and name of the class, in the order in which they were registered."""
ALIASES: dict[str, Any] = {}
"""The formats with a special name, or with a canonical name that is often misspelt."""


def register(
    kind: type[Any],
    beginnings: Sequence[Beginning] = (),
    suffixes: Sequence[Suffix] = (),
    aliases: Mapping[str, Any] | None = None,
    *,
    called: str = "",
    shown: Sequence[str] = (),
    verified: Sequence[str] = (),
    drawn: Mapping[str, Sequence[Any]] | None = None,
) -> None:
    """Registers the names of a family, for :meth:`Format.parse` and wherever formats are given as text.

    Compiled programs, sweep files and other processes also name formats by text, so each process must import the
    module that registers the family. A second registration of a class replaces its earlier names.

    Args:
        kind: the class, a frozen dataclass if its names have beginnings or suffixes.
        beginnings: the patterns that names with the fields of a format begin with.
        suffixes: optional parts that follow, in any order; each sets a field.
        aliases: formats of the class by special names, in lower case.
        called: the family's name in tests that draw formats of it; the class's name if empty.
        shown: the formats that ``roundoff formats`` shows if none is named.
        verified: the formats that ``roundoff verify`` verifies if none is named.
        drawn: for tests, by field, the values to draw from; combinations that the class refuses are not drawn.

    Raises:
        FormatError: a name already belongs to another format, or is not in lower case; or the canonical text of a
            format is not among its names.
    """
    aliases = dict(aliases or {})
    earlier = FAMILIES.get(_key(kind))
    for alias, fmt in aliases.items():
        if type(fmt) is not kind:
            raise FormatError(f"{alias!r} must name a format of the class {kind.__name__}, got {fmt!r}")
        if alias != alias.strip().lower():
            raise FormatError(f"a name of a format is in lower case, without space around it, got {alias!r}")
        if not beginnings and str(fmt) not in aliases:
            raise FormatError(
                f"{fmt!r} is passed as its text, {str(fmt)!r}, to compiled programs and other processes: also"
                " register it by that name"
            )
        alias_owner, _ = _parse_name(alias, alias)
        if alias_owner is not None and _key(type(alias_owner)) != _key(kind):
            raise FormatError(f"the name {alias!r} is taken by {alias_owner!r}; choose another for {fmt!r}")
    if earlier is not None:
        # Compares keys and not classes: a notebook cell that runs again defines another class of the same name.
        for alias in [alias for alias, fmt in ALIASES.items() if type(fmt) is earlier.kind]:
            del ALIASES[alias]
    patterns, names = (tuple(beginnings), tuple(suffixes)), (tuple(shown), tuple(verified))
    FAMILIES[_key(kind)] = FamilyEntry(kind, *patterns, called or kind.__name__, *names, dict(drawn or {}))
    ALIASES.update(aliases)
    format_called.cache_clear()  # A text may now mean another format.


def _key(cls: type[Any]) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


def family_of(fmt: object) -> FamilyEntry | None:
    """Returns the registry entry of a format's class; None if the class is not registered."""
    return FAMILIES.get(_key(type(fmt)))


def overflow_suffix(*policies: str) -> Suffix:
    """The suffix that sets the field ``overflow`` to one of ``policies``."""
    return Suffix(", ".join(f"_{name}" for name in policies), "overflow", f"({'|'.join(policies)})", Overflow)


AXIS_SUFFIX = Suffix("_axAXIS", "axis", r"ax(-?\d{1,3})", int)


def parse_format(text: str) -> Any:
    """Returns the format with the name ``text``; see :meth:`roundoff.formats.Format.parse`."""
    if not isinstance(text, str):
        raise FormatError(f"a format is given as text such as 'e5m10', got {text!r}")
    if text.strip().lower() == "e8m0":
        warnings.warn(
            "'e8m0' is a signed IEEE-like float of 8 exponent bits and no significand bits; the scale type of OCP MX is"
            " 'fp8_e8m0'",
            stacklevel=3,  # The caller of Format.parse.
        )
    return format_called(text)


@cache
def format_called(text: str) -> Any:
    """Does the same as :func:`parse_format`, without the warning; for text that a program has produced."""
    name = text.strip().lower()
    fmt, mistake = _parse_name(text, name)
    if fmt is not None:
        return fmt
    if mistake:
        raise FormatError(f"unknown format {_quote(text)}: there is no suffix {mistake}")
    suggestion = nearest(name, ALIASES, least=0.5)
    hint = f"; did you mean {suggestion!r}?" if suggestion else ""
    syntaxes = ", ".join(beginning.syntax for family in FAMILIES.values() for beginning in family.beginnings)
    raise FormatError(
        f"unknown format {_quote(text)}{hint}; allowed are {syntaxes} (fp16 is e5m10), and names such as fp16, bf16,"
        " tf32, fp8_e4m3, mxfp4; docs/formats.md lists all names and suffixes; a format of your own"
        " has a name once the module that registers it is imported (--allow-import MODULE)"
    )


def _parse_name(text: str, name: str) -> tuple[Any, str | None]:
    """Returns the format of a name; or None, and the mistake in its suffixes if only the beginning is a name."""
    if name in ALIASES:
        return ALIASES[name], None
    mistake = None
    for family, fields, ending in _read_beginnings(text, name):
        values = _read_suffixes(family, fields, ending)
        if isinstance(values, dict):
            try:
                return family.kind(**{**fields, **values}), None
            except FormatError as error:
                raise _range_error(text, error) from None
        allowed = _describe_suffixes(family, fields)
        # The message describes the longest beginning, which comes first.
        mistake = mistake or f"{values} of {_quote(name.removesuffix(ending))}, which takes {allowed}"
    return None, mistake


def _read_beginnings(text: str, name: str) -> Iterator[tuple[FamilyEntry, Fields, str]]:
    """Yields each match of a name's beginning, the longest first: family, fields, and the text of the suffixes."""
    readings: list[tuple[str, FamilyEntry, Any]] = []
    for alias, fmt in ALIASES.items():
        family = FAMILIES[_key(type(fmt))]
        if name.startswith(alias + "_") and family.suffixes:
            fields = {field.name: getattr(fmt, field.name) for field in dataclasses.fields(fmt)}
            readings.append((name[len(alias) :], family, lambda fields=fields: fields))
    for family in FAMILIES.values():
        for beginning in family.beginnings:
            match = re.compile(beginning.pattern, re.ASCII).match(name)
            if match is not None and name[match.end() :][:1] in ("", "_"):  # Refuses e5m10x.
                make = beginning.fields  # Called later, since a value out of range only matters in the chosen reading.
                readings.append((name[match.end() :], family, lambda match=match, make=make: make(match)))
    # The shortest ending follows the longest beginning.
    for ending, family, fields in sorted(readings, key=lambda reading: len(reading[0])):
        try:
            yield family, fields(), ending
        except FormatError as error:
            raise _range_error(text, error) from None


def _read_suffixes(family: FamilyEntry, fields: Fields, ending: str) -> Fields | str:
    """Returns the fields that the suffixes set; or, as text, the first suffix that is unknown or repeated."""
    values: Fields = {}
    for word in ending.split("_")[1:]:
        for suffix in _applicable_suffixes(family, fields):
            match = re.compile(suffix.pattern, re.ASCII).fullmatch(word)
            if match is not None and suffix.field not in values:
                values[suffix.field] = suffix.value(match[1])
                break
        else:
            return _quote(f"_{word}") + (" a second time" if f"_{word}" in ending.replace(f"_{word}", "", 1) else "")
    return values


def _applicable_suffixes(family: FamilyEntry, fields: Fields) -> list[Suffix]:
    """Returns the suffixes for a format: one of special values only if the beginning has not chosen them."""
    has_specials = fields.get("specials", "ieee") != "ieee"  # As in e4m3fn and binary8p4.
    return [suffix for suffix in family.suffixes if not (has_specials and suffix.field == "specials")]


def _describe_suffixes(family: FamilyEntry, fields: Fields) -> str:
    """Lists the syntax of the suffixes that a format may have, for messages."""
    beginnings = (beginning.behind for entry in FAMILIES.values() for beginning in entry.beginnings)
    others = [syntax for behind in beginnings if behind and behind[0] is family.kind for syntax in behind[1]]
    allowed = ", ".join([*(suffix.syntax for suffix in _applicable_suffixes(family, fields)), *others])
    return f"{allowed}, each once and in any order" if allowed else "none"


def _range_error(text: str, error: FormatError) -> FormatError:
    return FormatError(f"format {_quote(text)} is out of range: {error}")


def _quote(text: str) -> str:
    """Puts ``text`` in quotes, and shortens it if it is very long."""
    return repr(text if len(text) <= _LONGEST_SHOWN else f"{text[: _LONGEST_SHOWN - 3]}...")


_HINTS = {
    "e4m3": "'e4m3' is the IEEE-like float: its largest number is 240, and it has infinities. OCP's E4M3, the FP8 of"
    " hardware, whose largest is 448, is 'fp8_e4m3'"
}
"""Hints on formats whose names are mistaken for those of others, by canonical name."""


def mistaken(name: str) -> str | None:
    """Returns the hint for users who may have meant another format than the one with this canonical name."""
    return _HINTS.get(name)
