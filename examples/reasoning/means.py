"""The logs of long.yaml's runs, as means over 100 steps: the data of docs/rollouts.md.

``python examples/reasoning/means.py results/reasoning-long FILE.csv`` reads the folder that ``roundoff sweep`` has
written. It leaves out runs that have not ended.
"""

import csv
import json
import sys
from pathlib import Path
from statistics import fmean

STEPS = 100


def means(folder: Path) -> list[dict]:
    """One row for each run and hundred steps, by case and seed."""
    rows = []
    for run in json.loads((folder / "sweep.json").read_text(encoding="utf-8"))["runs"]:
        records = folder / "runs" / run["id"]
        if not (records / "result.json").exists():
            continue
        found = [json.loads(line) for line in (records / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
        logged = [record for record in found if record["kind"] == "log"]
        for step in range(STEPS, run["config"]["steps"] + 1, STEPS):
            these = [record for record in logged if step - STEPS < record["step"] <= step]
            if not these:  # the run has crashed before
                break
            shares = {name: f"{fmean(record[name] for record in these):.6g}" for name in ("unrounded", "reward")}
            kl = f"{fmean(record['kl'] for record in these):.3g}"
            rows.append({"case": run["case"], "seed": run["config"]["seed"], "step": step, **shares, "kl": kl})
    cases = list(dict.fromkeys(row["case"] for row in rows))
    return sorted(rows, key=lambda row: (cases.index(row["case"]), row["seed"], row["step"]))


if __name__ == "__main__":
    if len(sys.argv) != 3 or not (Path(sys.argv[1]) / "sweep.json").is_file():
        sys.exit(f"means.py takes the folder of a sweep and a file to write; got {sys.argv[1:]}")
    found = means(Path(sys.argv[1]))
    if not found:
        sys.exit(f"{sys.argv[1]}: no run in it has ended")
    with Path(sys.argv[2]).open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(found[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(found)
