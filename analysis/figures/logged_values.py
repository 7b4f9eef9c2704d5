"""What moves during training beside the return: Q values, temperature and loss scales."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..statistics.summary import (
    REFERENCE,
    records,
)
from .axes import from_wide_to_narrow
from .style import REFERENCE as REFERENCE_LOOK
from .style import SCREEN, Look, Size, figure, look, ordered_looks, points

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from ..runs.experiment import Experiment

_PANELS = {
    "q": ("mean Q value", "linear"),
    "temperature": ("temperature", "log"),
    "critic_loss_scale": ("loss scale of the critics", "log"),
    "actor_loss_scale": ("loss scale of the actor", "log"),
}


def training_table(experiment: Experiment) -> pd.DataFrame:
    """What runs log at the end of each episode: as ``Experiment.training``, with ``task``, ``format`` and ``series``.

    ``series`` is the format, or the format and condition if something besides task, format and seed varies.
    """
    runs = experiment.runs
    names = [experiment.conditions.series(run) for run in records(runs)]
    return experiment.training.merge(runs[["id", "task", "format"]].assign(series=names), on="id")


def draw_training(name: str, table: pd.DataFrame, size: Size = SCREEN) -> Figure:
    """Draws :func:`training_table`: a row per task, a line per run, a look for each series.

    Values that are not finite leave gaps.
    """
    tasks = sorted(table["task"].unique())
    looks = _looks(table, varied=bool((table["series"] != table["format"]).any()))
    panels = [(task, column) for task in tasks for column in _PANELS]
    columns = min(len(_PANELS), 2 * size.columns) if size.width else len(_PANELS)
    with figure(columns, len(panels) // columns, width=4.0, height=3.4, size=size) as canvas:
        axes = list(canvas.subplots(len(panels) // columns, columns, squeeze=False).flat)
        for axis, (task, column) in zip(axes, panels, strict=True):
            label, scale = _PANELS[column]
            _panel(axis, table[table["task"] == task], column, looks)
            axis.set_yscale(scale)
            axis.set_title(task)
            axis.set_ylabel(label)
            axis.set_xlabel("environment steps")
        marks = [axes[0].plot([], [], color=style.color, linestyle=style.line)[0] for style in looks.values()]
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
