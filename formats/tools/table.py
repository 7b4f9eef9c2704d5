"""The output of ``roundoff formats``: a table of facts, or a full description of one format."""

from __future__ import annotations

import dataclasses
import inspect
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum
from itertools import combinations
from typing import Any

import torch

from ..base.errors import FormatError
from ..base.format import Format
from ..base.names import ALIASES, FAMILIES, family_of, mistaken

_HEAD = ("format", "also called", "bits", "largest", "smallest normal", "smallest", "eps", "simulated in")
_NUMBERS = {"largest": "max", "smallest_normal": "smallest_normal", "smallest": "smallest", "eps": "eps"}
_FEW = 64
"""The largest number of values that a description lists one by one."""


def aligned(rows: Sequence[Sequence[str]], left: Iterable[int]) -> str:
    """Rows of cells as lines of columns, those numbered in ``left`` flush left and the others flush right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    flush_left = set(left)
    return "\n".join(
        "  ".join(
            cell.ljust(width) if i in flush_left else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )


def format_table(names: Sequence[str] | None = None) -> str:
    """Facts of number formats as aligned text, a line each.

    ``smallest`` is the smallest number above zero. Block formats have the numbers of their extreme scales; integers
    scaled by the data have empty cells.

    Args:
        names: the formats to show; if None, the formats that their families choose to show.

    Raises:
        FormatError: a name is not a format.
    """
    rows = [_HEAD]
    for fmt in parsed(names):
        values = facts(fmt)
        shown = ("" if values[name] is None else f"{values[name]:.6g}" for name in _NUMBERS)
        rows.append((str(fmt), ", ".join(_other_names(fmt)), str(fmt.bits), *shown, _carrier(fmt)))  # type: ignore[arg-type]
    return aligned(rows, (0, 1, 7))  # Names, and the carrier.


def parsed(names: Sequence[str] | None = None) -> list[Format]:
    """The formats with these names; if None, the formats that their families choose to show.

    Raises:
        FormatError: a name is not a format.
    """
    usual = [name for family in FAMILIES.values() for name in family.shown]
    return [Format.parse(name) for name in (usual if names is None else names)]


def facts(fmt: Format) -> dict[str, Any]:
    """The facts of the table as values of JSON; None represents infinity and missing facts."""
    values = {name: getattr(fmt, attribute) for name, attribute in _NUMBERS.items()}
    # JSON lacks infinity.
    numbers = {name: value if value is not None and math.isfinite(value) else None for name, value in values.items()}
    return {
        "format": str(fmt),
        "also_called": _other_names(fmt),
        "bits": fmt.bits,
        "bits_per_number": fmt.bits_per_number,
        **numbers,
        "simulated_in": _carrier(fmt),
    }


def describe(name: str | Format) -> str:
    """Everything about one format: its rules, its facts, its numbers when few, and its neighbours compared with it.

    Args:
        name: a format or its name.

    Raises:
        FormatError: it is not a format.
    """
    fmt = Format.parse(name)
    also = _other_names(fmt)
    title = str(fmt) + (f" (also called {', '.join(also)})" if also else "")
    parts = [title, "=" * len(title), "", *_rules(fmt), _facts(fmt), ""]
    few = _positive_values(fmt)
    if few:
        parts += [few, ""]
    parts += ["Neighbours, compared with it:", _neighbour_table(fmt)]
    return "\n".join(parts)


def _other_names(fmt: Format) -> list[str]:
    return [alias for alias, other in ALIASES.items() if other == fmt and alias != str(fmt)]


def _carrier(fmt: Format) -> str:
    return str(fmt.carrier).removeprefix("torch.")


def _rules(fmt: Format) -> list[str]:
    """Returns the docstring of the format's class as plain text, and a hint on formats it may be mistaken for."""
    text = inspect.cleandoc(type(fmt).__doc__ or "").split("\nArgs:")[0].strip()
    note = mistaken(str(fmt))
    return [re.sub(r"(?::\w+:)?`+([^`]*)`+", r"\1", text), "", *([note, ""] if note else [])]  # Without markup.


def _facts(fmt: Format) -> str:
    share = fmt.bits_per_number
    rows = [
        ("bits", f"{fmt.bits}" + ("" if share == fmt.bits else f" ({share:g} with the share of the block's scale)")),
        *(
            (label, f"{value:.17g}")
            for label, value in (
                ("largest", fmt.max),
                ("smallest normal", fmt.smallest_normal),
                ("smallest above zero", fmt.smallest),
                ("eps", fmt.eps),
            )
            if value is not None
        ),
        ("simulated in", _carrier(fmt)),
    ]
    values = listed(fmt)
    if values is not None:
        rows.insert(1, ("finite numbers", str(len(values))))  # After the bits.
    return aligned(rows, (0, 1))


def _positive_values(fmt: Format) -> str:
    """The numbers above zero, if few; of blocks and integers scaled by the data, at a scale of 1."""
    values = listed(fmt)
    if values is None:
        return ""
    positive = values[values > 0]
    if len(positive) > _FEW:
        return ""
    at_one = " at a scale of 1" if is_scaled(fmt) else ""
    symmetric = torch.equal(-values[values < 0].flip(0), positive)
    below = "the same below it" if symmetric else "none below it" if not bool((values < 0).any()) else "others below it"
    text = f"Numbers above zero{at_one} ({below}):"
    for start in range(0, len(positive), 8):
        text += "\n  " + "  ".join(f"{value:<12.7g}" for value in positive[start : start + 8].tolist()).rstrip()
    return text


def listed(fmt: Format) -> torch.Tensor | None:
    """The numbers of a format that lists them; None if it does not, or they are too many."""
    try:
        return fmt.values()
    except FormatError:
        return None


def is_scaled(fmt: Format) -> bool:
    """Whether the numbers that a format lists are those at a scale of 1."""
    return fmt.bits_per_number != fmt.bits or fmt.max is None  # Scales of blocks, or of tensors.


def _neighbour_table(fmt: Format) -> str:
    rows = [("format", "bits", "largest", "smallest", "eps")]
    for neighbour in neighbours(fmt):
        ratios = (
            _ratio(neighbour.max, fmt.max),
            _ratio(neighbour.smallest, fmt.smallest),
            _ratio(neighbour.eps, fmt.eps),
        )
        change = neighbour.bits_per_number - fmt.bits_per_number
        rows.append((str(neighbour), f"{change:+g}" if change else "same", *ratios))
    return aligned(rows, (0,))


def _ratio(value: float | None, reference: float | None) -> str:
    """``x 2``, ``x 2^112``, ``/ 4``, ``same``; nothing where one of them is missing or infinite."""
    if value is None or reference is None or not (0 < value < math.inf and 0 < reference < math.inf):
        return ""
    if value == reference:
        return "same"
    exponent = math.log2(value) - math.log2(reference)  # The quotient itself may overflow.
    sign = "x" if exponent > 0 else "/"
    if abs(exponent) >= 10:
        return f"{sign} 2^{abs(exponent):.4g}"
    factor = 2.0 ** abs(exponent)
    return f"{sign} {factor:.4g}" if factor >= 1.0005 else "about same"  # Four digits would show 1.


def neighbours(fmt: Format) -> list[Format]:
    """The formats of the same family that are a step away.

    A step is a bit more or less in a field, a bit moved from one field to another, twice or half the block, or another
    choice of one of the format's rules. Fields called ``width`` or ``..._bits`` are widths; ``block`` and ``group`` are
    blocks; a rule is a flag, a member of an enumeration, or a text with other choices in its family.

    Args:
        fmt: any format; a format that is not a dataclass lacks neighbours.

    Returns:
        Those that exist, each once, in that order.
    """
    if not dataclasses.is_dataclass(type(fmt)):
        return []
    fields = {field.name: getattr(fmt, field.name) for field in dataclasses.fields(fmt)}  # type: ignore[arg-type]
    family = family_of(fmt)
    formats: list[Format] = []
    for changes in (*_other_widths(fields), *_other_rules(fields, {} if family is None else family.drawn)):
        try:
            candidate: Format = dataclasses.replace(fmt, **changes)  # type: ignore[type-var]
        except FormatError:
            continue
        if candidate != fmt and candidate not in formats:
            formats.append(candidate)
    return formats


def _other_widths(fields: dict[str, Any]) -> Iterator[dict[str, Any]]:
    parts = [name for name in fields if name.endswith("_bits")]
    for name in (*parts, *({"width"} & fields.keys())):
        yield {name: fields[name] - 1}
        yield {name: fields[name] + 1}
    for first, second in combinations(parts, 2):  # Moves a bit, such as from the exponent to the significand.
        yield {first: fields[first] + 1, second: fields[second] - 1}
        yield {first: fields[first] - 1, second: fields[second] + 1}
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
        else:  # A text has no type that lists its values; the family's tests do.
            choices = drawn.get(name, ()) if isinstance(value, str) else ()
        yield from ({name: choice} for choice in choices)
