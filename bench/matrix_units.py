"""Sums of matrix units: their relative errors, and their time over ``torch.mm`` and that of other emulators.

``python -m bench.matrix_units`` prints both tables and writes them to ``bench/results/matrix_units.json``. ``python -m
bench.matrix_units figure`` draws docs/figures/matrix-units.png: the errors, and the losses of the runs of
``examples/characters/units.yaml`` in docs/data/units-of-characters.csv.
"""

from __future__ import annotations

import json
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pandas as pd
import torch

from bench.timing import interleaved, record
from roundoff.analysis.figures.drawing.style import figure, legend_under, look, write_names_under
from roundoff.formats import round
from roundoff.simulate.accumulation.description import Accumulation
from roundoff.simulate.accumulation.fused_sum import FusedSum
from roundoff.simulate.accumulation.run import accumulate

DEPTHS = 256, 1024, 4096
ROOT = Path(__file__).parents[1]
UNITS = "ada-fp8", "h100-fp8", "h100-fp8/128", "b200-fp8", "e8m13/32"


def under(text: str, operands: tuple[torch.Tensor, torch.Tensor]):
    """A product of matrices with the sums of a unit or an accumulator."""
    how = FusedSum.parse(text) or Accumulation.parse(text)
    return lambda: accumulate(torch.ops.aten.mm.default, operands, {}, how)


def matrices(rows: int, depth: int, columns: int, *, positive: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Standard normal matrices in e4m3, or their magnitudes."""
    generator = torch.Generator().manual_seed(0)
    drawn = (torch.randn(*shape, generator=generator) for shape in ((rows, depth), (depth, columns)))
    a, b = (round(x.abs() if positive else x, "fp8_e4m3") for x in drawn)
    return a, b


def draw() -> None:
    """Draws the relative errors of positive sums by their length, and the losses of a GPT by unit."""
    rows = json.loads((ROOT / "bench" / "results" / "matrix_units.json").read_text(encoding="utf-8"))["rows"]
    losses = pd.read_csv(ROOT / "docs" / "data" / "units-of-characters.csv")
    with figure(2, "Matrix units: sums of one sign, and what a GPT learns", 4.2, 3.8) as (canvas, axes):
        for number, row in enumerate(row for row in rows if "unit" in row):
            errors = [100 * abs(row[f"error_{depth}"]) for depth in DEPTHS]
            color, marker, line = look(number)
            axes[0].loglog(DEPTHS, errors, color=color, marker=marker, linestyle=line, label=row["unit"])
        axes[0].set_title("sums of positive products")
        axes[0].set_xticks(DEPTHS, [str(depth) for depth in DEPTHS], minor=False)
        axes[0].minorticks_off()
        axes[0].set_xlabel("number of products")
        axes[0].set_ylabel("relative error in %")
        cases = list(dict.fromkeys(losses["case"]))
        for place, case in enumerate(cases):
            own = losses[losses["case"] == case]["return"]
            axes[1].plot([place] * len(own), own, "o", color=look(0).color, alpha=0.5)
            axes[1].plot(place, own.mean(), "_", color="black", markersize=18)
        axes[1].set_title("GPT in FP8, five seeds")
        axes[1].set_ylabel("loss, nats per character")
        write_names_under(axes[1], range(len(cases)), [case.removeprefix("FP8 with ") for case in cases])
        legend_under(canvas, *axes[0].get_legend_handles_labels())
    canvas.savefig(ROOT / "docs" / "figures" / "matrix-units.png", dpi=100, metadata={"Software": None})


def main() -> None:
    """Prints and records the tables."""
    if sys.argv[1:] == ["figure"]:
        draw()
        return
    torch.set_num_threads(1)
    rows: list[dict[str, object]] = []
    for unit in UNITS:
        row: dict[str, object] = {"unit": unit}
        for depth in DEPTHS:
            a, b = matrices(32, depth, 32, positive=True)
            exact = a.double() @ b.double()
            row[f"error_{depth}"] = float(((under(unit, (a, b))().double() - exact) / exact).mean())
        rows.append(row)
        print(f"{unit:14}", *(f"{row[f'error_{depth}']:+.1e}" for depth in DEPTHS))
    operands = matrices(256, 1024, 256, positive=False)
    ways = {"torch.mm": lambda: torch.mm(*operands)} | {name: under(name, operands) for name in (*UNITS, "e5m10")}
    if find_spec("mmaemu"):  # pip install mmaemu
        emulate = import_module("mmaemu").scaled_mm
        x, y = operands[0].to(torch.float8_e4m3fn), operands[1].T.contiguous().to(torch.float8_e4m3fn).T
        one = torch.ones(())
        ways["mmaemu, hopper"] = lambda: emulate(
            x, y, scale_a=one, scale_b=one, out_dtype=torch.float32, use_fast_accum=True, profile="hopper", splitk=1
        )
    for name, seconds in (times := interleaved(ways, rounds=5)).items():
        ratio = seconds / times["torch.mm"]
        rows.append({"product": name, "seconds": seconds, "over_mm": ratio})
        print(f"{name:16} {seconds * 1e3:9.2f} ms {ratio:9.1f} x torch.mm")
    print("written to", record("matrix_units", rows, packages=("mmaemu",)))


if __name__ == "__main__":
    main()
