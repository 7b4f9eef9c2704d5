"""The comparisons of docs/research/next-fix.md, and its figure: ``python -m bench.next_fix``.

Reads what ``bench.kept_runs keep`` made of the folder of ``roundoff sweep next-fix-overnight``. Prints the tables of
the page in Markdown: primary comparisons first, as they were written down before the experiment. Draws
docs/figures/next-fix.png, with its table. ``python -m bench.next_fix values FOLDER ...`` writes the values of the
critics of logged runs in these folders into docs/data/next-fix-values.csv.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from bench import kept_runs
from roundoff.analysis import read_experiment
from roundoff.analysis.figures.degradation import degradation_table, draw_degradation
from roundoff.analysis.figures.drawing.style import SCREEN
from roundoff.analysis.statistics.comparisons import difference, holm
from roundoff.analysis.statistics.equivalence import MARGIN, equivalence, in_words
from roundoff.analysis.tables.against_fp32 import share_interval
from roundoff.analysis.tables.summary import summarize

ROOT = Path(__file__).parents[1]
RUNS = ROOT / "docs" / "data" / "next-fix-overnight.jsonl"
VALUES = RUNS.with_name("next-fix-values.csv")
FIGURE = ROOT / "docs" / "figures" / "next-fix"
TASKS = ("cartpole_swingup", "ball_in_cup_catch")
FIXES = {0: "six fixes", 1: "with stochastic compensation", 3: "with all four"}  # by how many are not the paper's
FP32, ALL_FOUR = "fp32, six fixes", "e4m3, with all four"
COMPENSATED, SIX = "e5m3, with stochastic compensation", "e5m3, six fixes"
EVERY = (FP32, "e5m10, six fixes", "e4m3, six fixes", ALL_FOUR, SIX, COMPENSATED)
LINES = {"six fixes": "six fixes", "with stochastic compensation": "six fixes + stochastic compensation"}
LINES |= {"with all four": "six fixes + four changes"}


def case_of(config: dict[str, Any]) -> str:
    """What the page calls the case of a run."""
    return f"{config['format']}, {FIXES[sum(name.startswith('stochastic_') for name in config['fixes'])]}"


def runs_of(file: Path = RUNS) -> pd.DataFrame:
    """Runs that have ended, of seeds with a run of every case on every task.

    Columns: ``task``, ``format``, ``case``, ``seed``, ``status``, ``return`` (0 of a crash), ``untrained`` (only of
        fp32) and ``area`` (mean return over the evaluations).
    """
    shared, *rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    found = []
    for row in rows:
        config, result = shared["shared"] | row["config"]["config"], row["result"]
        score = result["return"] if result["status"] == "done" else 0.0
        told = {key: config[key] for key in ("task", "format", "seed")}
        told |= {"case": case_of(config), "status": result["status"], "return": score}
        curve = [record["return_mean"] for record in row["evaluations"] if record["kind"] == "eval"]
        found.append(told | {"untrained": result.get("untrained", np.nan), "area": float(np.mean(curve))})
    table = pd.DataFrame(found)
    cases = table["case"].nunique() * table["task"].nunique()
    return table[table.groupby("seed")["case"].transform("size") == cases].sort_values("seed", kind="stable")


def scores_of(runs: pd.DataFrame, case: str, task: str) -> dict[int, float]:
    """Returns of one case on one task, by seed."""
    own = runs[(runs["case"] == case) & (runs["task"] == task)]
    return dict(zip(own["seed"], own["return"], strict=True))


def failures(runs: pd.DataFrame, case: str, task: str) -> str:
    """How many runs of a case end below half of the way from the untrained policy to fp32's median; 90 % interval."""
    start = runs.loc[runs["task"] == task, "untrained"].mean()
    threshold = (start + float(np.median(list(scores_of(runs, FP32, task).values())))) / 2
    scores = list(scores_of(runs, case, task).values())
    below = sum(score < threshold for score in scores)
    low, high = share_interval(below, len(scores))
    return f"{below} of {len(scores)} ({100 * low:.0f} to {100 * high:.0f} %)"


def against(runs: pd.DataFrame, pairs: list[tuple[str, str]], *, same: bool) -> str:
    """Rows of a table of comparisons: each pair on each task, paired by seed, Holm's p over all rows.

    Args:
        runs: of :func:`runs_of`.
        pairs: a case, and the case to compare with.
        same: whether equivalence is tested, within 5 % of the other one's mean; else a difference.
    """
    rows = [(one, other, task) for one, other in pairs for task in TASKS]
    sides = [[[scores_of(runs, case, task)] for case in (one, other)] for one, other, task in rows]
    differences, equal = [difference(*side) for side in sides], [equivalence(*side) for side in sides]
    adjusted = holm([test.p for test in (equal if same else differences)])
    lines = []
    for (one, other, task), side, test, share, p in zip(rows, sides, differences, equal, adjusted, strict=True):
        means = [f"{np.mean(list(scores[0].values())):.0f}" for scores in side]
        low, high = test.interval
        cells = [task, one, other, *means, f"{test.value:+.0f} ({low:+.0f} to {high:+.0f})"]
        cells += [f"{100 * share.interval.low:+.1f} to {100 * share.interval.high:+.1f} %"]
        cells += [f"{share.p if same else test.p:.2g}", f"{p:.2g}", failures(runs, one, task)]
        answer = in_words(float("nan"), p, MARGIN) if same else in_words(p, 1.0, MARGIN)
        lines.append(f"| {' | '.join([*cells, failures(runs, other, task), answer])} |")
    return "\n".join(lines)


def head(test: str) -> str:
    """The head of such a table."""
    names = ["task", "case", "against", "mean", "other mean", "difference, 95 %", "relative difference, 90 %"]
    names += [f"p of {test}", "p (Holm)", "below half way", "other below half way", "answer"]
    return f"| {' | '.join(names)} |\n|{'---|' * len(names)}"


def tables(runs: pd.DataFrame) -> dict[str, str]:
    """What the page has: both primary comparisons, secondary ones, and what critics say."""
    other = [(ALL_FOUR, "e5m10, six fixes"), ("e5m10, six fixes", FP32)]
    return {
        "primary (1)": f"{head('equivalence')}\n{against(runs, [(ALL_FOUR, FP32)], same=True)}",
        "primary (2)": f"{head('no difference')}\n{against(runs, [(COMPENSATED, SIX)], same=False)}",
        "secondary, equivalence": f"{head('equivalence')}\n{against(runs, other, same=True)}",
        "secondary, difference": (
            f"{head('no difference')}\n{against(runs, [(ALL_FOUR, 'e4m3, six fixes'), (ALL_FOUR, FP32)], same=False)}"
        ),
        "values": table_of_values(pd.read_csv(VALUES)),
    }


def marks_of(runs: pd.DataFrame) -> pd.DataFrame:
    """The marks of the figure: return against bits per number, a line for the six fixes and one for the new ones."""
    with tempfile.TemporaryDirectory() as folder:
        runs.to_csv(Path(folder) / "scores.csv", index=False, float_format="%.10g")
        kept_runs.lay_scores(Path(folder) / "scores.csv", Path(folder) / "runs")
        experiment = read_experiment(Path(folder) / "runs")
        table = degradation_table(experiment, summarize(experiment), "bits")
    for ending, line in LINES.items():
        new = table["series"].str.contains(f"e[0-9]mX, .*, {ending}")
        table.loc[new, "series"] = line
    table.loc[table["format"] == "fp32", "series"] = "fp32"
    return table


def values_of(folders: list[Path]) -> pd.DataFrame:
    """The values of the critics of logged runs that have ended, a row for each.

    Columns: ``case``, ``task``, ``seed`` and ``value``: the mean output of the critics on their batches, in units of
    unscaled rewards, over the last quarter of the run.
    """
    rows = []
    for run in sorted(run for folder in folders for run in (folder / "runs").iterdir()):
        if not (run / "result.json").exists():
            continue
        config = json.loads((run / "config.json").read_text())["config"]
        logged = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        late = [one["q"] for one in logged if "q" in one and one["step"] > 0.75 * config["steps"]]
        if late:
            told = {"case": case_of(config), "task": config["task"], "seed": config["seed"]}
            rows.append(told | {"value": float(np.mean(late))})
    return pd.DataFrame(rows).sort_values(["case", "task", "seed"], ignore_index=True)


def table_of_values(values: pd.DataFrame) -> str:
    """What critics say by case: the mean, the lowest and highest run, and how many runs."""
    lines = [f"| format of everything | {' | '.join(TASKS)} |".replace("_", " "), "|---|---|---|"]
    for case in EVERY:
        cells = []
        for task in TASKS:
            own = values.loc[(values["case"] == case) & (values["task"] == task), "value"]
            cells.append(f"{own.mean():.0f} ({own.min():.0f} to {own.max():.0f}; {len(own)} runs)")
        lines.append(f"| {case} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Runs the command line."""
    match sys.argv[1:]:
        case ["values", *folders] if folders:
            values_of([Path(name) for name in folders]).to_csv(VALUES, index=False, float_format="%.6g")
        case []:
            runs = runs_of()
            for name, text in tables(runs).items():
                print(f"{name}:\n\n{text}\n")
            table = marks_of(runs)
            table.to_csv(FIGURE.with_suffix(".csv"), index=False, float_format="%.10g")
            canvas = draw_degradation("SAC with everything in a format", table, SCREEN._replace(columns=2), x="bits")
            canvas.savefig(FIGURE.with_suffix(".png"), dpi=90, metadata={"Software": None})
        case _:
            sys.exit(f"python -m bench.next_fix [values FOLDER ...]; got {sys.argv[1:]}")


if __name__ == "__main__":
    main()
