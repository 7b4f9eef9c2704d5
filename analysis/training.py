"""What moves during training beside the return: Q values, temperature and loss scales."""

from __future__ import annotations

from typing import TYPE_CHECKING

from roundoff.analysis.style import REFERENCE as REFERENCE_LOOK
from roundoff.analysis.style import Look, figure, look, ordered_looks
from roundoff.analysis.summary import REFERENCE, condition_label, conditions, exponent_bits, significand_bits

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from roundoff.analysis.store import Experiment

_PANELS = {
    "q": ("mean Q value", "linear"),
    "temperature": ("temperature", "log"),
    "critic_loss_scale": ("loss scale of the critics", "log"),
    "actor_loss_scale": ("loss scale of the actor", "log"),
}


def draw_training(experiment: Experiment) -> Figure:
    """Draws the values that runs log at the end of each episode: a row per task, a line per run.

    A look stands for a format, or for a format and condition if something besides task, format and seed varies.
    Values that are not finite leave gaps.
    """
    runs = experiment.runs
    varied = bool(conditions(runs))
    names = [
        f"{run['format']}, {condition_label(runs, dict(run))}" if varied else run["format"]
        for _, run in runs.iterrows()
    ]
    table = experiment.training.merge(runs[["id", "task", "format"]].assign(series=names), on="id")
    tasks = sorted(table["task"].unique())
    looks = _looks(table, varied=varied)
    with figure(len(_PANELS), len(tasks), width=4.0, height=3.4) as canvas:
        axes = canvas.subplots(len(tasks), len(_PANELS), squeeze=False)
        for task, row in zip(tasks, axes, strict=True):
            for axis, (column, (label, scale)) in zip(row, _PANELS.items(), strict=True):
                _panel(axis, table[table["task"] == task], column, looks)
                axis.set_yscale(scale)
                axis.set_title(task, fontsize=11)
                axis.set_ylabel(label)
                axis.set_xlabel("environment steps")
        marks = [axes[0][0].plot([], [], color=style.color, linestyle=style.line)[0] for style in looks.values()]
        canvas.legend(marks, list(looks), loc="outside lower center", ncols=4, fontsize=9)
        canvas.suptitle(f"{experiment.name}: during training", fontsize=12)
        return canvas


def _looks(table: pd.DataFrame, *, varied: bool) -> dict[str, Look]:
    """The look of every series, fp32 first and narrow formats last."""
    order = table[["format", "series"]].drop_duplicates().sort_values("series")
    order = order.sort_values("format", key=lambda column: column.map(_width), kind="stable")
    narrow = [name for name in order["series"] if name != REFERENCE]
    looks = [look(i) for i in range(len(narrow))] if varied else ordered_looks(len(narrow))
    plain = {REFERENCE: REFERENCE_LOOK} if REFERENCE in set(order["series"]) else {}
    return plain | dict(zip(narrow, looks, strict=True))


def _width(name: str) -> tuple[bool, float, float]:
    return name != REFERENCE, -exponent_bits(name), -significand_bits(name)


def _panel(axis: Axes, table: pd.DataFrame, column: str, looks: dict[str, Look]) -> None:
    for series, style in looks.items():
        for _, run in table[table["series"] == series].groupby("id"):
            axis.plot(run["step"], run[column], color=style.color, linestyle=style.line, linewidth=1)
