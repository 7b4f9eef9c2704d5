"""What rounding leaves of values and of target networks, predicted and measured: docs/figures/recursions.csv and .png.

``python -m bench.recursions`` takes a few minutes on one core. Values: a small critic in float32, of which the outputs
and the targets are in m significand bits, learns a reward of 1 at every step with a discount of 0.99, so that 100 is
right everywhere. Target networks: an average with tau = 0.01 of 2000 normal numbers, after 1000 updates, by the agents'
own ``KahanEMA``.
"""

from __future__ import annotations

import csv
from pathlib import Path

import torch

import roundoff
from roundoff.agents.optimizers.decisions import add_product
from roundoff.analysis.figures.drawing.style import REFERENCE, figure, look
from roundoff.formats.tools.recursions import least_change, reach
from roundoff.remedies import KahanEMA, stochastic_target

FIGURE = Path(__file__).parents[1] / "docs" / "figures" / "recursions"
BITS = range(2, 11)
DISCOUNT, TAU = 0.99, 0.01
STEPS, LAST, BATCH = 6000, 500, 64
UPDATES = 1000


def learned(m: int, *, stochastic: bool) -> float:
    """The mean value that a critic has learned, over the last steps."""
    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Linear(4, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))
    optimizer = torch.optim.Adam(network.parameters(), lr=3e-3)
    fmt, ones, total = f"e8m{m}", torch.ones(BATCH, 1), 0.0
    simulation = roundoff.Simulation(fmt, seed=0)
    for step in range(STEPS):
        x, following = torch.randn(2, BATCH, 4)
        with torch.no_grad():
            value = roundoff.round(network(following), fmt)
            simulation.step = step
            with simulation:
                target = (
                    stochastic_target(ones, ones, value, DISCOUNT)
                    if stochastic
                    else add_product(ones, ones, value, DISCOUNT)
                )
        q = network(x)
        optimizer.zero_grad()
        q.backward((roundoff.round(q.detach(), fmt) - target) / BATCH)
        optimizer.step()
        total += q.mean().item() * (step >= STEPS - LAST)
    return total / LAST


def lag(m: int, *, stochastic: bool) -> float:
    """How far an average has stopped from its source, in parts of that: mean error over mean size."""
    generator = torch.Generator().manual_seed(0)
    with roundoff.simulate(f"e5m{m}", seed=0) as simulation:
        source, average = (torch.randn(2000, generator=generator) * 1.0 for _ in range(2))
        ema = KahanEMA(average, TAU, largest=57344.0, stochastic=stochastic)
        for simulation.step in range(UPDATES):
            ema.update_(source)
    return float((average - source).abs().mean() / source.abs().mean())


def rows() -> list[dict[str, float]]:
    """One for each number of bits."""
    found = []
    for m in BITS:
        least, most = (share / (1 - DISCOUNT) for share in reach(1 - DISCOUNT, m))
        row = {"m": m, "predicted_least": least, "predicted_most": most}
        row |= {name: learned(m, stochastic=name == "stochastic") for name in ("nearest", "stochastic")}
        row["lag_predicted_most"] = least_change(m, compensated=True)[1] / TAU
        row |= {f"lag_{name}": lag(m, stochastic=name == "stochastic") for name in ("nearest", "stochastic")}
        found.append({name: float(f"{value:.4g}") for name, value in row.items()})
        print(found[-1], flush=True)
    return found


def draw(table: list[dict[str, float]]) -> None:
    """Prediction beside measurement."""
    bits = [row["m"] for row in table]
    (first, round_mark, _), (second, square, _) = look(0), look(1)
    with figure(2, "Recursions in few significand bits", 5.0, 3.6) as (canvas, (left, right)):
        least, most = ([row[f"predicted_{end}"] for row in table] for end in ("least", "most"))
        left.fill_between(bits, least, most, alpha=0.3, color=first, label="predicted, to nearest")
        left.plot(bits, [row["nearest"] for row in table], round_mark, color=first, label="learned, to nearest")
        stochastic = [row["stochastic"] for row in table]
        left.plot(bits, stochastic, square, color=second, label="learned, stochastic targets")
        left.axhline(1 / (1 - DISCOUNT), color=REFERENCE.color, linestyle=REFERENCE.line, label="1 / (1 - discount)")
        left.set_title("Values stop early")
        left.set_ylabel(f"value of 1 at every step, discount {DISCOUNT}")
        most = [row["lag_predicted_most"] + 2.0 ** -(row["m"] + 1) for row in table]  # and half an ulp of its own
        right.plot(bits, most, color=first, label="at most, predicted")
        right.plot(
            bits, [row["lag_nearest"] for row in table], round_mark, color=first, label="compensated, to nearest"
        )
        lags = [row["lag_stochastic"] for row in table]
        right.plot(bits, lags, square, color=second, label="compensated stochastically")
        right.set_title("Averages lag")
        right.set_yscale("log")
        right.set_ylabel(f"lag of an average over its source, tau {TAU}")
        for axis in (left, right):
            axis.set_xlabel("significand bits m")
            axis.legend(fontsize="small")
    canvas.savefig(f"{FIGURE}.png", dpi=100, metadata={"Software": None})


def main() -> None:
    """Measures, and writes the table and the figure."""
    torch.set_num_threads(1)
    table = rows()
    with FIGURE.with_suffix(".csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(table[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(table)
    draw(table)


if __name__ == "__main__":
    main()
