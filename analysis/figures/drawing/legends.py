"""Legends under a figure, which make room for themselves."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.artist import Artist
from matplotlib.figure import Figure

from .style import letters, points, wrapped

_FONT = 9.0  # points, of a legend on the screen
_LETTER = 0.6  # width of a letter, in heights
_MARK = 5.5  # room for the mark and between columns, in heights of a letter
_LINE = 1.7  # from line to line, in heights of a letter
_FREE = 3  # lines for which a figure has room as it is


def legend_under(canvas: Figure, marks: Sequence[Artist], names: Sequence[str], most: int = 4) -> None:
    """Writes one legend for all panels under them, with the columns that fit; the figure grows if it is long.

    Args:
        canvas: the figure, with all its panels.
        marks: one for each entry.
        names: the names of the entries.
        most: columns there may be.
    """
    if not names:
        return
    font = points(_FONT)
    width, height = canvas.get_size_inches()
    room = letters(width - _MARK * font / 72, font)
    names = [wrapped(name, room) for name in names]
    wide = font * (_LETTER * max(len(line) for name in names for line in name.split("\n")) + _MARK) / 72
    columns = max(1, min(most, len(names), int(width / wide)))
    lines = max(-(-len(names) // columns), sum(name.count("\n") + 1 for name in names) // columns)
    canvas.set_size_inches(width, height + max(0, lines - _FREE) * font * _LINE / 72)
    canvas.legend(marks, names, loc="outside lower center", ncols=columns, fontsize=font)
