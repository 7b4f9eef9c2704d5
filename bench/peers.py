"""Algorithms of ours beside those of other libraries: ``python -m bench.peers FOLDER ...``, of sweeps ``*-peers*``.

Prints a table in Markdown: for each folder and task, of each algorithm the mean final return and the mean over all
evaluations of a run (the area under its learning curve), each with its 95 % bootstrap interval over seeds; then of
each other one how much the first is above it, with interval and p of Welch's test. Algorithms are told apart by their
names; where an algorithm has several cases in a sweep, by the cases' names. Draws the learning curves into
``--figure FILE``.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

import matplotlib.pyplot as plt
import numpy as np

from roundoff.analysis.runs.experiment import Experiment, read_experiment
from roundoff.analysis.statistics.comparisons import difference
from roundoff.analysis.statistics.intervals import bootstrap_interval, generator_for

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

SCORES = {"last": "final return", "mean": "mean over the evaluations"}
COLORS = ("#0072B2", "#D55E00", "#009E73")


def curves_of(experiment: Experiment, task: str, algorithm: str) -> pd.DataFrame:
    """Returns by seed (rows) and evaluation (columns), as shares of the run; runs that have ended well alone."""
    runs = experiment.runs
    mine = runs[(runs["task"] == task) & names_of(experiment).eq(algorithm) & (runs["status"] == "done")]
    points = experiment.curves.drop_duplicates(["id", "step"], keep="last").merge(mine[["id", "seed", "eval_every"]])
    # A library takes whole rollouts, and is evaluated a little after the step.
    points["moment"] = points["step"] // points["eval_every"] * points["eval_every"]
    return points.pivot_table(index="seed", columns="moment", values="return", aggfunc="last").dropna(axis=1)


def names_of(experiment: Experiment) -> pd.Series:
    """What each run is called by: its algorithm, or its case where the algorithm has several."""
    runs = experiment.runs
    cases = runs["id"].map(experiment.cases)
    several = cases.groupby(runs["algorithm"]).transform("nunique") > 1
    return runs["algorithm"].where(~several, cases)


def scores_of(curves: pd.DataFrame) -> dict[str, pd.Series]:
    """The last return and the mean one, by seed."""
    return {"last": curves.iloc[:, -1], "mean": curves.mean(axis=1)}


def algorithms_of(experiment: Experiment, task: str) -> list[str]:
    """Returns the names of what has ended runs of a task: ours first, cases in the order of the sweep."""
    runs = experiment.runs
    done = names_of(experiment)[(runs["task"] == task) & (runs["status"] == "done")]
    order = list(experiment.cases.values())
    return sorted(done.unique(), key=lambda name: (":" in name, order.index(name) if name in order else 0, name))


def pairs_of(experiment: Experiment, names: list[str]) -> list[tuple[str, str]]:
    """The pairs to compare: the cases of an algorithm with its first, and what is of other libraries with the first."""
    algorithm = dict(zip(names_of(experiment), experiment.runs["algorithm"], strict=True))
    pairs = []
    for name in names[1:]:
        first = next(one for one in names if ":" in name or algorithm[one] == algorithm[name])
        if first != name:
            pairs.append((first, name))
    return pairs


def rows_of(experiment: Experiment, task: str) -> list[str]:
    """Rows of the table."""
    names = algorithms_of(experiment, task)
    curves = {name: curves_of(experiment, task, name) for name in names}
    rows = []
    for name in names:
        cells = []
        for kind, scores in scores_of(curves[name]).items():
            low, high = bootstrap_interval([scores.to_numpy()], generator_for(task, name, kind))
            cells.append(f"{scores.mean():.4g} ({low:.4g} to {high:.4g})")
        of_name = names_of(experiment).eq(name) & experiment.runs["task"].eq(task)
        crashed = (of_name & experiment.runs["status"].eq("crashed")).sum()
        left = f", {crashed} crashed" if crashed else ""
        rows.append(f"| {task} | `{name}` | {len(curves[name])}{left} | {' | '.join(cells)} |")
    for first, peer in pairs_of(experiment, names):
        cells = []
        for kind in SCORES:
            ours, theirs = (scores_of(curves[name])[kind] for name in (first, peer))
            # Their seeds have nothing in common: no pairs.
            sides = ({(name, seed): value for seed, value in scores.items()}
                     for name, scores in ((first, ours), (peer, theirs)))  # fmt: skip
            found = difference(*([side] for side in sides))
            cells.append(f"{found.value:+.3g} ({found.interval.low:.3g} to {found.interval.high:.3g}), p {found.p:.2g}")
        rows.append(f"| {task} | `{first}` less `{peer}` | | {' | '.join(cells)} |")
    return rows


def draw(axis: Axes, experiment: Experiment, task: str) -> None:
    """Mean returns with their intervals, a line per algorithm."""
    for name, color, line in zip(algorithms_of(experiment, task), COLORS, ("-", "--", ":"), strict=False):
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
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--figure", type=Path)
    given = parser.parse_args(arguments)
    experiments = [read_experiment(folder) for folder in given.folders]
    panels = [(one, task) for one in experiments for task in sorted(one.runs["task"].unique())]
    print(f"| task | algorithm | seeds | {' | '.join(SCORES.values())} |\n|---|---|---|---|---|")
    for one, task in panels:
        print("\n".join(rows_of(one, task)))
    if given.figure:
        size = (4.2 * len(panels), 3.2)
        figure, axes = plt.subplots(1, len(panels), figsize=size, squeeze=False, layout="constrained")
        for axis, panel in zip(axes[0], panels, strict=True):
            draw(axis, *panel)
        figure.savefig(given.figure, dpi=80, metadata={"Software": None})


if __name__ == "__main__":
    main()
