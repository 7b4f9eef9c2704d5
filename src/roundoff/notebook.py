"""Displays results in notebooks as they print, with tables as HTML tables."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from roundoff.printable import printable

if TYPE_CHECKING:
    import pandas as pd

_MOST_ROWS = 60


def as_html(*parts: str | pd.DataFrame) -> str:
    """Writes texts as paragraphs and tables as HTML tables, for ``_repr_html_``; all content is escaped.

    Args:
        parts: Tables and texts, shown below each other. Of long tables the middle is left out; numbers have six digits.
    """
    html = ""
    for part in parts:
        if isinstance(part, str):
            lines = escape(printable(part, lines=True)).split("\n")
            html += f"<p>{'<br>'.join(lines)}</p>"
        else:
            table = part.map(lambda value: printable(value) if isinstance(value, str) else value)
            html += table.to_html(index=False, border=0, max_rows=_MOST_ROWS, float_format="{:.6g}".format, na_rep="")
    return html
