"""Runs that have ended, as one text file that a repository can hold; and the folder of a sweep again, to go on from.

``python -m bench.kept_runs keep FOLDER FILE`` writes a line for each run: its config, result, timing and evaluations,
without weights, without what was logged in training and without the returns of single episodes.
``python -m bench.kept_runs lay FILE FOLDER`` puts the runs into a folder of that sweep, which ``roundoff sweep NAME
--out FOLDER`` has begun and goes on with. Runs that are there stay as they are. ``python -m bench.kept_runs scores
FOLDER FILE`` writes what tables of results need alone: of each run that has ended its settings that vary, its return,
and the area under its curve, as CSV.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pandas as pd

from roundoff.analysis import read_experiment
from roundoff.analysis.runs.records import areas
from roundoff.analysis.tables.summary import ended


def keep(folder: Path, file: Path) -> int:
    """Writes the runs of ``folder`` that have ended, in the order of their names, and returns how many there are."""
    rows = [_row(run) for run in sorted((folder / "runs").iterdir()) if (run / "result.json").exists()]
    if not rows:
        sys.exit(f"{folder}: no run in it has ended")
    configs = [row["config"]["config"] for row in rows]
    shared = {key: value for key, value in configs[0].items() if all(config.get(key) == value for config in configs)}
    for row in rows:
        own = {key: value for key, value in row["config"]["config"].items() if key not in shared}
        row["config"] = row["config"] | {"config": own}
    lines = [json.dumps(row, sort_keys=True) for row in [{"shared": shared}, *rows]]
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return len(rows)


def _row(run: Path) -> dict[str, Any]:
    parts = {name: json.loads((run / f"{name}.json").read_text()) for name in ("config", "result", "timing")}
    logged = (run / "metrics.jsonl").read_text().splitlines()
    evaluations = [json.loads(line) for line in logged if '"eval' in line]
    for one in evaluations:
        one.pop("returns", None)  # most of the bytes; their mean and deviation stay
    return {"run": run.name, **parts, "evaluations": evaluations}


def lay(file: Path, folder: Path) -> int:
    """Makes the runs of ``file`` that ``folder`` does not have, and returns how many."""
    shared, *rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    made = 0
    for row in rows:
        run = folder / "runs" / row["run"]
        if (run / "result.json").exists():
            continue
        run.mkdir(parents=True, exist_ok=True)
        row["config"]["config"] = shared["shared"] | row["config"]["config"]
        evaluations = "".join(json.dumps(record) + "\n" for record in row["evaluations"])
        (run / "metrics.jsonl").write_text(evaluations, encoding="utf-8")
        for name in ("config", "timing", "result"):  # the result last: with it a run has ended
            (run / f"{name}.json").write_text(json.dumps(row[name], indent=1, sort_keys=True) + "\n", encoding="utf-8")
        made += 1
    return made


def scores(folder: Path, file: Path) -> int:
    """Writes a line for each run that has ended, and returns how many there are.

    Columns: ``task``, ``format``, the settings that vary (of a sweep with cases, ``case`` in their place), ``seed``,
    ``status``, ``return``, ``untrained`` (empty where not known) and ``area``.
    """
    experiment = read_experiment(folder)
    runs = ended(experiment.runs)
    if runs.empty:
        sys.exit(f"{folder}: no run in it has ended")
    runs = runs.assign(area=runs["id"].map(areas({name: experiment.folders[name] for name in runs["id"]})))
    order = pd.CategoricalDtype(list(dict.fromkeys(experiment.cases.values())), ordered=True)  # that of the sweep
    runs = runs.assign(case=runs["id"].map(experiment.cases).astype(order))
    keys = ["case"] if experiment.cases else experiment.conditions.keys
    table = runs.sort_values(["task", "format", *keys, "seed"])
    columns = ["task", "format", *keys, "seed", "status", "return", "untrained", "area"]
    table[columns].to_csv(file, index=False, float_format="%.10g")
    return len(table)


def lay_scores(file: Path, folder: Path) -> int:
    """Makes runs in ``folder`` with the scores of ``file``, for what compares these, and returns how many."""
    table = pd.read_csv(file)
    numbers = ("return", "untrained", "area")
    for number, row in enumerate(table.to_dict("records")):
        run = folder / f"run{number}"
        run.mkdir(parents=True)
        config = {str(key): value for key, value in row.items() if key not in (*numbers, "status") and pd.notna(value)}
        crash = {"step": 1, "reason": "it did"} if row["status"] == "crashed" else None
        result = {"status": row["status"], "return": row["return"], "return_std": 0.0, "step": 1, "crash": crash}
        if pd.notna(row["untrained"]):
            result["untrained"] = row["untrained"]
        evaluations = [{"kind": "eval", "step": step, "return_mean": row["area"]} for step in (0, 1)]
        (run / "config.json").write_text(json.dumps({"config": config}), encoding="utf-8")
        (run / "metrics.jsonl").write_text("".join(json.dumps(one) + "\n" for one in evaluations), encoding="utf-8")
        (run / "result.json").write_text(json.dumps(result), encoding="utf-8")
    return len(table)


def main() -> None:
    """Does what the command line says."""
    match sys.argv[1:]:
        case ["keep", folder, file]:
            print(f"{keep(Path(folder), Path(file))} runs written to {file}")
        case ["lay", file, folder]:
            print(f"{lay(Path(file), Path(folder))} runs made in {folder}")
        case ["scores", folder, file]:
            print(f"{scores(Path(folder), Path(file))} runs written to {file}")
        case _:
            usage = "keep FOLDER FILE | lay FILE FOLDER | scores FOLDER FILE"
            sys.exit(f"python -m bench.kept_runs {usage}; got {sys.argv[1:]}")


if __name__ == "__main__":
    main()
