"""Defines the style of figures: readable in print, in greyscale and for colour-blind readers; reproducible bytes."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any, NamedTuple

import matplotlib as mpl
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from roundoff.printable import printable


class Look(NamedTuple):
    """The look of one series, distinct in three ways: colour, marker and line."""

    color: str
    marker: str
    line: str


# Four of Okabe & Ito's colours and four darker ones: 3 to 1 against white, distinct also for colour-blind readers.
_COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#8C510A", "#6699CC", "#332288", "#882255")
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*", "<", ">")
_LINES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (1, 3)))

REFERENCE = Look("#444444", "none", "--")
CRASH = "#000000"
FAILED: dict[str, Any] = {"facecolor": "none", "edgecolor": "#777777", "hatch": "////", "linewidth": 0.0}
"""The look of a place where all runs have failed, which has no score."""


class Size(NamedTuple):
    """The size of a figure.

    Attributes:
        width: the width of the whole figure in inches; None: as its panels need.
        font: size of text, in points; marks and lines are in proportion.
        columns: panels side by side, at most.
        dots: per inch, of a PNG.
        titled: whether it has a title, which the caption replaces on a page of a journal.
    """

    width: float | None
    font: float
    columns: int
    dots: float
    titled: bool


SCREEN = Size(None, 11.0, 3, 150.0, titled=True)
INLINE = Size(4.6, 9.0, 1, 72.0, titled=False)
"""The size of a figure in a page, whose letters are legible on a phone."""
SIZES = {
    "screen": SCREEN,
    "single": Size(3.25, 7.0, 1, 300.0, titled=False),
    "double": Size(6.75, 7.5, 3, 300.0, titled=False),
}

_LONGEST = 300  # characters of a text; the layout of very long ones takes minutes
_LONGEST_TITLE = 200  # characters of the title of a panel, in all its lines
_SLANTED: dict[str, Any] = {"rotation": 40, "ha": "right", "rotation_mode": "anchor"}
_SHORT = 6  # characters of a name that fits under its place
_LINE = 24  # characters of a name beside an axis, in one line
_LONGEST_NAME = 60  # characters of a name beside an axis, in all its lines

_SETTINGS = {
    "axes.titlesize": "medium",
    "figure.titlesize": "large",
    "pdf.fonttype": 42,  # letters as letters, which journals ask for
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#dddddd",
    "axes.axisbelow": True,
    "legend.frameon": False,
    "svg.hashsalt": "roundoff",  # else ids in SVG files are random
    "figure.dpi": 100.0,
}


def look(number: int) -> Look:
    """Returns the look of one of a few unordered series, by its number."""
    count = len(_COLORS)
    line = _LINES[(number + number // count) % 6]  # repeated colours get other lines
    return Look(_COLORS[number % count], _MARKERS[number % 10], line)  # type: ignore[arg-type]


def ordered_looks(count: int) -> list[Look]:
    """Returns looks of ``count`` ordered series, from dark to light: the order survives in greyscale."""
    shades = mpl.colormaps["inferno"]([0.2 + 0.46 * i / max(count - 1, 1) for i in range(count)])
    return [
        Look(to_hex(shade), _MARKERS[i % 10], _LINES[i % 6])  # type: ignore[arg-type]
        for i, shade in enumerate(shades)
    ]


def points(length: float) -> float:
    """Returns a length in points, in proportion to the text of the figure that is being drawn."""
    return float(length * mpl.rcParams["font.size"] / SCREEN.font)


def write_names_under(axis: Axes, places: Sequence[float], names: Sequence[str]) -> None:
    """Writes names under an axis: slanted if they are long, so that they do not overlap; very long ones in lines."""
    axis.set_xticks(places, wrap_names(names), **(_SLANTED if max(map(len, names), default=0) > _SHORT else {}))


def wrap_names(names: Sequence[str]) -> list[str]:
    """Wraps and cuts very long names next to or under an axis, which would leave the panel no room."""
    return [wrap(_cut(name, _LONGEST_NAME, name), _LINE) for name in names]


def wrap(text: str, most: int) -> str:
    """Breaks a :func:`drawable` text into lines of limited length, which end after words or their parts."""
    if len(text) <= most:
        return text
    lines = [""]
    plain = text.replace(r"\$", "$")  # a line break within `\$` would begin a formula
    letter, end = r"(?:[^\s+_/,:-]|-(?=\d))", r"(?:[\s+_/,:]|-(?!\d))"  # 1e-5 stays together
    for part in re.findall(rf"{letter}{{0,{most - 1}}}{end}|{letter}{{1,{most}}}", plain):
        if len(lines[-1]) + len(part.rstrip()) > most:
            lines.append("")
        lines[-1] += part
    return "\n".join(line.strip() for line in lines).replace("$", r"\$")


def letters(width: float, font: float) -> int:
    """Returns the approximate number of letters that fit side by side in a width in inches."""
    return max(1, int(width * 72 / (0.6 * font)))


def takes_half(names: Sequence[str], size: Size) -> bool:
    """Whether names next to an axis would take more than half the width of a figure, and so are put elsewhere."""
    return size.width is not None and max(map(len, names), default=0) > letters(size.width / 2, size.font)


@contextmanager
def figure(
    panels: int,
    title: str,
    width: float = 5.2,
    height: float = 3.9,
    size: Size = SCREEN,
    *,
    columns: int | None = None,
    sharex: bool = False,
    sharey: bool = False,
) -> Iterator[tuple[Figure, list[Axes]]]:
    """Makes a figure, without touching matplotlib's global state, and its panels row by row.

    The figure is laid out when the block ends.

    Args:
        panels: the number of panels; the remaining places of the last row stay empty.
        title: the title of the figure; small if it has two lines. The title of a single panel is added to it.
        width: the width of a panel on the screen, in inches.
        height: the height of a panel on the screen, in inches.
        size: the size of the figure.
        columns: panels side by side; None: the number that fits, in rows of equal length.
        sharex: whether panels have one scale across.
        sharey: whether panels have one scale up.
    """
    rows = -(-max(panels, 1) // (columns or size.columns))
    columns = columns or -(-max(panels, 1) // rows)
    scale = size.font / SCREEN.font
    lengths = {
        "font.size": size.font,
        "lines.linewidth": 1.5 * scale,
        "lines.markersize": 6.0 * scale,
        "axes.linewidth": 0.8 * scale,
        "grid.linewidth": 0.6 * scale,
        **{f"{axis}tick.major.{key}": scale * x for axis in "xy" for key, x in (("size", 3.5), ("width", 0.8))},
        **{f"{axis}tick.minor.{key}": scale * x for axis in "xy" for key, x in (("size", 2), ("width", 0.6))},
    }
    with mpl.rc_context(_SETTINGS | lengths):  # type: ignore[arg-type]
        canvas_width = size.width or width * columns + 0.6
        canvas = Figure(figsize=(canvas_width, (height * rows + 0.5) * scale), dpi=size.dots)
        axes = list(canvas.subplots(rows, columns, squeeze=False, sharex=sharex, sharey=sharey).flat)
        for axis in axes[panels:]:
            axis.set_axis_off()
        yield canvas, axes
        if size.titled:
            heading, line, details = title.removeprefix(": ").partition("\n")
            if panels == 1:
                panel_title = axes[0].get_title()
                heading += panel_title if panel_title.startswith(" (") else f", {panel_title}" if panel_title else ""
                axes[0].set_title("")
            heading = wrap(heading[:1].upper() + heading[1:], letters(canvas_width, size.font))
            canvas.suptitle(heading + line + details, fontsize="medium" if line else "large")
    # Executed once here: a figure that has a layout engine would be laid out, and drawn twice, for each file.
    ConstrainedLayoutEngine().execute(canvas)
    if sum(map(_fit_labels, axes[:panels])):  # `sum`, not `any`: fits all panels
        ConstrainedLayoutEngine().execute(canvas)


def _fit_labels(axis: Axes) -> bool:
    """Wraps a title that is wider than its panel, and slants names that overlap; returns whether anything changed."""
    name, width = axis.get_title(), axis.title.get_window_extent().width
    title = _cut(name, _LONGEST_TITLE, name)
    if width > axis.bbox.width:
        title = wrap(title, max(1, int(len(name) * axis.bbox.width / width)))
    axis.title.set_text(title)
    labels = [label for label in axis.get_xticklabels() if label.get_text()]
    boxes = [label.get_window_extent() for label in labels if label.get_visible() and not label.get_rotation()]
    collide = any(left.x1 > right.x0 for left, right in pairwise(sorted(boxes, key=lambda box: box.x0)))
    if collide:
        for label in labels:
            label.set(**_SLANTED)
    return title != name or collide


def drawable(text: str) -> str:
    """Prepares a text from a file for a figure: removes unprintable characters and formulas, and limits its length.

    A cut text ends with a mark that distinguishes it from others with the same beginning.
    """
    return _cut(printable(text), _LONGEST, text).replace("$", r"\$")


def _cut(printed: str, most: int, text: str) -> str:
    """Cuts the printed form of a text after ``most`` characters, and appends the start of the text's hash."""
    if len(printed) <= most:
        return printed
    return f"{printed[:most]}... ({hashlib.sha256(text.encode(errors='replace')).hexdigest()[:8]})"


_FONT = 9.0  # points, of a legend on the screen
_LETTER = 0.6  # width of a letter, in heights
_MARK = 5.5  # room for the mark and between columns, in heights of a letter
_LINE_HEIGHT = 1.7  # from line to line, in heights of a letter
_FREE = 3  # lines for which a figure has room already


def legend_under(canvas: Figure, marks: Sequence[Artist], names: Sequence[str], most: int = 4) -> None:
    """Writes one legend for all panels under them, with the columns that fit; the figure grows if it is long.

    Args:
        canvas: the figure, with all its panels.
        marks: one for each entry.
        names: the names of the entries.
        most: the most columns.
    """
    if not names:
        return
    font = points(_FONT)
    width, height = canvas.get_size_inches()
    room = letters(width - _MARK * font / 72, font)
    names = [wrap(name, room) for name in names]
    entry_width = font * (_LETTER * max(len(line) for name in names for line in name.split("\n")) + _MARK) / 72
    columns = max(1, min(most, len(names), int(width / entry_width)))
    lines = max(-(-len(names) // columns), sum(name.count("\n") + 1 for name in names) // columns)
    canvas.set_size_inches(width, height + max(0, lines - _FREE) * font * _LINE_HEIGHT / 72)
    canvas.legend(marks, names, loc="outside lower center", ncols=columns, fontsize=font)
