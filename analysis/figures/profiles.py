"""Score distributions: the share of runs above each return."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..statistics.summary import ALL_TASKS, REFERENCE
from .axes import titles
from .style import REFERENCE as REFERENCE_LOOK
from .style import SCREEN, Size, figure, ordered_looks

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


def draw_profiles(name: str, table: pd.DataFrame, size: Size = SCREEN) -> Figure:
    """Draws performance profiles with their 95 % bands, a panel per task: the higher line is the better one.

    Args:
        name: of the experiment.
        table: from :func:`roundoff.analysis.figures.axes.profile_points`.
        size: of the figure.

    Source:
        Agarwal et al., "Deep Reinforcement Learning at the Edge of the Statistical Precipice", Section 4.2.
    """
    tasks = sorted(dict.fromkeys(table["task"]), key=lambda task: task == ALL_TASKS)
    names = list(dict.fromkeys(table["series"]))
    plain = [series for series in names if series.partition(",")[0] == REFERENCE]
    narrow = [series for series in names if series not in plain]
    looks = dict.fromkeys(plain, REFERENCE_LOOK) | dict(zip(narrow, ordered_looks(len(narrow)), strict=True))
    columns = min(size.columns, len(tasks))
    rows = -(-len(tasks) // columns)
    with figure(columns, rows, size=size) as canvas:
        axes = list(canvas.subplots(rows, columns, squeeze=False, sharey=True).flat)
        for axis, task, title in zip(axes, tasks, titles(tasks), strict=False):
            for series, style in looks.items():
                line = table[(table["task"] == task) & (table["series"] == series)]
                axis.fill_between(line["return"], line["ci_low"], line["ci_high"], color=style.color, alpha=0.15, lw=0)
                axis.plot(line["return"], line["fraction"], color=style.color, linestyle=style.line)
            axis.set_title(title)
            axis.set_xlabel("return \u03c4")
            axis.set_ylabel("share of runs above \u03c4")
            axis.set_ylim(-0.03, 1.03)
        for axis in axes[len(tasks) :]:
            axis.set_axis_off()
        marks = [axes[0].plot([], [], color=style.color, linestyle=style.line)[0] for style in looks.values()]
        across = 4 if size.columns > 1 and max(map(len, looks)) < 20 else 2
        canvas.legend(marks, list(looks), loc="outside lower center", ncols=across, fontsize="small")
        if size.titled:
            canvas.suptitle(f"{name}: score distributions")
        return canvas
