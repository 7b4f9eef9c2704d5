"""Times on a GPU, by its own events: rounding, steps of programs, updates of agents, populations.

``python -m bench.gpu`` takes at most ten minutes on one GPU and writes ``bench/results/gpu/*.json``. With ``--try`` it
runs the same code once, on small sizes and in the CPU's memory, prints no figures and writes nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from torch import nn

import roundoff
from bench.population import together
from bench.timing import on_device, record
from bench.update import AGENTS, reference, updates
from roundoff.errors import RoundoffError
from roundoff.formats import Format, RandomBits, Rounding

Make = Callable[[], Callable[[], object]]

SIZES = (10_000, 100_000, 1_000_000, 10_000_000, 100_000_000)
MEMBERS = (1, 8, 32, 128)
UPDATES = ((1024, 1024), (1024, 4096), (4096, 1024), (4096, 4096))  # units, batch: Tables 10 and 11


class Bench:
    """The device on which things are timed, and how much of each."""

    def __init__(self, *, trial: bool) -> None:
        self.trial = trial
        self.device = "cpu" if trial else "cuda"
        self._peaks: dict[str, float] = {}

    def seconds(self, contestants: dict[str, Make], *, warm: int, timed: int) -> dict[str, float | None]:
        """Seconds per call of each; None, with the reason on the screen, for what cannot be run here."""
        found: dict[str, float | None] = {}
        self._peaks = {}
        for name, make in contestants.items():
            try:
                if self.trial:
                    make()()
                    found[name] = 1.0
                else:
                    found[name], self._peaks[name] = on_device(make, warm=warm, timed=timed)
            except (RoundoffError, torch.OutOfMemoryError) as error:
                print(f"{name} is left out: {error}")
                found[name] = None
        return found

    def rounding(self) -> list[dict[str, Any]]:
        """Rounding of ``n`` float32 numbers, beside copies and casts."""
        rows = []
        for n in SIZES[:1] if self.trial else SIZES:
            x = torch.randn(n // 32, 32, device=self.device)
            row = self._row(f"{n} numbers", self.seconds(roundings(x), warm=20, timed=100), "copy_")
            rows.append(row)
        return rows

    def steps(self) -> list[dict[str, Any]]:
        """Training steps of three networks, simulated over plain, eager and compiled."""
        rows = []
        for name, make in networks(self.device, small=self.trial).items():
            for compiled in (False, True):
                contestants = {
                    f"{label}": lambda m=make, p=policy, c=compiled: training(*m(), p, compiled=c)
                    for label, policy in (("plain", None), ("simulated e5m10", "e5m10"), ("simulated e4m3", "e4m3"))
                }
                what = f"{name}, {'compiled' if compiled else 'eager'}"
                rows.append(self._row(what, self.seconds(contestants, warm=10, timed=30), "plain"))
        return rows

    def updates(self) -> list[dict[str, Any]]:
        """Updates of soft actor-critic at the sizes of the paper's Tables 10 and 11, eager and compiled."""
        rows = []
        for units, batch in ((8, 8),) if self.trial else UPDATES:
            contestants: dict[str, Make] = {"reference": lambda u=units, b=batch: reference(u, b, self.device)}
            for name, (format, settings) in AGENTS.items():
                contestants[name] = lambda f=format, s=settings, u=units, b=batch: updates(f, u, b, self.device, **s)
            row = self._row(f"{units} units, batch {batch}", self.seconds(contestants, warm=20, timed=50), "fp32")
            rows.append(row | {"units": units, "batch": batch})
        return rows

    def populations(self) -> list[dict[str, Any]]:
        """One update of all members, each with a format of its own, over that of a population of one."""
        rows = []
        for units in (8,) if self.trial else (128, 256):
            contestants = {
                str(count): lambda c=count, u=units: together(
                    [f"e5m{10 - i % 9}" for i in range(c)], self.device, hidden_units=u, batch_size=u
                )
                for count in (MEMBERS[:1] if self.trial else MEMBERS)
            }
            rows.append(self._row(f"{units} units", self.seconds(contestants, warm=10, timed=50), "1"))
        return rows

    def _row(self, what: str, seconds: dict[str, float | None], base: str) -> dict[str, Any]:
        one = seconds[base]
        ratios = {name: value / one for name, value in seconds.items() if value and one and name != base}
        if not self.trial:
            told = ", ".join(f"{name} {ratio:.2f}" for name, ratio in ratios.items())
            print(f"{what}: {base} {(one or float('nan')) * 1e6:.1f} us; over it: {told}")
        return {"what": what, "seconds": seconds, "base": base, "ratios": ratios, "peak_megabytes": self._peaks}


def roundings(x: torch.Tensor) -> dict[str, Make]:
    """Ours and what there is to compare with, each into memory that is there."""
    target, random = torch.empty_like(x), RandomBits(0)
    contestants: dict[str, Make] = {
        "copy_": lambda: lambda: target.copy_(x),
        "half().float()": lambda: lambda: x.half().float(),
        "float8_e4m3fn and back": lambda: lambda: x.to(torch.float8_e4m3fn).float(),
    }
    for name in ("e5m10", "bf16", "fp8_e4m3", "q4.6", "posit8_1", "mxfp8_e4m3", "nvfp4", "int8_row", "fp8_e4m3_row"):
        fmt = Format.parse(name)
        contestants[name] = lambda f=fmt: lambda: f.round_into(x, target)
        if name in ("e5m10", "bf16", "fp8_e4m3", "mxfp8_e4m3"):
            contestants[f"stochastic {name}"] = lambda f=fmt: (
                lambda: f.round_into(x, target, Rounding.STOCHASTIC, None, random)
            )
    contestants["qtorch"] = lambda: lambda: roundoff.round(x, "e5m10", backend="qtorch")
    return contestants


def networks(device: str, *, small: bool) -> dict[str, Callable[[], tuple[nn.Module, torch.Tensor]]]:
    """Networks with an input each."""
    width = 32 if small else 4096

    def gemms() -> tuple[nn.Module, torch.Tensor]:
        layers = [nn.Sequential(nn.Linear(width, width), nn.ReLU()) for _ in range(4)]
        return nn.Sequential(*layers).to(device), torch.randn(width, width, device=device)

    def conv() -> tuple[nn.Module, torch.Tensor]:
        channels = [3, 32, 64, 64]
        layers: list[nn.Module] = []
        for before, after in pairwise(channels):
            layers += [nn.Conv2d(before, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU(), nn.MaxPool2d(2)]
        size, batch = (16, 4) if small else (64, 256)
        return nn.Sequential(*layers).to(device), torch.randn(batch, 3, size, size, device=device)

    def block() -> tuple[nn.Module, torch.Tensor]:
        units, heads, length, batch = (32, 2, 8, 2) if small else (1024, 16, 512, 16)
        layer = nn.TransformerEncoderLayer(units, heads, 4 * units, dropout=0.0, batch_first=True)
        return layer.to(device), torch.randn(batch, length, units, device=device)

    return {"four layers of matrix products": gemms, "three convolutions": conv, "a transformer block": block}


def training(network: nn.Module, x: torch.Tensor, policy: str | None, *, compiled: bool) -> Callable[[], object]:
    """A training step: loss, gradients, SGD."""
    optimizer = torch.optim.SGD(network.parameters(), lr=1e-3)

    def step() -> torch.Tensor:
        optimizer.zero_grad()
        loss = network(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    if policy is None:
        return torch.compile(step) if compiled else step
    simulation = roundoff.simulate(policy)
    if compiled:
        return roundoff.compile(step, simulation)

    def simulated() -> torch.Tensor:
        with simulation:
            return step()

    return simulated


def main() -> None:
    """Prints and records everything."""
    trial = "--try" in sys.argv
    if not trial and not torch.cuda.is_available():
        sys.exit("python -m bench.gpu needs an NVIDIA GPU and a PyTorch that sees it; see docs/limits.md")
    bench = Bench(trial=trial)
    for name in ("rounding", "steps", "updates", "populations"):
        rows = getattr(bench, name)()
        if not trial:
            print("written to", record(f"gpu/{name}", rows, packages=("triton",)))


if __name__ == "__main__":
    main()
