"""Adds tooltips to marks of an SVG: run, value and interval, for pointer, keyboard and screen reader."""

from __future__ import annotations

import html
import math
import re
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backend_bases import RendererBase
from matplotlib.figure import Figure
from matplotlib.transforms import Transform
from numpy.typing import ArrayLike

from roundoff.runs.metric import Metric

from ...tables.wording import number, plural, with_interval

_MEAN, _RUN = 7.0, 4.0  # radius around a mark, in points, in which the pointer shows its text
_THIN = 2.0  # least half width and half height of a box, in points
_MOST = 64  # most points of a line with texts


class Tooltips(Artist):
    """The tooltips of a figure's places: in an SVG invisible elements with titles; in a PNG or PDF nothing.

    Args:
        corners: two opposite corners of each place, (places, 2, 2); equal for a mark.
        texts: one for each place.
        transform: the transform of the corners.
        radius: the radius around a mark, in points; None for boxes.
    """

    def __init__(self, corners: np.ndarray, texts: Sequence[str], transform: Transform, radius: float | None) -> None:
        super().__init__()
        self._corners, self._texts, self._radius = corners, texts, radius
        self._markup = ""
        self.set_transform(transform)
        self.set_in_layout(False)
        self.set_zorder(10)  # above all other artists

    def draw(self, renderer: RendererBase) -> None:
        """Draws an empty group into an SVG, which :func:`fill_tooltips` fills; else does nothing."""
        if (writer := getattr(renderer, "writer", None)) is None:
            return
        height = renderer.get_canvas_width_height()[1]
        writer.element("g", attrib={"id": f"told-{id(self)}"})
        places = self.get_transform().transform(self._corners.reshape(-1, 2)).reshape(-1, 4)
        elements = [
            self._element(place, height, html.escape(text, quote=False))
            for place, text in zip(places.tolist(), self._texts, strict=True)
            if all(map(math.isfinite, place))
        ]
        kind = "runs" if self._radius == _RUN else "means"
        self._markup = f'<g class="told {kind}" fill="#000" fill-opacity="0">{"".join(elements)}</g>'

    def _element(self, place: list[float], height: float, text: str) -> str:
        x, y, opposite, top = place
        content = f'tabindex="0" role="img"><title>{text}</title></'
        if self._radius is not None:
            return f'<circle cx="{x:.1f}" cy="{height - y:.1f}" r="{self._radius:g}" {content}circle>'
        left, right = min(x, opposite), max(x, opposite)
        low, high = min(y, top), max(y, top)
        wide, tall = max(right - left, 2 * _THIN), max(high - low, 2 * _THIN)
        return (
            f'<rect x="{(left + right - wide) / 2:.1f}" y="{height - (low + high + tall) / 2:.1f}" width="{wide:.1f}"'
            f' height="{tall:.1f}" {content}rect>'
        )


def fill_tooltips(svg: str, canvas: Figure) -> str:
    """Fills the empty groups of an SVG with the figure's tooltips, invisible elements above all others."""
    artists = canvas.findobj(Tooltips)
    markup = {f"told-{id(x)}": x._markup for x in artists if isinstance(x, Tooltips)}  # noqa: SLF001  this module's
    return re.sub(r'<g id="(told-\d+)"/>', lambda match: markup[match[1]], svg)


def add_mean_tooltips(axis: Axes, x: ArrayLike, y: ArrayLike, texts: Sequence[str]) -> None:
    """Adds a text to each mean, or other rare mark; marks without a place are skipped."""
    _add_tooltips(axis, x, y, texts, _MEAN)


def add_run_tooltips(
    axis: Axes, x: ArrayLike, y: ArrayLike, texts: Sequence[str], transform: Transform | None = None
) -> None:
    """Adds a text to each run."""
    _add_tooltips(axis, x, y, texts, _RUN, transform)


def add_line_tooltips(
    axis: Axes, name: str, across: str, points: Iterable[Sequence[float]], *, of_means: bool = True
) -> None:
    """Adds texts to the points of a line; to evenly spread ones if there are many.

    Args:
        axis: to write on.
        name: the name of the line.
        across: the quantity on the horizontal axis.
        points: place across, value, and the ends of its interval, NaN if it lacks one.
        of_means: whether the line is of means.
    """
    all_points = list(points)
    indices = np.unique(np.linspace(0, len(all_points) - 1, min(len(all_points), _MOST)).round().astype(int))
    selected = [all_points[i] for i in indices]
    mean = "mean " if of_means else ""
    texts = [f"{name}, {across} {_plain(x)}\n{mean}{with_interval(y, low, high)}" for x, y, low, high in selected]
    _add_tooltips(axis, [x for x, *_ in selected], [y for _, y, *_ in selected], texts, _MEAN if of_means else _RUN)


def without_intervals(x: ArrayLike, y: ArrayLike) -> list[tuple[float, float, float, float]]:
    """Makes points for :func:`add_line_tooltips`, without intervals."""
    missing, points = float("nan"), zip(np.asarray(x), np.asarray(y), strict=True)
    return [(float(place), float(value), missing, missing) for place, value in points]


def add_box_tooltips(axis: Axes, boxes: ArrayLike, texts: Sequence[str], transform: Transform | None = None) -> None:
    """Adds a text to each box, given by left, lower, right and upper end."""
    corners = np.asarray(boxes, dtype=float).reshape(-1, 2, 2)
    if len(corners):
        axis.add_artist(Tooltips(corners, _unescape(texts), transform or axis.transData, None))


def _add_tooltips(
    axis: Axes, x: ArrayLike, y: ArrayLike, texts: Sequence[str], radius: float, transform: Transform | None = None
) -> None:
    places = np.stack([np.asarray(x, dtype=float), np.asarray(y, dtype=float)], axis=1)
    if len(places):
        corners = np.repeat(places[:, None], 2, axis=1)
        axis.add_artist(Tooltips(corners, _unescape(texts), transform or axis.transData, radius))


def _unescape(texts: Sequence[str]) -> list[str]:
    """Undoes the escapes of :func:`~.style.drawable`."""
    return [text.replace(r"\$", "$") for text in texts]


def mean_tooltip(row: dict[str, Any]) -> str:
    """Describes a mean of scores: a row of :func:`~.marks.marks`."""
    crashed = f", {row['crashed']:.0f} crashed" if row["crashed"] else ""
    mean = with_interval(row["return"], row["ci_low"], row["ci_high"])
    return f"{_name(row)}\nmean {mean}\n{plural(row['n'], 'run')}{crashed}"


def run_tooltip(row: dict[str, Any], metric: Metric) -> str:
    """Describes a run: a row of :func:`~.marks.marks`."""
    score = f"crashed, {metric.scored}" if row["status"] == "crashed" else number(row["return"])
    return f"{_name(row)}, seed {_plain(row['seed'])}: {score}"


def _name(row: dict[str, Any]) -> str:
    """Names the format and the condition of a row."""
    return ", ".join(filter(None, [row["format"], row["series"].partition(", ")[2]]))


def _plain(value: object) -> str:
    return f"{value:,.6g}".replace(",", "\u2009") if isinstance(value, float) and math.isfinite(value) else str(value)
