"""Charts as inline SVG: lines with intervals, runs as dots, and a text for every mark that the page's script shows."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from scipy.optimize import isotonic_regression

from .marks import WIDTH, Point, Series, look, picture, place, readable, style, ticks
from .markup import Safe, element, tick

if TYPE_CHECKING:
    from collections.abc import Sequence

_HEIGHT = 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 50, 66, 12, 44
_LABEL_GAP = 14
MOST_LABELS = (_HEIGHT - _TOP - _BOTTOM) // _LABEL_GAP
"""Names that fit beside the ends of lines."""

_ROW = 44  # height of a line of a chart of rows


@dataclass(frozen=True)
class Axes:
    """What the axes say.

    Attributes:
        x_label: of the horizontal axis.
        y_label: of the vertical one.
        y_range: the ends of the vertical axis.
        x_range: the ends of the horizontal axis.
        x_ticks: where numbers stand on the horizontal axis; none: at round numbers.
        label_ends: write the names of lines beside their ends.
    """

    x_label: str
    y_label: str
    x_range: tuple[float, float]
    y_range: tuple[float, float]
    x_ticks: Sequence[float] = field(default=())
    label_ends: bool = True


def chart(title: str, axes: Axes, series: Sequence[Series]) -> Safe:
    """Draws a chart; marks can be read with the pointer, and with the arrow keys once it has the focus.

    Args:
        title: says what is seen, to those who do not see it.
        axes: their labels and ranges.
        series: drawn in this order.
    """
    frame = _Frame(axes)
    drawn = [frame.series(one) for one in series]
    labels = frame.labels(series) if axes.label_ends else []
    return picture(title, [*frame.grid(), *drawn, *labels], _HEIGHT)


def rows_chart(
    title: str, x_label: str, x_range: tuple[float, float], rows: Sequence[tuple[str, Sequence[Series]]]
) -> Safe:
    """Draws a line of the page for each of a few conditions, its name above it; read like :func:`chart`.

    Args:
        title: says what is seen, to those who do not see it.
        x_label: of the horizontal axis.
        x_range: its ends.
        rows: name, and marks; the height of a point is where it stands in its row, in [-1, 1].
    """
    bottom, left, right = 8 + _ROW * len(rows), 10, WIDTH - 14

    def x(value: float) -> float:
        return left + (value - x_range[0]) / ((x_range[1] - x_range[0]) or 1) * (right - left)

    parts: list[Safe] = []
    for value in ticks(*x_range):
        at = place(x(value))
        parts.append(element("path", d=f"M{at} 8V{bottom}", class_="grid"))
        parts.append(element("text", tick(value), x=at, y=bottom + 16, class_="tick middle"))
    parts.append(element("path", d=f"M{left} {bottom}H{right}", class_="axis"))
    parts.append(element("text", x_label, x=place((left + right) / 2), y=bottom + 34, class_="label middle"))
    for i, (name, series) in enumerate(rows):
        y = 8 + _ROW * i + 28
        parts.append(element("text", name, x=left, y=y - 12, class_="label"))
        for one in series:
            bars = [
                element("path", d=f"M{place(x(point.low))} {y}H{place(x(point.high))}", class_=f"bar {look(one)}")
                for point in one.points
                if math.isfinite(point.low)
            ]
            marks = [
                readable(one, point, x(point.x), y + 5 * point.y, element(
                    "circle", cx=place(x(point.x)), cy=place(y + 5 * point.y), r=7, class_="target"))
                for point in one.points
            ]  # fmt: skip
            parts.append(element("g", *bars, *marks, class_="series"))
    return picture(title, parts, bottom + 42)


class _Frame:
    """Maps values to places."""

    def __init__(self, axes: Axes) -> None:
        self._axes = axes
        self._right = WIDTH - (_RIGHT if axes.label_ends else 14)

    def x(self, value: float) -> float:
        low, high = self._axes.x_range
        return _LEFT + (value - low) / ((high - low) or 1) * (self._right - _LEFT)

    def y(self, value: float) -> float:
        low, high = self._axes.y_range
        return _HEIGHT - _BOTTOM - (value - low) / ((high - low) or 1) * (_HEIGHT - _BOTTOM - _TOP)

    def grid(self) -> list[Safe]:
        bottom = _HEIGHT - _BOTTOM
        parts = []
        for value in ticks(*self._axes.y_range):
            height = self.y(value)
            at = place(height)
            parts.append(element("path", d=f"M{_LEFT} {at}H{self._right}", class_="grid"))
            parts.append(element("text", tick(value), x=_LEFT - 6, y=place(height + 4), class_="tick end"))
        for value in self._axes.x_ticks or ticks(*self._axes.x_range, about=4):
            at = place(self.x(value))
            parts.append(element("path", d=f"M{at} {bottom}v4", class_="axis"))
            parts.append(element("text", tick(value), x=at, y=bottom + 17, class_="tick middle"))
        parts.append(element("path", d=f"M{_LEFT} {bottom}H{self._right}", class_="axis"))
        middle = place((_LEFT + self._right) / 2)
        parts.append(element("text", self._axes.x_label, x=middle, y=_HEIGHT - 7, class_="label middle"))
        up = place((_TOP + bottom) / 2)
        turned = f"translate(12 {up}) rotate(-90)"
        parts.append(element("text", self._axes.y_label, transform=turned, class_="label middle"))
        return parts

    def series(self, one: Series) -> Safe:
        points = [point for point in one.points if math.isfinite(point.y)]
        parts: list[Safe] = []
        if one.kind == "level":
            for point in points:
                parts += self._level(one, point)
        elif one.kind == "line":
            parts += self._line(one, points)
        marks = [readable(one, point, self.x(point.x), self.y(point.y), self._target(one, point)) for point in points]
        return element("g", *parts, *marks, class_="series")

    def labels(self, series: Sequence[Series]) -> list[Safe]:
        """Names beside the ends of the lines, moved no further than needed not to overlap."""
        named = [
            one for one in series if one.kind in ("line", "level") and one.points and math.isfinite(one.points[-1].y)
        ]
        named.sort(key=lambda one: -one.points[-1].y)
        if not named:
            return []
        gaps = _LABEL_GAP * np.arange(len(named))
        places = isotonic_regression([self.y(one.points[-1].y) for one in named] - gaps).x + gaps
        return [
            element(
                "text", one.name, x=self._right + 6, y=place(height + 4), class_=f"name {look(one)}", style=style(one)
            )
            for one, height in zip(named, places, strict=True)
        ]

    def _level(self, one: Series, point: Point) -> list[Safe]:
        parts = []
        if math.isfinite(point.low):
            top, bottom = self.y(point.high), self.y(point.low)
            corners = f"M{_LEFT} {place(top)}H{self._right}V{place(bottom)}H{_LEFT}z"
            parts.append(element("path", d=corners, class_=f"band {look(one)}"))
        across = f"M{_LEFT} {place(self.y(point.y))}H{self._right}"
        return [*parts, element("path", d=across, class_=f"line {look(one)}")]

    def _line(self, one: Series, points: Sequence[Point]) -> list[Safe]:
        if not points:
            return []
        with_interval = [point for point in points if math.isfinite(point.low)]
        parts: list[Safe] = []
        if len(with_interval) > 1:
            there = [f"{place(self.x(point.x))} {place(self.y(point.high))}" for point in with_interval]
            back = [f"{place(self.x(point.x))} {place(self.y(point.low))}" for point in reversed(with_interval)]
            parts.append(element("path", d=f"M{'L'.join(there + back)}z", class_=f"band {look(one)}", style=style(one)))
        elif with_interval:
            (point,) = with_interval
            bar = f"M{place(self.x(point.x))} {place(self.y(point.low))}V{place(self.y(point.high))}"
            parts.append(element("path", d=bar, class_=f"bar {look(one)}", style=style(one)))
        way = "L".join(f"{place(self.x(point.x))} {place(self.y(point.y))}" for point in points)
        return [*parts, element("path", d=f"M{way}", class_=f"line {look(one)}", style=style(one))]

    def _target(self, one: Series, point: Point) -> Safe:
        """What the pointer meets: larger than what is seen."""
        x, y = place(self.x(point.x)), place(self.y(point.y))
        if one.kind == "level":
            return element("path", d=f"M{_LEFT} {y}H{self._right}", class_="target")
        return element("circle", cx=x, cy=y, r=6 if one.kind in ("runs", "crashes") else 9, class_="target")
