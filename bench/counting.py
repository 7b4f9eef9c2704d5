"""Cost of counting the cost of a program, with counting and without it.

``python -m bench.counting FOLDER`` times the step of a small network here and in another checkout of this project, such
as a copy without the counter's hooks: one process in each, in turns.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from bench.timing import interleaved, record
from roundoff.simulate import Policy, simulate

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

HERE = Path(__file__).parents[1]
ROUNDS, STEPS = 400, 8
FORMAT = "e5m10"


def mlp_step(mode: AbstractContextManager[Any]) -> Callable[[], None]:
    """A training step of three layers of 64 units with Adam, batch 64."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64))
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    x, y = torch.randn(64, 64), torch.randn(64, 64)

    def step() -> None:
        with mode:
            optimizer.zero_grad()
            nn.functional.mse_loss(net(x), y).backward()
            optimizer.step()

    return step


def uncounted() -> dict[str, AbstractContextManager[Any]]:
    """Plain float32, and simulations that count nothing: results rounded, and operands of products."""
    mixed = Policy.mixed_precision(FORMAT)
    return {"plain fp32": nullcontext(), f"simulated {FORMAT}": simulate(FORMAT), "mixed precision": simulate(mixed)}


def answer() -> None:
    """Makes the number of steps on each line of the input, and prints their time."""
    contestants = {name: mlp_step(mode) for name, mode in uncounted().items()}
    for step in contestants.values():
        for _ in range(STEPS):
            step()
    for line in sys.stdin:
        name, count = line.strip().rsplit(" ", 1)
        begin = time.process_time()
        for _ in range(int(count)):
            contestants[name]()
        print((time.process_time() - begin) / int(count), flush=True)


class Checkout:
    """A process that computes with the code of a folder."""

    def __init__(self, folder: Path) -> None:
        paths = {"PYTHONPATH": os.pathsep.join([str(folder / "src"), str(folder)]), "OMP_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.counting", "--answer"], cwd=folder, env=os.environ | paths, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip

    def seconds(self, name: str) -> float:
        """The processor's seconds for a step."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{name} {STEPS}\n")
        self._process.stdin.flush()
        return float(self._process.stdout.readline())

    def end(self) -> None:
        """Ends the process."""
        self._process.communicate()


def beside(folder: Path) -> list[dict[str, object]]:
    """The step here and in another checkout: medians, and the median and quartiles of the ratio within a round."""
    here, there = Checkout(HERE), Checkout(folder)
    samples: dict[str, list[tuple[float, float]]] = {name: [] for name in uncounted()}
    for number in range(ROUNDS):
        for name, found in samples.items():
            order = (here, there) if number % 2 else (there, here)
            taken = {checkout: checkout.seconds(name) for checkout in order}
            found.append((taken[here], taken[there]))
    here.end()
    there.end()
    rows: list[dict[str, object]] = []
    for name, found in samples.items():
        ratios = sorted(own / other for own, other in found)
        low, middle, high = statistics.quantiles(ratios)
        own, other = (statistics.median(times) for times in zip(*found, strict=True))
        rows.append(
            {"step": name, "here": own, "there": other, "ratio": middle, "quartile": low, "upper quartile": high}
        )
    return rows


def main(folder: str) -> None:
    """Prints and records the figures, next to the figures of another checkout."""
    modes = uncounted() | {"observed": simulate(FORMAT, observe=True), "counted": simulate(FORMAT, cost=True)}
    seconds = interleaved({name: mlp_step(mode) for name, mode in modes.items()}, clock=time.process_time, seconds=0.2)
    base = seconds["plain fp32"]
    rows: list[dict[str, object]] = [
        {"what": name, "seconds": value, "slowdown": value / base} for name, value in seconds.items()
    ]
    rows += beside(Path(folder).resolve())
    for row in rows:
        print(row)
    print("written to", record("counting", rows))


if __name__ == "__main__":
    torch.set_num_threads(1)
    match sys.argv[1:]:
        case ["--answer"]:
            answer()
        case [other]:
            main(other)
        case others:
            sys.exit(f"python -m bench.counting FOLDER; got {others}")
