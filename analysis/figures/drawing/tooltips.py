"""Texts of marks: what each says of its run, value and interval, in an SVG, to pointer, keyboard and screen reader."""

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

_MEAN, _RUN = 7.0, 4.0  # points around the middle of a mark in which the pointer meets it
_THIN = 2.0  # points that a box is high and wide at least, on either side
_MOST = 64  # points of a line that have texts


class Tooltips(Artist):
    """Places of a figure with a text for each. An SVG has an unseen element with a title there; a PNG or PDF nothing.

    Args:
        corners: two opposite corners of each place, (places, 2, 2); of a mark these are the same.
        texts: one for each.
        transform: the transform of the corners.
        radius: around a mark, in points; None: of boxes.
    """

    def __init__(self, corners: np.ndarray, texts: Sequence[str], transform: Transform, radius: float | None) -> None:
        super().__init__()
        self._corners, self._texts, self._radius = corners, texts, radius
        self._markup = ""
        self.set_transform(transform)
        self.set_in_layout(False)
        self.set_zorder(10)  # nothing hides them

    def draw(self, renderer: RendererBase) -> None:
        """Leaves an empty group in an SVG, which :func:`with_texts` fills; else does nothing."""
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
        x, y, across, up = place
        told = f'tabindex="0" role="img"><title>{text}</title></'
        if self._radius is not None:
            return f'<circle cx="{x:.1f}" cy="{height - y:.1f}" r="{self._radius:g}" {told}circle>'
        left, right = min(x, across), max(x, across)
        low, high = min(y, up), max(y, up)
        wide, tall = max(right - left, 2 * _THIN), max(high - low, 2 * _THIN)
        return (
            f'<rect x="{(left + right - wide) / 2:.1f}" y="{height - (low + high + tall) / 2:.1f}" width="{wide:.1f}"'
            f' height="{tall:.1f}" {told}rect>'
        )


def with_texts(svg: str, canvas: Figure) -> str:
    """An SVG of a figure with the texts of its marks, which are unseen elements above all others."""
    told = {f"told-{id(one)}": one._markup for one in canvas.findobj(Tooltips) if isinstance(one, Tooltips)}  # noqa: SLF001  this module's
    return re.sub(r'<g id="(told-\d+)"/>', lambda found: told[found[1]], svg)


def add_mean_tooltips(axis: Axes, x: ArrayLike, y: ArrayLike, texts: Sequence[str]) -> None:
    """Gives means, or other rare marks, a text each; marks without a place are passed over."""
    _tell(axis, x, y, texts, _MEAN)


def add_run_tooltips(
    axis: Axes, x: ArrayLike, y: ArrayLike, texts: Sequence[str], transform: Transform | None = None
) -> None:
    """Gives single runs a text each."""
    _tell(axis, x, y, texts, _RUN, transform)


def add_line_tooltips(
    axis: Axes, name: str, across: str, points: Iterable[Sequence[float]], *, of_means: bool = True
) -> None:
    """Gives the points of a line texts, evenly spread ones if there are many.

    Args:
        axis: to write on.
        name: the name of the line.
        across: the quantity on the horizontal axis.
        points: place across, value, and the ends of its interval, NaN if it lacks one.
        of_means: whether the line is of means.
    """
    every = list(points)
    shown = np.unique(np.linspace(0, len(every) - 1, min(len(every), _MOST)).round().astype(int))
    some = [every[i] for i in shown]
    mean = "mean " if of_means else ""
    texts = [f"{name}, {across} {_plain(x)}\n{mean}{with_interval(y, low, high)}" for x, y, low, high in some]
    _tell(axis, [x for x, *_ in some], [y for _, y, *_ in some], texts, _MEAN if of_means else _RUN)


def without_intervals(x: ArrayLike, y: ArrayLike) -> list[tuple[float, float, float, float]]:
    """The points of a line for :func:`add_line_tooltips`, without intervals."""
    nothing = float("nan")
    return [(float(at), float(value), nothing, nothing) for at, value in zip(np.asarray(x), np.asarray(y), strict=True)]


def add_box_tooltips(axis: Axes, boxes: ArrayLike, texts: Sequence[str], transform: Transform | None = None) -> None:
    """Gives boxes a text each, by left, lower, right and upper end."""
    corners = np.asarray(boxes, dtype=float).reshape(-1, 2, 2)
    if len(corners):
        axis.add_artist(Tooltips(corners, _undrawn(texts), transform or axis.transData, None))


def _tell(
    axis: Axes, x: ArrayLike, y: ArrayLike, texts: Sequence[str], radius: float, transform: Transform | None = None
) -> None:
    places = np.stack([np.asarray(x, dtype=float), np.asarray(y, dtype=float)], axis=1)
    if len(places):
        corners = np.repeat(places[:, None], 2, axis=1)
        axis.add_artist(Tooltips(corners, _undrawn(texts), transform or axis.transData, radius))


def _undrawn(texts: Sequence[str]) -> list[str]:
    """Texts as they were before :func:`~.style.drawable`."""
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
    """Format and condition."""
    return ", ".join(filter(None, [row["format"], row["series"].partition(", ")[2]]))


def _plain(value: object) -> str:
    return f"{value:,.6g}".replace(",", "\u2009") if isinstance(value, float) and math.isfinite(value) else str(value)
