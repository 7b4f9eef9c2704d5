"""A step of reinforcement learning of a tiny language model, simulated over plain: the example, and TRL's trainer."""

from __future__ import annotations

import sys
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from time import process_time

import torch

from bench.native import WAYS, within
from bench.timing import interleaved, record
from roundoff.simulate import Policy

sys.path.insert(0, str(Path(__file__).parents[1] / "examples" / "reasoning"))

FORMAT = "bf16"
ARITHMETICS = {"every result": Policy(FORMAT), "engine": Policy.engine(FORMAT)}


def step(width: int):
    """A rollout of 256 answers and a step along the policy gradient, of the example's transformer of two layers."""
    from train import learn, questions, rollout, taught  # noqa: PLC0415  the examples are no package

    torch.manual_seed(0)
    model = taught(width, 2, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    prompts = questions(32)[0].repeat_interleave(8, 0)
    advantages = torch.randn(len(prompts))

    def run():
        learn(model, optimizer, prompts, rollout(model, prompts), advantages, "token-truncate")

    return run


def trainer(width: int):
    """A run of six steps of TRL's GRPOTrainer, from the construction of its model on."""
    from grpo import train  # noqa: PLC0415  needs TRL

    return partial(train, steps=6, hidden=width)


def main() -> None:
    """Prints and records the ratios."""
    cases = [(f"the example's step, {width} units", step, width, 5, 0.3) for width in (64, 256)]
    if find_spec("trl"):
        cases += [(f"six steps of TRL's GRPOTrainer, {width} units", trainer, width, 2, 0.1) for width in (64, 256)]
    rows = []
    for what, make, width, rounds, seconds in cases:
        contestants = {"plain": within(None, make(width))}
        for arithmetic, policy in ARITHMETICS.items():
            ways = {f"{arithmetic}, {name}": asked for name, asked in WAYS.items() if asked}
            contestants |= {name: within(asked, make(width), policy) for name, asked in ways.items()}
        taken = interleaved(contestants, rounds=rounds, seconds=seconds, clock=process_time)
        rows += [
            {"what": what, "way": name, "milliseconds": 1e3 * used, "slowdown": used / taken["plain"]}
            for name, used in taken.items()
        ]
        print(what, {name: f"{1e3 * used:.1f} ms, {used / taken['plain']:.2f}" for name, used in taken.items()})
    record("language", rows)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
