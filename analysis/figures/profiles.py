"""Draws score distributions: the share of runs above each return."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from roundoff.runs.metric import RETURN, Metric

from ..runs.experiment import Experiment
from ..statistics.intervals import generator_for, performance_profile, profile_band
from ..tables.summary import ALL_TASKS, REFERENCE, ended, records
from ..tables.wording import number, percent
from .drawing.axes import score_limits, titles, width_sort_key
from .drawing.style import REFERENCE as REFERENCE_LOOK
from .drawing.style import SCREEN, Size, figure, legend_under, ordered_looks
from .drawing.tooltips import add_mean_tooltips

_FEWEST = 10  # runs that make a distribution


def profiles_table(experiment: Experiment) -> pd.DataFrame:
    """Computes score distributions: the share of runs that are better than each score tau, per task and over all.

    Fewer than ten runs do not get a distribution: the runs themselves show more than its few steps.

    Columns: ``task``, ``series`` (format, and condition if any varies), ``n``, ``return`` (tau, 51 of them over the
    range of scores), ``fraction``, ``ci_low``, ``ci_high`` (95 % for each tau by itself, bootstrap over runs).
    """
    runs, sign = ended(experiment.runs), experiment.metric.sign
    keys = experiment.conditions.keys
    tasks = sorted(set(runs["task"]))
    low, high = score_limits(experiment.metric, tasks, runs["return"], margin=0)
    tau = np.linspace(low, high, 51)
    rows = []
    selections = records(runs[["format", *keys]].drop_duplicates())
    for values in sorted(selections, key=lambda values: width_sort_key(values["format"])):
        name = experiment.conditions.series(values)
        members = runs[(runs[list(values)].astype(str) == pd.Series(values).astype(str)).all(axis=1)]
        scored = members["return"].fillna(experiment.metric.worst) * sign
        groups = {str(task): part.to_numpy(float) for task, part in scored.groupby(members["task"])}
        chosen = [(task, [scores]) for task, scores in groups.items()]
        chosen += [(ALL_TASKS, list(groups.values()))] if len(tasks) > 1 and len(groups) == len(tasks) else []
        for task, scores in chosen:
            if sum(map(len, scores)) < _FEWEST:
                continue
            profile = performance_profile(scores, sign * tau)
            band = profile_band(scores, sign * tau, generator_for("profile", task, name))
            rows += [
                {"task": task, "series": name, "n": sum(map(len, scores)), "return": threshold, "fraction": share}
                | {"ci_low": ends[0], "ci_high": ends[1]}
                for threshold, share, ends in zip(tau, profile, band, strict=True)
            ]
    return pd.DataFrame(rows, columns=["task", "series", "n", "return", "fraction", "ci_low", "ci_high"])


def draw_profiles(name: str, table: pd.DataFrame, size: Size = SCREEN, metric: Metric = RETURN) -> Figure:
    """Draws :func:`profiles_table`: a line and its 95 % band for each series, a panel per task; higher is better.

    Source:
        Agarwal et al., "Deep Reinforcement Learning at the Edge of the Statistical Precipice", Section 4.2.
    """
    tasks = sorted(dict.fromkeys(table["task"]), key=lambda task: task == ALL_TASKS)
    names = list(dict.fromkeys(table["series"]))
    references = [series for series in names if series.partition(",")[0] == REFERENCE]
    narrow = [series for series in names if series not in references]
    looks = dict.fromkeys(references, REFERENCE_LOOK) | dict(zip(narrow, ordered_looks(len(narrow)), strict=True))
    with figure(len(tasks), f"{name}: score distributions", size=size, sharey=True) as (canvas, axes):
        for axis, task, title in zip(axes, tasks, titles(tasks, metric), strict=False):
            for series, style in looks.items():
                line = table[(table["task"] == task) & (table["series"] == series)]
                axis.fill_between(line["return"], line["ci_low"], line["ci_high"], color=style.color, alpha=0.15, lw=0)
                axis.plot(line["return"], line["fraction"], color=style.color, linestyle=style.line)
                verb = "return more than" if metric.of_agents else f"have {metric.name} {metric.better}"
                texts = [
                    f"{series}: {percent(share)} of runs {verb} {number(tau)}"
                    for share, tau in line[["fraction", "return"]].to_numpy()
                ]
                add_mean_tooltips(axis, line["return"], line["fraction"], texts)
            axis.set_title(title)
            axis.set_xlabel(f"{metric.name} \u03c4")
            axis.set_ylabel(f"share of runs {metric.better} \u03c4")
            axis.set_ylim(-0.03, 1.03)
        marks = [axes[0].plot([], [], color=style.color, linestyle=style.line)[0] for style in looks.values()]
        legend_under(canvas, marks, list(looks))
        return canvas
