"""How the results of the backward pass are spread over magnitudes: a histogram with logarithmic axes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .style import SCREEN, Size, figure, ordered_looks, points

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


def draw_gradients(name: str, table: pd.DataFrame, size: Size = SCREEN) -> Figure:
    """Draws shares of results against their magnitude, both logarithmic, a line per format.

    Args:
        name: of the experiment.
        table: the rows of the backward pass from :func:`roundoff.analysis.figures.axes.exponent_points`.
        size: of the figure.

    Source:
        Low-precision SAC, Figure 6, which shows the gradients of actor and critic apart; runs record them together.
    """
    formats = list(dict.fromkeys(table["format"]))
    with figure(1, 1, size=size) as canvas:
        axis = canvas.subplots()
        for fmt, style in zip(formats, ordered_looks(len(formats)), strict=True):
            here = table[table["format"] == fmt].sort_values("exponent")
            axis.step(np.exp2(here["exponent"]), here["share"], where="post", color=style.color, linestyle=style.line,
                      linewidth=points(1.6), label=fmt)  # fmt: skip
        axis.set_xscale("log", base=2)
        axis.set_yscale("log")
        axis.set_xlabel("magnitude of a result of the backward pass")
        axis.set_ylabel("share of results in [2^k, 2^(k+1))")
        axis.legend(fontsize="small")
        if size.titled:
            canvas.suptitle(f"{name}: gradients")
        return canvas
