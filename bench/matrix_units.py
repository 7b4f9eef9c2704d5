"""Sums of matrix units: their relative errors, and their time over ``torch.mm`` and that of other emulators.

``python -m bench.matrix_units`` prints both tables and writes them to ``bench/results/matrix_units.json``.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec

import torch

from bench.timing import interleaved, record
from roundoff.formats import round
from roundoff.simulate.accumulation.description import Accumulation
from roundoff.simulate.accumulation.fused_sum import FusedSum
from roundoff.simulate.accumulation.run import accumulate

DEPTHS = 256, 1024, 4096
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


def main() -> None:
    """Prints and records the tables."""
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
