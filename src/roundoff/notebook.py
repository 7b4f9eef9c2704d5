"""Display results in notebooks as they print, with tables as HTML tables."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Any

from roundoff.printable import printable

if TYPE_CHECKING:
    import pandas as pd

_MOST_ROWS = 60


def as_html(*parts: str | pd.DataFrame) -> str:
    """Texts as paragraphs and tables as tables, for ``_repr_html_``; nothing in them is taken for markup.

    Args:
        parts: what is shown below each other. Of long tables the middle is left out; numbers have six digits.
    """
    return "".join(_paragraph(part) if isinstance(part, str) else _table(part) for part in parts)


def _paragraph(text: str) -> str:
    lines = escape(printable(text, lines=True)).split("\n")
    return f"<p>{'<br>'.join(lines)}</p>"


def _table(table: pd.DataFrame) -> str:
    shown = table.map(lambda value: printable(value) if isinstance(value, str) else value)
    markup: str = shown.to_html(index=False, border=0, max_rows=_MOST_ROWS, float_format=_number, na_rep="")
    return markup


def _number(value: Any) -> str:
    return f"{value:.6g}"
