"""What moves during training beside the return: Q values, temperature and loss scales."""

from __future__ import annotations

from typing import TYPE_CHECKING

from roundoff.analysis.style import REFERENCE as REFERENCE_LOOK
from roundoff.analysis.style import figure, ordered_looks
from roundoff.analysis.summary import REFERENCE, exponent_bits, significand_bits

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from roundoff.analysis.store import Experiment

_PANELS = {
    "q": ("mean Q value", "linear"),
    "temperature": ("temperature", "log"),
    "critic_loss_scale": ("loss scale of the critics", "log"),
    "actor_loss_scale": ("loss scale of the actor", "log"),
}


def draw_training(experiment: Experiment) -> Figure:
    """Draws the values that runs log at the end of each episode: a row per task, a line per run, a look per format.

    Runs with and without fixes, or of different baselines, are drawn alike; values that are not finite leave gaps.
    """
    table = experiment.training.merge(experiment.runs[["id", "task", "format"]], on="id")
    tasks = sorted(table["task"].unique())
    formats = sorted(table["format"].unique(), key=lambda f: (f != REFERENCE, -exponent_bits(f), -significand_bits(f)))
    narrow = [name for name in formats if name != REFERENCE]
    looks = {REFERENCE: REFERENCE_LOOK} | dict(zip(narrow, ordered_looks(len(narrow)), strict=True))
    with figure(len(_PANELS), len(tasks), width=4.0, height=3.4) as canvas:
        axes = canvas.subplots(len(tasks), len(_PANELS), squeeze=False)
        for task, row in zip(tasks, axes, strict=True):
            for axis, (name, (label, scale)) in zip(row, _PANELS.items(), strict=True):
                for fmt in formats:
                    here = table[(table["task"] == task) & (table["format"] == fmt)]
                    for number, (_, run) in enumerate(here.groupby("id")):
                        axis.plot(
                            run["step"], run[name], color=looks[fmt].color, linestyle=looks[fmt].line, linewidth=1,
                            label=None if number else fmt,
                        )  # fmt: skip
                axis.set_yscale(scale)
                axis.set_title(task, fontsize=11)
                axis.set_ylabel(label)
                axis.set_xlabel("environment steps")
        axes[0][0].legend(fontsize=9)
        canvas.suptitle(f"{experiment.name}: during training", fontsize=12)
        return canvas
