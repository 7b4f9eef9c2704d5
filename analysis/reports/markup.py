"""Makes HTML and SVG, and escapes everything that came from a file."""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple
from unicodedata import category

_VOID = {"meta", "link", "br"}
_UNSEEN = {"Cc", "Cf", "Cs"}  # control characters, also those that turn the direction of text, and halves of pairs


class Safe(str):
    """Text that is markup already."""

    __slots__ = ()


def element(name: str, /, *children: object, **attributes: object) -> Safe:
    """Makes an element; children that are not :class:`Safe` are escaped, as are the values of attributes.

    Args:
        name: the name of the element.
        children: its content; None is skipped.
        attributes: underscores become dashes, one at the end is dropped (``class_``); None and False: no attribute,
            True: an attribute without a value.
    """
    present = [(key.rstrip("_").replace("_", "-"), value) for key, value in attributes.items()]
    present = [(key, value) for key, value in present if value is not None and value is not False]
    text = "".join(f" {key}" if value is True else f' {key}="{_escape(value)}"' for key, value in present)
    return Safe(f"<{name}{text}>" if name in _VOID else f"<{name}{text}>{join(children)}</{name}>")


def join(children: Iterable[object]) -> Safe:
    """Joins children, escaped unless they are :class:`Safe`."""
    return Safe(
        "".join(child if isinstance(child, Safe) else _escape(child) for child in children if child is not None)
    )


def _escape(value: object) -> str:
    text = str(value)
    if not text.isprintable():  # seldom
        text = "".join("\ufffd" if category(char) in _UNSEEN and char not in "\n\t" else char for char in text)
    return html.escape(text, quote=True)


class Column(NamedTuple):
    """A column of a table: its heading, and whether it holds numbers, which are aligned to the right."""

    heading: str
    numeric: bool = True


def table(caption: str, columns: Sequence[Column], rows: Iterable[Sequence[object]]) -> Safe:
    """Makes a table with headers of columns and rows; on a narrow screen rows become cards (see ``style.css``).

    Args:
        caption: the caption of the table.
        columns: the first one is the heading of its row.
        rows: cells; None is shown as a dash.
    """
    # Without the roles, a browser would not treat cards as a table.
    head = element(
        "tr",
        *(
            element("th", column.heading, scope="col", role="columnheader", class_="number" if column.numeric else None)
            for column in columns
        ),
        role="row",
    )
    body = []
    for row in rows:
        heading, *cells = zip(columns, row, strict=True)
        shown = [_cell("th", *heading, scope="row", role="rowheader")]
        shown += [_cell("td", column, cell, role="cell", data_label=column.heading) for column, cell in cells]
        body.append(element("tr", *shown, role="row"))
    return element(
        "table",
        element("caption", caption),
        element("thead", head, role="rowgroup"),
        element("tbody", *body, role="rowgroup"),
        role="table",
    )


def _cell(name: str, column: Column, cell: object, **attributes: object) -> Safe:
    content = "\u2013" if cell is None or cell == "" else cell
    return element(name, content, class_="number" if column.numeric else None, **attributes)


def definitions(pairs: Mapping[str, object]) -> Safe:
    """Lists names with their definitions."""
    return element("dl", *(element("div", element("dt", name), element("dd", text)) for name, text in pairs.items()))
