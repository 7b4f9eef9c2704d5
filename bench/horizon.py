"""The horizon that rounding leaves agents, predicted and learned: docs/figures/horizon*.csv and .png.

``python -m bench.horizon`` runs ``bench/horizon.yaml``, ``horizon-sac.yaml`` and ``horizon-dqn.yaml`` in ``results/``,
which can be killed and goes on, and takes an hour on one core. DQN and SAC learn a reward of 1 at every step of
``bench/constant_reward.py``.
"""

from __future__ import annotations

import csv
import subprocess
import sys
from pathlib import Path

from roundoff.analysis import read_experiment
from roundoff.analysis.figures.drawing.style import REFERENCE, figure, legend_under, look
from roundoff.analysis.reports.writing import learned_horizons
from roundoff.formats import FloatFormat, Format
from roundoff.formats.tools.recursions import reach

ROOT = Path(__file__).parents[1]
FIGURES = ROOT / "docs" / "figures"
NEAREST, STOCHASTIC = "nearest", "stochastic"
LABELS = {NEAREST: "targets to the nearest", STOCHASTIC: "stochastic targets"}


def rows(folder: Path) -> list[dict[str, str]]:
    """One for each run that has ended: what was predicted and learned, in steps."""
    experiment = read_experiment(folder)
    learned = learned_horizons(experiment)
    found: list[dict[str, str]] = []
    for run in experiment.runs[experiment.runs["status"] == "done"].to_dict("records"):
        fmt = Format.parse(run["format"])
        assert isinstance(fmt, FloatFormat)
        m, discount = fmt.significand_bits, float(run["discount"])
        least, most = (share / (1 - discount) for share in reach(1 - discount, m))
        row = {
            "discount": f"{discount:g}",
            "targets": STOCHASTIC if "stochastic_targets" in run["fixes"] else NEAREST,
            "m": str(m),
            "predicted_least": f"{least:.4g}",
            "predicted_most": f"{most:.4g}",
            "learned": f"{learned[run['id']]:.4g}",
        }
        found.append(row)
    return sorted(found, key=lambda row: (row["discount"], row["targets"], int(row["m"])))


def rows_of_cases(folder: Path) -> list[dict[str, str]]:
    """One for each run that has ended, with the name of its case."""
    experiment = read_experiment(folder)
    learned = learned_horizons(experiment)
    done = experiment.runs[experiment.runs["status"] == "done"].to_dict("records")
    found = [
        {"case": experiment.cases[run["id"]], "seed": str(run["seed"]), "learned": f"{learned[run['id']]:.4g}"}
        for run in done
    ]
    return sorted(found, key=lambda row: (row["case"], int(row["seed"])))


def draw(table: list[dict[str, str]], path: Path) -> None:
    """Prediction beside what was learned: a panel for each discount."""
    discounts = sorted({float(row["discount"]) for row in table})
    with figure(len(discounts), "Values reach a shorter horizon in low precision", 3.4, 3.0) as (canvas, axes):
        for discount, axis in zip(discounts, axes, strict=True):
            here = [row for row in table if float(row["discount"]) == discount]
            band = {int(row["m"]): (float(row["predicted_least"]), float(row["predicted_most"])) for row in here}
            color, label = look(0).color, "predicted, to nearest"
            axis.fill_between(list(band), *zip(*band.values(), strict=True), alpha=0.3, color=color, label=label)
            for number, (targets, learned) in enumerate(LABELS.items()):
                points = [(int(row["m"]), float(row["learned"])) for row in here if row["targets"] == targets]
                color, marker, _ = look(number)
                axis.plot(*zip(*points, strict=True), marker, color=color, label=learned)
            axis.axhline(
                1 / (1 - discount), color=REFERENCE.color, linestyle=REFERENCE.line, label="1 / (1 - discount)"
            )
            axis.set_title(f"discount {discount:g}")
            axis.set_xlabel("significand bits m")
            axis.set_ylim(bottom=0)
        axes[0].set_ylabel("horizon of values, in steps")
        legend_under(canvas, *axes[0].get_legend_handles_labels())
    canvas.savefig(path, dpi=100, metadata={"Software": None})


def main() -> None:
    """Runs what has not ended, and writes the tables and the figure."""
    for name, table_of in (("horizon", rows), ("horizon-sac", rows), ("horizon-dqn", rows_of_cases)):
        folder = ROOT / "results" / name
        command = [sys.executable, "-m", "roundoff", "sweep", f"bench/{name}.yaml", "--out", str(folder)]
        subprocess.run([*command, "--allow-import", "bench.constant_reward"], cwd=ROOT, check=True)
        table = table_of(folder)
        with (FIGURES / f"{name}.csv").open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(table[0]), lineterminator="\n")
            writer.writeheader()
            writer.writerows(table)
        if table_of is rows:
            draw(table, FIGURES / f"{name}.png")


if __name__ == "__main__":
    main()
