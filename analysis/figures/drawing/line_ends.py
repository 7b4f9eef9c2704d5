"""Names of lines beside their ends."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from scipy.optimize import isotonic_regression

from .style import Look, points

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes

_GAP = 0.045  # of the height of a panel, between names
_FIT = int(1 / _GAP)

End = tuple[float, float, str, Look]
"""The end of a line: height, place across, name, look."""


def label_ends(axis: Axes, ends: Sequence[End]) -> bool:
    """Writes names beside the ends of lines, moved no further than needed not to overlap.

    Args:
        axis: whose limits and scale are settled.
        ends: of the lines.

    Returns:
        Whether there is room for the names: nothing is written if there is none.
    """
    if not ends or len(ends) > _FIT:
        return not ends
    across = max(x for _, x, _, _ in ends)
    heights = axis.transAxes.inverted().transform(axis.transData.transform([(across, y) for y, *_ in ends]))[:, 1]
    order = np.argsort(heights, kind="stable")
    offsets = _GAP * np.arange(len(ends))
    places = isotonic_regression(heights[order] - offsets).x + offsets
    for place, i in zip(places, order, strict=True):
        *_, name, style = ends[i]
        axis.annotate(name, (across, place), xycoords=("data", "axes fraction"), xytext=(points(8), 0),
                      textcoords="offset points", va="center", color=style.color, fontsize="small",
                      annotation_clip=False)  # fmt: skip
    return True
