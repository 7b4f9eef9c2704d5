"""Eager steps of agents, of other libraries' agents and of larger networks; new simulations, and new processes.

All in CPU time on one thread: e5m10 in C++ and through Python, each next to the same program in plain float32.
"""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
import time
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import nn

from bench import adapters, policy_gradient, q_learning
from bench.native import FORMAT, asking, within
from bench.timing import interleaved, record
from roundoff.simulate import simulate
from roundoff.simulate.native.library import VARIABLE

if TYPE_CHECKING:
    from collections.abc import Callable

WAYS = {"fp32": None, "through Python": "0", "in C++": "1"}
STARTS = {
    "import torch": "import torch",
    "import roundoff": "import roundoff",
    "import roundoff, enter a simulation": "import torch, roundoff\nwith roundoff.simulate('e5m10'): torch.rand(3)",
}


class Block(nn.Module):
    """A residual block of two convolutions."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first, self.second = (nn.Conv2d(channels, channels, 3, padding=1, bias=False) for _ in range(2))
        self.norms = nn.ModuleList(nn.BatchNorm2d(channels) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The input, plus the output of the layers."""
        inside = torch.relu(self.norms[0](self.first(x)))
        return torch.relu(x + self.norms[1](self.second(inside)))


def stepping(net: nn.Module, x: torch.Tensor) -> Callable[[], None]:
    """A function that does one step of SGD with momentum."""
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3, momentum=0.9)

    def step() -> None:
        optimizer.zero_grad()
        net(x).square().mean().backward()
        optimizer.step()

    return step


def residual(channels: int, images: int) -> Callable[[], None]:
    """A convolution and two residual blocks, on images of 32 x 32."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, channels, 3, padding=1), Block(channels), Block(channels))
    net.extend([nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 10)])
    return stepping(net, torch.randn(images, 3, 32, 32))


def transformer(width: int, rows: int) -> Callable[[], None]:
    """Two layers of an encoder with eight heads, on sequences of 128."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(width, 8, 4 * width, dropout=0.0, batch_first=True)
    net = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    return stepping(net, torch.randn(rows, 128, width))


AGENTS: dict[str, Callable[[str], Callable[[], object]]] = {
    **{
        f"DQN update, 2 x 256 units, batch {batch}": partial(q_learning.updates, (4,), batch=batch)
        for batch in (32, 512)
    },
    **{
        f"PPO update, 2 x {units} units, batch {batch}": partial(policy_gradient.updates, units=units, batch=batch)
        for units, batch in ((64, 64), (256, 512))
    },
    **{f"{name} update": partial(adapters.update, name) for name in ("sb3:DQN", "sb3:A2C", "sb3:PPO")},
}
NETWORKS = {
    "residual network, 64 channels, batch 32": partial(residual, 64, 32),
    "transformer, width 512, batch 4": partial(transformer, 512, 4),
}


def contestants_of(what: str) -> dict[str, Callable[[], object]]:
    """A case in float32, through Python and in C++."""
    if what in NETWORKS:
        return {way: within(asked, NETWORKS[what]()) for way, asked in WAYS.items()}
    make = AGENTS[what]
    return {way: asking(asked, partial(make, FORMAT if asked else "fp32")) for way, asked in WAYS.items()}


def rows_of(what: str, seconds: dict[str, float], first: str | None = None) -> list[dict[str, object]]:
    """The rows of a case, printed, with ratios to one of the ways."""
    rows = []
    for way, value in seconds.items():
        row: dict[str, object] = {"what": what, "way": way, "microseconds": 1e6 * value}
        rows.append(row | ({"slowdown": value / seconds[first]} if first else {}))
        print(what, way, f"{1e6 * value:.1f} us", f"{value / seconds[first]:.2f}" if first else "", flush=True)
    return rows


def entering() -> list[dict[str, object]]:
    """Entering and leaving a simulation again, and a new simulation."""

    def again(asked: str, *, is_new: bool) -> Callable[[], object]:
        os.environ[VARIABLE] = asked
        known = simulate(FORMAT)

        def run() -> None:
            os.environ[VARIABLE] = asked
            for _ in range(100):
                with simulate(FORMAT) if is_new else known:
                    pass

        return run

    rows = []
    for what, is_new in (("entering and leaving", False), ("making, entering and leaving", True)):
        ways = {way: again(asked, is_new=is_new) for way, asked in WAYS.items() if asked}
        taken = interleaved(ways, rounds=15, seconds=0.1, clock=time.process_time)
        rows += rows_of(what, {way: value / 100 for way, value in taken.items()})
    return rows


def decorated() -> list[dict[str, object]]:
    """A step of training in one simulation; and as a decorated function, with a new simulation for each call."""
    rows = []
    for what, is_new in (("training step, in one simulation", False), ("training step, in a new one", True)):
        ways = {way: _training(asked, is_new=is_new) for way, asked in WAYS.items()}
        rows += rows_of(what, interleaved(ways, rounds=15, seconds=0.1, clock=time.process_time), "fp32")
    return rows


def _training(asked: str | None, *, is_new: bool) -> Callable[[], object]:
    torch.manual_seed(0)
    step = stepping(nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 1)), torch.randn(32, 16))
    if asked is None:
        return step
    os.environ[VARIABLE] = asked
    known = simulate(FORMAT)
    in_new = known(step)

    def run() -> None:
        os.environ[VARIABLE] = asked
        if is_new:
            in_new()
        else:
            with known:
                step()

    return run


def starting() -> list[dict[str, object]]:
    """CPU time of new processes, caches warm."""
    taken: dict[tuple[str, str], list[float]] = {}
    for _ in range(5):
        for what, program in STARTS.items():
            for way, asked in WAYS.items():
                if asked is None or (asked == "0" and "enter" not in what):
                    continue  # nothing is entered there
                before = _seconds_of_children()
                environment = {**os.environ, VARIABLE: asked}
                subprocess.run([sys.executable, "-c", program], check=True, env=environment)
                key = what, way if "enter" in what else "plain"
                taken.setdefault(key, []).append(_seconds_of_children() - before)
    return [row for (what, way), values in taken.items() for row in rows_of(what, {way: statistics.median(values)})]


def _seconds_of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    """Prints and records the ratios."""
    rows = []
    for what in (*AGENTS, *NETWORKS):
        rows += rows_of(what, interleaved(contestants_of(what), rounds=7, seconds=0.2, clock=time.process_time), "fp32")
    rows += entering()
    rows += decorated()
    rows += starting()
    print("written to", record("eager", rows, packages=("stable_baselines3",)))


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
