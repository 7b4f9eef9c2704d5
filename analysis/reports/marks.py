"""What is drawn in charts: marks with a text for each, lines, entries of a legend, round numbers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .markup import Safe, element

if TYPE_CHECKING:
    from collections.abc import Sequence

# In units of the picture, of which a phone shows 360 and a desk 560: text stays legible on both.
WIDTH = 440
_DASHES = ("none", "7 3", "2 3", "9 3 2 3", "4 2", "1 2")
_MARKERS = (
    "M-4 0a4 4 0 1 0 8 0a4 4 0 1 0-8 0z",  # circle
    "M-3.6-3.6h7.2v7.2h-7.2z",  # square
    "M0-4.6L4.4 3.4H-4.4z",  # triangle
    "M0-5L5 0L0 5L-5 0z",  # diamond
    "M0 4.6L4.4-3.4H-4.4z",
    "M-1.4-4.4h2.8v3h3v2.8h-3v3h-2.8v-3h-3v-2.8h3z",  # plus
)
_CROSS = "M-4-4L4 4M-4 4L4-4"


@dataclass(frozen=True)
class Point:
    """A mark: where, its interval if it has one, and what a reader is told about it."""

    x: float
    y: float
    low: float
    high: float
    tip: str


@dataclass(frozen=True)
class Series:
    """A line, or marks without one.

    Attributes:
        name: beside the end of the line, or in the legend.
        points: in the order of the line.
        shade: of an ordered series in [0, 1], from wide to narrow; None for one without order, or fp32.
        rank: among the series: settles colour (if there is no shade), dash and marker; -1: the reference.
        kind: ``line``, ``level`` (horizontal, across: of one point), ``runs`` (dots) or ``crashes`` (crosses).
    """

    name: str
    points: Sequence[Point]
    rank: int
    shade: float | None = None
    kind: str = "line"


def swatch(one: Series) -> Safe:
    """A line and marker as a legend shows them."""
    parts = [] if one.kind in ("runs", "crashes") else [_stroke(one)]
    parts += [] if one.kind == "level" else [mark(one, 15, 7)]
    return element("svg", *parts, viewBox="0 0 30 14", class_="swatch", aria_hidden="true")


def _stroke(one: Series) -> Safe:
    return element("path", d="M1 7H29", class_=f"line {look(one)}", style=style(one))


def ticks(low: float, high: float, about: int = 5) -> list[float]:
    """Round numbers between two ends: 1, 2 or 5 times a power of ten apart."""
    if not high > low:
        return [low]
    rough = (high - low) / about
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [step * i for i in range(first, math.floor(high / step + 1e-9) + 1)]


def picture(title: str, parts: Sequence[Safe], height: float) -> Safe:
    """The picture of a chart, which takes the focus."""
    hint = "Arrow keys read out the values."
    return element(
        "svg", *parts, viewBox=f"0 0 {WIDTH} {height}", role="img", tabindex="0", aria_label=f"{title}. {hint}",
        class_="chart",
    )  # fmt: skip


def readable(one: Series, point: Point, x: float, y: float, target: Safe) -> Safe:
    """A mark with its text, and with what the pointer meets."""
    return element("g", element("title", point.tip), mark(one, x, y), target, class_="mark", data_tip=point.tip)


def mark(one: Series, x: float, y: float) -> Safe:
    """What is seen of a point."""
    at = f"translate({place(x)} {place(y)})"
    if one.kind == "level":
        return Safe("")
    if one.kind == "crashes":
        return element("path", d=_CROSS, transform=at, class_="crash")
    if one.kind == "runs":
        return element("path", d=_MARKERS[0], transform=f"{at} scale(0.6)", class_=f"dot {look(one)}", style=style(one))
    shape = _MARKERS[max(one.rank, 0) % len(_MARKERS)]
    return element("path", d=shape, transform=at, class_=f"point {look(one)}", style=style(one))


def look(one: Series) -> str:
    """Returns the series' class in the style sheet."""
    if one.rank < 0:
        return "reference"
    return "ordered" if one.shade is not None else f"s{one.rank % 6}"


def style(one: Series) -> str | None:
    """What the style sheet needs to know beside its class."""
    if one.rank < 0:
        return None
    dash = f"--dash:{_DASHES[one.rank % len(_DASHES)]}"
    return dash if one.shade is None else f"{dash};--t:{one.shade:.3f}"


def place(value: float) -> str:
    """A place in the picture, as text."""
    return f"{float(value):.1f}".removesuffix(".0")
