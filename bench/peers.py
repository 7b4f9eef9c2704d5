"""Algorithms of ours beside those of other libraries: ``python -m bench.peers SOURCE ...``, of sweeps ``*-peers*``.

A source is the folder of a sweep, or a file that ``bench.kept_runs scores`` made of it. Prints a table in Markdown: for
each task, of each algorithm the mean final return and the mean over the learning curve (the area under it), each with
its 95 % bootstrap interval over seeds; then how much the first is above each other one, with interval and p of Welch's
test, not adjusted for several tests. Algorithms are told apart by their names; where an algorithm has several cases in
a sweep, by the cases' names, and so in files. Draws the learning curves of folders into ``--figure FILE``.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from roundoff.analysis.runs.experiment import Experiment, read_experiment
from roundoff.analysis.runs.records import areas
from roundoff.analysis.statistics.comparisons import difference
from roundoff.analysis.statistics.intervals import bootstrap_interval, generator_for
from roundoff.analysis.tables.summary import ended

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SCORES = {"return": "final return", "area": "mean over the learning curve"}
HEAD = f"| task | algorithm | seeds | {' | '.join(SCORES.values())} |\n|---|---|---|---|---|"
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7")


def table_of(path: Path) -> pd.DataFrame:
    """The runs of a sweep's folder that have ended, or of a file that ``bench.kept_runs scores`` made of one.

    Columns: ``task``, ``name``, ``algorithm`` (of a file the name's first word), ``seed``, ``status``, ``return``,
    ``area``.
    """
    if path.suffix == ".csv":
        table = pd.read_csv(path)
        return table.assign(name=table["case"], algorithm=table["case"].str.split(",").str[0])
    experiment = read_experiment(path)
    runs = ended(experiment.runs)
    found = areas({name: experiment.folders[name] for name in runs["id"]})
    order = {case: i for i, case in enumerate(experiment.cases.values())}
    table = runs.assign(area=runs["id"].map(found), name=names_of(experiment))
    return table.sort_values("name", key=lambda names: names.map(order), kind="stable")


def names_of(experiment: Experiment) -> pd.Series:
    """What each run is called by: its algorithm, or its case where the algorithm has several."""
    runs = experiment.runs
    cases = runs["id"].map(experiment.cases)
    several = cases.groupby(runs["algorithm"]).transform("nunique") > 1
    return runs["algorithm"].where(~several, cases)


def pairs_of(table: pd.DataFrame) -> list[tuple[str, str]]:
    """Names to compare: what others have made with the first, and cases with the first one of their algorithm."""
    algorithms = dict(zip(table["name"], table["algorithm"], strict=True))
    names = list(algorithms)
    if "roundoff" in names[0] or any(":" in algorithm for algorithm in algorithms.values()):
        return [(names[0], name) for name in names[1:]]
    firsts = {name: next(one for one in names if algorithms[one] == algorithms[name]) for name in names}
    return [(first, name) for name, first in firsts.items() if first != name]


def rows_of(table: pd.DataFrame, task: str) -> list[str]:
    """Rows of the table in Markdown."""
    here = table[table["task"] == task]
    rows = []
    for name, runs in here.groupby("name", sort=False):
        done = runs[runs["status"] == "done"]
        cells = []
        for kind in SCORES:
            low, high = bootstrap_interval([done[kind].to_numpy()], generator_for(task, str(name), kind))
            cells.append(f"{done[kind].mean():.4g} ({low:.4g} to {high:.4g})")
        crashed = f", {len(runs) - len(done)} crashed" if len(done) < len(runs) else ""
        rows.append(f"| {task} | {name} | {len(done)}{crashed} | {' | '.join(cells)} |")
    for first, other in pairs_of(here):
        cells = []
        for kind in SCORES:
            # Their seeds have nothing in common: no pairs.
            sides = [
                {(name, seed): score for seed, score in here.loc[here["name"] == name, ["seed", kind]].to_numpy()}
                for name in (first, other)
            ]
            found = difference(*([side] for side in sides))
            cells.append(f"{found.value:+.3g} ({found.interval.low:.3g} to {found.interval.high:.3g}), p {found.p:.2g}")
        rows.append(f"| {task} | {first} less {other} | | {' | '.join(cells)} |")
    return rows


def curves_of(experiment: Experiment, task: str, name: str) -> pd.DataFrame:
    """Returns by seed (rows) and evaluation (columns), as shares of the run; runs that have ended well alone."""
    runs = experiment.runs
    mine = runs[(runs["task"] == task) & names_of(experiment).eq(name) & (runs["status"] == "done")]
    points = experiment.curves.drop_duplicates(["id", "step"], keep="last").merge(mine[["id", "seed", "eval_every"]])
    # A library takes whole rollouts, and is evaluated a little after the step.
    points["moment"] = points["step"] // points["eval_every"] * points["eval_every"]
    return points.pivot_table(index="seed", columns="moment", values="return", aggfunc="last").dropna(axis=1)


def draw(axis: Axes, experiment: Experiment, task: str) -> None:
    """Mean returns with their intervals, a line per algorithm."""
    names = names_of(experiment)[experiment.runs["task"] == task].unique()
    for name, color, line in zip(sorted(names), COLORS, ("-", "--", ":", "-."), strict=False):
        curves = curves_of(experiment, task, name)
        ends = np.array([bootstrap_interval([curves[x].to_numpy()], generator_for(name, x)) for x in curves])
        axis.plot(curves.columns, curves.mean(), line, color=color, label=f"{name} ({len(curves)} seeds)")
        axis.fill_between(curves.columns, *ends.T, color=color, alpha=0.15, linewidth=0)
    axis.set(title=task, xlabel="environment steps", ylabel="return")
    if min(line.get_ydata().min() for line in axis.lines) >= 0:
        axis.set_ylim(bottom=0)
    axis.legend(frameon=False, loc="best", fontsize=8)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sources", nargs="+", type=Path)
    parser.add_argument("--figure", type=Path)
    given = parser.parse_args(arguments)
    print(HEAD)
    for table in map(table_of, given.sources):
        for task in sorted(table["task"].unique()):
            print("\n".join(rows_of(table, task)))
    if given.figure:
        experiments = [read_experiment(folder) for folder in given.sources]
        panels = [(one, task) for one in experiments for task in sorted(one.runs["task"].unique())]
        size = (4.2 * len(panels), 3.2)
        figure, axes = plt.subplots(1, len(panels), figsize=size, squeeze=False, layout="constrained")
        for axis, panel in zip(axes[0], panels, strict=True):
            draw(axis, *panel)
        figure.savefig(given.figure, dpi=80, metadata={"Software": None})


if __name__ == "__main__":
    main()
