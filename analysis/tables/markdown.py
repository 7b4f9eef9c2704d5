"""Writes tables in Markdown."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence


def table(rows: Sequence[Mapping[str, str]]) -> str:
    """Writes rows with the same columns as a table; the content of cells stays text."""
    lines = [list(rows[0]), *([plain(value) for value in row.values()] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    lines.insert(1, ["-" * width for width in widths])
    cells = ([text.ljust(width) for text, width in zip(line, widths, strict=True)] for line in lines)
    return "\n".join(f"| {' | '.join(line)} |" for line in cells)


def plain(text: str) -> str:
    """Puts a text on one line, and escapes what would start markup or end a cell."""
    return re.sub(r"([\\|<`*\[])", r"\\\1", " ".join(text.split()))
