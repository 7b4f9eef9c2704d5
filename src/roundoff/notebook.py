"""Display results in notebooks as they print, with tables as HTML tables."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from roundoff.printable import printable

if TYPE_CHECKING:
    import pandas as pd

_MOST_ROWS = 60


def as_html(*parts: str | pd.DataFrame) -> str:
    """Texts as paragraphs and tables as tables, for ``_repr_html_``; nothing in them is taken for markup.

    Args:
        parts: Tables and texts, shown below each other. Of long tables the middle is left out; numbers have six digits.
    """
    found = ""
    for part in parts:
        if isinstance(part, str):
            lines = escape(printable(part, lines=True)).split("\n")
            found += f"<p>{'<br>'.join(lines)}</p>"
        else:
            shown = part.map(lambda value: printable(value) if isinstance(value, str) else value)
            found += shown.to_html(index=False, border=0, max_rows=_MOST_ROWS, float_format="{:.6g}".format, na_rep="")
    return found
