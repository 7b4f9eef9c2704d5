"""What runs log during training beside the return, as loss scales: a panel for each value."""

from __future__ import annotations

from itertools import zip_longest
from typing import TYPE_CHECKING

from ...agents.config.fields import Panel
from ...agents.config.registry import panels
from ..statistics.summary import REFERENCE, records
from .axes import from_wide_to_narrow
from .style import REFERENCE as REFERENCE_LOOK
from .style import SCREEN, Look, Size, figure, look, ordered_looks, points

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from ..runs.experiment import Experiment

_ABOUT = ("id", "step", "task", "format", "series")  # columns that are no logged values
_WIDEST = 4  # panels side by side on the screen
_MOST = 12


def training_table(experiment: Experiment) -> pd.DataFrame | None:
    """What runs log at the end of each episode, and their algorithm wants drawn; None if they log nothing.

    Columns: ``id``, ``step``, the logged values (of an algorithm that names none, the first twelve), ``task``,
    ``format``, ``series``.
    """
    runs, logged = experiment.runs, experiment.training
    series = [experiment.conditions.series(run) for run in records(runs)]
    wanted = [name for name in panels() if name in logged]
    wanted = wanted or [str(name) for name in logged if name not in _ABOUT][:_MOST]
    if not wanted:
        return None
    return logged[["id", "step", *wanted]].merge(runs[["id", "task", "format"]].assign(series=series), on="id")


def draw_training(name: str, table: pd.DataFrame, size: Size = SCREEN) -> Figure:
    """Draws :func:`training_table`: a row per task, a line per run, a look for each series.

    Values that are not finite leave gaps.
    """
    tasks = sorted(table["task"].unique())
    looks = _looks(table, varied=bool((table["series"] != table["format"]).any()))
    values = [name for name in table.columns if name not in _ABOUT]
    columns = min(len(values), 2 * size.columns if size.width else _WIDEST)
    rows = -(-len(values) // columns)
    with figure(columns, rows * len(tasks), width=4.0, height=3.4, size=size) as canvas:
        axes = canvas.subplots(rows * len(tasks), columns, squeeze=False)
        for number, task in enumerate(tasks):
            of_task = axes[number * rows : (number + 1) * rows].flat
            for axis, value in zip_longest(of_task, values):
                if value is None:
                    axis.set_axis_off()
                    continue
                panel = panels().get(value, Panel(value))
                _panel(axis, table[table["task"] == task], value, looks)
                axis.set_yscale("log" if panel.log else "linear")
                axis.set_title(task)
                axis.set_ylabel(panel.label)
                axis.set_xlabel("environment steps")
        marks = [axes[0, 0].plot([], [], color=style.color, linestyle=style.line)[0] for style in looks.values()]
        across = 4 if size.columns > 1 else 2
        canvas.legend(marks, list(looks), loc="outside lower center", ncols=across, fontsize="small")
        if size.titled:
            canvas.suptitle(f"{name}: during training")
        return canvas


def _looks(table: pd.DataFrame, *, varied: bool) -> dict[str, Look]:
    """The look of every series, fp32 first and narrow formats last."""
    order = table[["format", "series"]].drop_duplicates().sort_values("series")
    order = order.sort_values("format", key=lambda column: column.map(from_wide_to_narrow), kind="stable")
    narrow = [name for name in order["series"] if name != REFERENCE]
    looks = [look(i) for i in range(len(narrow))] if varied else ordered_looks(len(narrow))
    plain = {REFERENCE: REFERENCE_LOOK} if REFERENCE in set(order["series"]) else {}
    return plain | dict(zip(narrow, looks, strict=True))


def _panel(axis: Axes, table: pd.DataFrame, column: str, looks: dict[str, Look]) -> None:
    for series, style in looks.items():
        for _, run in table[table["series"] == series].groupby("id"):
            axis.plot(run["step"], run[column], color=style.color, linestyle=style.line, linewidth=points(1))
