"""Reads YAML with the line and column of every value, and with predictable types of scalars.

Scalars follow the core schema of YAML 1.2: ``3e-4`` is a number, ``no`` and ``on`` are text, ``010`` is ten. Duplicate
keys are an error. (PyYAML's own loaders read YAML 1.1 and keep the last of duplicate keys.)
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import yaml
from yaml.error import Mark
from yaml.nodes import Node, ScalarNode

from roundoff.printable import printable

from ..errors import Problem, SweepFileError

_MAX_DEPTH = 20
_MAX_VALUES = 100_000  # aliases can make a small file describe a huge one

_INTEGER = re.compile(r"[-+]?[0-9]+", re.ASCII)
_OTHER_BASE = re.compile(r"0o[0-7]+|0x[0-9a-fA-F]+", re.ASCII)
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?", re.ASCII)
_CONSTANTS = {
    **dict.fromkeys(["", "~", "null", "Null", "NULL"]),
    **dict.fromkeys(["true", "True", "TRUE"], True),
    **dict.fromkeys(["false", "False", "FALSE"], False),
    **dict.fromkeys([".nan", ".NaN", ".NAN"], float("nan")),
    **dict.fromkeys([".inf", ".Inf", ".INF", "+.inf", "+.Inf", "+.INF"], float("inf")),
    **dict.fromkeys(["-.inf", "-.Inf", "-.INF"], float("-inf")),
}
_MAX_DIGITS = 400  # Python refuses to convert very many digits


@dataclass(frozen=True)
class Located:
    """A value and its place.

    Attributes:
        value: None, bool, int, float, str, a list of ``Located``, or a dict of ``Located`` by text key.
        place: ``source:line:column``, counted from 1.
        key_places: for a dict, the places of its keys.
    """

    value: Any
    place: str
    key_places: dict[str, str] | None = None

    def plain(self) -> Any:
        """The value without places."""
        if isinstance(self.value, dict):
            return {key: item.plain() for key, item in self.value.items()}
        if isinstance(self.value, list):
            return [item.plain() for item in self.value]
        return self.value


def parse(
    text: str, source: str, *, columns: bool = True, needs: str = "a sweep needs at least name and grid"
) -> Located:
    """Reads one YAML document.

    Args:
        text: the document.
        source: the name of the document in places.
        columns: whether places have line and column; for arguments they are only the source.
        needs: the message for an empty document.

    Raises:
        SweepFileError: it is not YAML, has duplicate or non-text keys, tags, or is absurdly large.
    """

    def place(mark: Mark) -> str:
        return f"{source}:{mark.line + 1}:{mark.column + 1}" if columns else source

    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        position = place(mark) if mark else source
        raise SweepFileError([Problem(position, f"is not YAML: {error.problem or error.context}")]) from error
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else str(error).splitlines()[0]
        raise SweepFileError([Problem(source, f"is not YAML: {reason}")]) from error
    if node is None:
        raise SweepFileError([Problem(source, f"is empty; {needs}")])
    reader = _Reader(place)
    result = reader.read(node, 0)
    if reader.problems:
        raise SweepFileError(reader.problems)
    return result


class _Reader:
    def __init__(self, place: Callable[[Mark], str]) -> None:
        self.place = place
        self.problems: list[Problem] = []
        self._values = 0
        self._resolver = yaml.SafeLoader("")

    def read(self, node: Node, depth: int) -> Located:
        place = self.place(node.start_mark)
        self._values += 1
        if depth > _MAX_DEPTH or self._values > _MAX_VALUES:
            excess = f"nested more than {_MAX_DEPTH} deep" if depth > _MAX_DEPTH else f"more than {_MAX_VALUES} values"
            raise SweepFileError([Problem(place, f"{excess} (through an alias, perhaps); write them out shorter")])
        # A tag (!!int, !x) gives a node another tag than resolution does.
        text = node.value if isinstance(node, yaml.ScalarNode) else None
        is_plain = isinstance(node, yaml.ScalarNode) and node.style is None
        if node.tag != self._resolver.resolve(type(node), text, (is_plain, not is_plain)):  # type: ignore[no-untyped-call]
            self.problems.append(Problem(place, f"tags such as {node.tag} have no meaning here; remove it"))
            return Located(None, place)
        if isinstance(node, yaml.ScalarNode):
            return Located(self._scalar(node, place), place)
        if isinstance(node, yaml.SequenceNode):
            return Located([self.read(item, depth + 1) for item in node.value], place)
        assert isinstance(node, yaml.MappingNode)
        values: dict[str, Located] = {}
        places: dict[str, str] = {}
        for key_node, value_node in node.value:
            key_place = self.place(key_node.start_mark)
            if not isinstance(key_node, yaml.ScalarNode):
                self.problems.append(Problem(key_place, "a key must be text, not a list or a mapping"))
                continue
            key = self._text(key_node.value, key_place)
            if key in values:
                self.problems.append(Problem(key_place, f"duplicate key {key!r}; it is already at {places[key]}"))
                continue
            places[key] = key_place
            values[key] = self.read(value_node, depth + 1)
        return Located(values, place, places)

    def _text(self, text: str, place: str) -> str:
        """Returns ``text``; text that no file can hold, with half of a surrogate pair, is made printable and noted."""
        if text.isascii() or not any("\ud800" <= character <= "\udfff" for character in text):
            return text
        with suppress(UnicodeDecodeError):  # both halves: JSON escapes characters beyond 16 bits so
            return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le")
        self.problems.append(Problem(place, f"the text '{printable(text)}' has half of a surrogate pair; remove it"))
        return printable(text)

    def _scalar(self, node: ScalarNode, place: str) -> Any:
        text = self._text(node.value, place)
        if node.style is not None:  # quoted or block text
            return text

        if text in _CONSTANTS or len(text) >= _MAX_DIGITS:
            return _CONSTANTS.get(text, text)
        if _INTEGER.fullmatch(text):
            return int(text)
        if _OTHER_BASE.fullmatch(text):
            return int(text, 0)
        return float(text) if _FLOAT.fullmatch(text) else text
