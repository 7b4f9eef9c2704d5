"""One SAC update with all six fixes: plain float32 against simulated e5m10, one thread."""

from __future__ import annotations

import torch

from bench.timing import interleaved, record
from roundoff.agents.config import TrainConfig
from roundoff.agents.replay import Replay
from roundoff.agents.sac import SAC
from roundoff.formats import round

SIZES = ((128, 128), (1024, 1024))  # hidden units, batch
OBSERVATION, ACTION = 17, 6  # cheetah_run


def updates(format: str, units: int, batch: int, **settings):
    """A function that does one update of an agent of this format, on one fixed batch."""
    config = TrainConfig(task="cheetah_run", format=format, hidden_units=units, batch_size=batch, **settings)
    cpu = torch.device("cpu")
    agent = SAC(OBSERVATION, ACTION, config, cpu)
    replay = Replay(batch, OBSERVATION, ACTION, dtype=torch.float32, device=cpu)
    generator = torch.Generator().manual_seed(0)
    for _ in range(batch):
        row = torch.randn(replay.rows.shape[1], generator=generator).clamp(-1, 1)
        row[-1] = 1.0
        replay.add(round(row, format))
    sample = replay.sample(batch, generator)
    return lambda: agent.update(sample)


def main() -> None:
    """Prints and records the ratios."""
    rows = []
    for units, batch in SIZES:
        seconds = interleaved(
            {name: updates(name, units, batch) for name in ("fp32", "e5m10")},
            rounds=7 if units < 1000 else 5,
            seconds=0.5 if units < 1000 else 0.1,
        )
        ratio = seconds["e5m10"] / seconds["fp32"]
        print(
            f"SAC update, {units} units, batch {batch}: fp32 {seconds['fp32'] * 1e3:.2f} ms,"
            f" simulated e5m10 {seconds['e5m10'] * 1e3:.2f} ms, ratio {ratio:.2f}"
        )
        rows.append({"units": units, "batch": batch, "seconds": seconds, "simulated_over_plain": ratio})
    print("written to", record("update", rows))
