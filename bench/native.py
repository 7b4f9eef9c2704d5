"""Plain operations in C++ and through Python: steps of small networks, in several arithmetics, and one operation."""

from __future__ import annotations

import os
import time
from contextlib import nullcontext
from functools import partial

import torch

from bench.timing import interleaved, record
from bench.update import updates
from roundoff.simulate import Policy, simulate
from roundoff.simulate.native.library import VARIABLE

FORMAT = "e5m10"
WAYS = {"plain": None, "through Python": "0", "in C++": "1"}


OTHERS = {
    "stochastic": Policy(FORMAT, rounding="stochastic"),
    "toward zero": Policy(FORMAT, rounding="toward-zero"),
    "mxfp8_e4m3 everywhere": Policy("mxfp8_e4m3"),
    "mixed precision": Policy.mixed_precision(FORMAT),
    "recipe fp8, rowwise": Policy.fp8("rowwise"),
    "recipe fp8, blockwise": Policy.fp8("blockwise"),
    "recipe mx": Policy.mx(),
    "recipe nvfp4": Policy.nvfp4(),
    "nvfp4 everywhere": Policy("nvfp4"),
    "int8 everywhere": Policy("int8"),
    "int8 by channel (int8_ax0) everywhere": Policy("int8_ax0"),
}


def within(asked: str | None, body, policy: Policy | str = FORMAT):
    """``body`` without a simulation, or in a new one, with or without C++."""
    simulation = nullcontext() if asked is None else simulate(policy)

    def run():
        os.environ[VARIABLE] = asked or ""
        with simulation:
            body()

    return run


def asking(asked: str | None, make):
    """The result of ``make``, which enters a new simulation, with or without C++."""
    os.environ[VARIABLE] = asked or ""  # agents ask once, when they are made
    call = make()

    def run():
        os.environ[VARIABLE] = asked or ""
        call()

    return run


def perceptron(width: int, batch: int):
    """Ten training steps of two hidden layers with Adam, which is neither fused nor on lists."""
    torch.manual_seed(0)
    hidden = (torch.nn.Linear(17, width), torch.nn.ReLU(), torch.nn.Linear(width, width), torch.nn.ReLU())
    net = torch.nn.Sequential(*hidden, torch.nn.Linear(width, 6))
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3, eps=1e-4)
    x, y = torch.randn(batch, 17).half().float(), torch.randn(batch, 6).half().float()

    def steps():
        for _ in range(10):
            optimizer.zero_grad()
            (net(x) - y).square().mean().backward()
            optimizer.step()

    return steps


def operation():
    """A thousand additions of 100 elements."""
    x, y = torch.randn(100), torch.randn(100)

    def run():
        for _ in range(1000):
            x + y

    return run


def main() -> None:
    """Prints and records the ratios."""
    cases = [
        ("addition of 100 elements", operation, 1000),
        ("two layers of 64 units, batch 64, Adam", lambda: perceptron(64, 64), 10),
        ("two layers of 256 units, batch 128, Adam", lambda: perceptron(256, 128), 10),
        ("two layers of 1024 units, batch 128, Adam", lambda: perceptron(1024, 128), 10),
    ]
    measured = [
        (what, {name: within(asked, made()) for name, asked in WAYS.items()}, calls) for what, made, calls in cases
    ]
    for what, policy in OTHERS.items():
        contestants = {name: within(asked, perceptron(64, 64), policy) for name, asked in WAYS.items()}
        measured.append((f"two layers of 64 units: {what}", contestants, 10))
    sac = {name: asking(asked, partial(updates, FORMAT if asked else "fp32", 128, 128)) for name, asked in WAYS.items()}
    rows = []
    for what, contestants, calls in [*measured, ("SAC update, 128 units, batch 128", sac, 1)]:
        taken = interleaved(contestants, rounds=15, seconds=0.1, clock=time.process_time)
        rows += [
            {"what": what, "way": name, "microseconds": seconds / calls * 1e6, "slowdown": seconds / taken["plain"]}
            for name, seconds in taken.items()
        ]
        print(
            what,
            {
                name: f"{seconds / calls * 1e6:.1f} us, {seconds / taken['plain']:.2f}"
                for name, seconds in taken.items()
            },
        )
    record("native", rows)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
