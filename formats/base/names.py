"""The names of formats: what families register, and the way from text to a format."""

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

_LONGEST_SHOWN = 80


class Beginning(NamedTuple):
    """The pattern that names of a family begin with."""

    syntax: str
    """The syntax for messages: ``eXmY``."""
    pattern: str
    """The regular expression that matches it, in lower case."""
    fields: Callable[[re.Match[str]], Fields]
    """Makes the arguments of the format; raises FormatError if a value is out of range."""
    behind: tuple[type[Any], tuple[str, ...]] | None = None
    """The class, and what may stand behind, where it is a name of another class with something behind; for messages."""


class Suffix(NamedTuple):
    """An optional part at the end of a name, after an underscore."""

    syntax: str
    """The syntax for messages: ``_bBLOCK``."""
    field: str
    """The field that the part sets; no two parts set the same one."""
    pattern: str
    """The regular expression that matches it, without the underscore."""
    value: Callable[[str], Any]
    """Makes the field's value of what the pattern's first group found."""


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
"""The formats that have a name of their own, or a canonical one that somebody is likely to misspell."""


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
    """Makes the names of a family known, to :meth:`Format.parse` and wherever formats are given as text.

    Compiled programs, sweep files and other processes also have formats as text; there each must find the family
    registered, by importing the module that registers it. To register the class again replaces its earlier names.

    Args:
        kind: the class, a frozen dataclass if its names have beginnings or suffixes.
        beginnings: how names that state the fields of a format begin.
        suffixes: may follow, in any order; each sets a field.
        aliases: formats of the class by special names, in lower case.
        called: the family's own name, where tests draw formats of it; the class's name if empty.
        shown: the formats that ``roundoff formats`` shows if none is named.
        verified: the formats that ``roundoff verify`` verifies if none is named.
        drawn: for tests, by field, the values to draw from; combinations that the class refuses are not drawn.

    Raises:
        FormatError: a name belongs to another format already, or is not in lower case; or the text of a format is
            none of its names.
    """
    aliases = dict(aliases or {})
    known = FAMILIES.get(_key(kind))
    for alias, fmt in aliases.items():
        if type(fmt) is not kind:
            raise FormatError(f"{alias!r} must name a format of the class {kind.__name__}, got {fmt!r}")
        if alias != alias.strip().lower():
            raise FormatError(f"a name of a format is in lower case, without space around it, got {alias!r}")
        if not beginnings and str(fmt) not in aliases:
            raise FormatError(
                f"{fmt!r} goes by its text, {str(fmt)!r}, into compiled programs and other processes: register it by"
                " that name, too"
            )
        other, _ = _parse_name(alias, alias)
        if other is not None and _key(type(other)) != _key(kind):
            raise FormatError(f"the name {alias!r} is taken by {other!r}; choose another for {fmt!r}")
    if known is not None:
        for alias in [alias for alias, fmt in ALIASES.items() if type(fmt) is known.kind]:
            del ALIASES[alias]
    FAMILIES[_key(kind)] = FamilyEntry(
        kind,
        tuple(beginnings),
        tuple(suffixes),
        called or kind.__name__,
        tuple(shown),
        tuple(verified),
        dict(drawn or {}),
    )
    ALIASES.update(aliases)
    format_called.cache_clear()


def _key(kind: type[Any]) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def family_of(fmt: object) -> FamilyEntry | None:
    """Returns the registry entry of a format's class; None if the class is not registered."""
    return FAMILIES.get(_key(type(fmt)))


def overflow_suffix(*policies: str) -> Suffix:
    """The suffix that sets the field ``overflow`` to one of ``policies``."""
    return Suffix(", ".join(f"_{name}" for name in policies), "overflow", f"({'|'.join(policies)})", Overflow)


AXIS_SUFFIX = Suffix("_axAXIS", "axis", r"ax(-?\d{1,3})", int)


def parse_format(text: str) -> Any:
    """The format called ``text``; see :meth:`roundoff.formats.Format.parse`."""
    if not isinstance(text, str):
        raise FormatError(f"a format is given as text such as 'e5m10', got {text!r}")
    if text.strip().lower() == "e8m0":
        warnings.warn(
            "'e8m0' is a signed IEEE-like float of 8 exponent bits and no significand bits; the scale type of OCP MX is"
            " 'fp8_e8m0'",
            stacklevel=3,
        )
    return format_called(text)


@cache
def format_called(text: str) -> Any:
    """:func:`parse_format` for text that a program has made, and that nobody can have meant otherwise."""
    name = text.strip().lower()
    fmt, problem = _parse_name(text, name)
    if fmt is not None:
        return fmt
    if problem:
        raise FormatError(f"unknown format {_quoted(text)}: there is no suffix {problem}")
    close = nearest(name, ALIASES, least=0.5)
    hint = f"; did you mean {close!r}?" if close else ""
    shapes = ", ".join(beginning.syntax for family in FAMILIES.values() for beginning in family.beginnings)
    raise FormatError(
        f"unknown format {_quoted(text)}{hint}; allowed are {shapes} (fp16 is e5m10), and names such as fp16, bf16,"
        " tf32, fp8_e4m3, mxfp4; docs/formats.md lists them all, and what may stand behind them; a format of your own"
        " has a name once the module that registers it is imported (--allow-import MODULE)"
    )


def _parse_name(text: str, name: str) -> tuple[Any, str | None]:
    """The format of a name; or None, and the mistake in its suffixes if it begins as a format's does."""
    if name in ALIASES:
        return ALIASES[name], None
    problem = None
    for family, fields, rest in _readings(text, name):
        changes = _suffixes(family, fields, rest)
        if isinstance(changes, dict):
            return _made(text, family.kind, {**fields, **changes}), None
        problem = problem or f"{changes} of {_quoted(name.removesuffix(rest))}, which takes {_allowed(family, fields)}"
    return None, problem


def _readings(text: str, name: str) -> Iterator[tuple[FamilyEntry, Fields, str]]:
    """Yields each way to read the beginning of a name, longest first: family, fields, and the rest of the name."""
    found: list[tuple[str, FamilyEntry, Any]] = []
    for alias, fmt in ALIASES.items():
        family = FAMILIES[_key(type(fmt))]
        if name.startswith(alias + "_") and family.suffixes:
            fields = {field.name: getattr(fmt, field.name) for field in dataclasses.fields(fmt)}
            found.append((name[len(alias) :], family, lambda fields=fields: fields))
    for family in FAMILIES.values():
        for beginning in family.beginnings:
            match = re.compile(beginning.pattern, re.ASCII).match(name)
            if match is not None and name[match.end() :][:1] in ("", "_"):
                made = beginning.fields
                found.append((name[match.end() :], family, lambda match=match, made=made: made(match)))
    for rest, family, fields in sorted(found, key=lambda reading: len(reading[0])):
        try:
            yield family, fields(), rest
        except FormatError as error:
            raise _out_of_range(text, error) from None


def _suffixes(family: FamilyEntry, fields: Fields, rest: str) -> Fields | str:
    """The fields that the suffixes set; or the suffix that there is not, or twice."""
    changes: Fields = {}
    for word in rest.split("_")[1:]:
        for suffix in _possible(family, fields):
            match = re.compile(suffix.pattern, re.ASCII).fullmatch(word)
            if match is not None and suffix.field not in changes:
                changes[suffix.field] = suffix.value(match[1])
                break
        else:
            return _quoted(f"_{word}") + (" a second time" if f"_{word}" in rest.replace(f"_{word}", "", 1) else "")
    return changes


def _possible(family: FamilyEntry, fields: Fields) -> list[Suffix]:
    """Suffixes that suit a format; special values are chosen only where the name has not chosen them."""
    chosen = fields.get("specials", "ieee") != "ieee"
    return [suffix for suffix in family.suffixes if not (chosen and suffix.field == "specials")]


def _allowed(family: FamilyEntry, fields: Fields) -> str:
    beginnings = (beginning.behind for other in FAMILIES.values() for beginning in other.beginnings)
    further = [syntax for behind in beginnings if behind and behind[0] is family.kind for syntax in behind[1]]
    allowed = ", ".join([*(suffix.syntax for suffix in _possible(family, fields)), *further])
    return f"{allowed}, each once and in any order" if allowed else "none"


def _made(text: str, kind: type[Any], fields: Fields) -> Any:
    try:
        return kind(**fields)
    except FormatError as error:
        raise _out_of_range(text, error) from None


def _out_of_range(text: str, error: FormatError) -> FormatError:
    return FormatError(f"format {_quoted(text)} is out of range: {error}")


def _quoted(text: str) -> str:
    """``text`` in quotes, cut where it is very long."""
    return repr(text if len(text) <= _LONGEST_SHOWN else f"{text[: _LONGEST_SHOWN - 3]}...")


_MISTAKEN = {
    "e4m3": "'e4m3' is the IEEE-like float: its largest number is 240, and it has infinities. OCP's E4M3, the FP8 of"
    " hardware, whose largest is 448, is 'fp8_e4m3'",
}
"""Formats whose names are taken for others."""


def mistaken(name: str) -> str | None:
    """Returns the hint for users who may have meant another format than the one with this canonical name."""
    return _MISTAKEN.get(name)
