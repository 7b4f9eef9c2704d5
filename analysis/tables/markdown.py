"""Tables in Markdown."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence


def table(rows: Sequence[Mapping[str, str]]) -> str:
    """Rows with the same columns as a table; the content of cells stays text."""
    lines = [list(rows[0]), *([plain(value) for value in row.values()] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    lines.insert(1, ["-" * width for width in widths])
    cells = ([text.ljust(width) for text, width in zip(line, widths, strict=True)] for line in lines)
    return "\n".join(f"| {' | '.join(line)} |" for line in cells)


def plain(text: str) -> str:
    """Text on one line that starts no markup and ends no cell."""
    return re.sub(r"([\\|<`*\[])", r"\\\1", " ".join(text.split()))
