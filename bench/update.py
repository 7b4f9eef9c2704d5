"""One SAC update: a textbook SAC, and ours in float32, in simulated half precision and in native half precision.

Two sizes; those of the paper's Tables 10 and 11 are measured on a GPU, by :mod:`bench.gpu`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from bench.reference_sac import ReferenceSAC
from bench.timing import interleaved, record
from roundoff.agents.algorithms.sac.agent import SAC
from roundoff.agents.config.train_config import TrainConfig
from roundoff.agents.experience.replay import Replay
from roundoff.formats import round

if TYPE_CHECKING:
    from collections.abc import Callable

OBSERVATION, ACTION = 17, 6  # cheetah_run

NAIVE = {"fixes": "none"}
AGENTS = {  # name: format and settings
    "fp32, no fixes": ("fp32", NAIVE),
    "fp32": ("fp32", {}),
    "simulated e5m10": ("e5m10", {}),
    "native fp16": ("e5m10", {"native": True}),
    "native bf16": ("e8m7", {"native": True}),
}


def updates(format: str, units: int, batch: int, device: str = "cpu", **settings) -> Callable[[], object]:
    """A function that does one update of an agent of this format, on one fixed batch."""
    config = TrainConfig(task="cheetah_run", format=format, hidden_units=units, batch_size=batch, **settings)
    agent = SAC(OBSERVATION, ACTION, config, torch.device(device))
    replay = Replay(batch, OBSERVATION, ACTION, dtype=agent.dtype, device=torch.device(device))
    replay.rows.copy_(round(transitions(batch), format))
    replay.added = batch
    sample = replay.sample(batch, torch.Generator(device).manual_seed(0))
    return lambda: agent.update(sample)


def reference(units: int, batch: int, device: str = "cpu") -> Callable[[], object]:
    """A function that does one update of the textbook SAC."""
    torch.manual_seed(0)
    agent = ReferenceSAC(OBSERVATION, ACTION, units).to(device)
    sizes = (OBSERVATION, ACTION, OBSERVATION, 1, 1)
    observations, actions, following, rewards, discounts = transitions(batch).to(device).split(sizes, dim=1)
    return lambda: agent.update(observations, actions, rewards, following, discounts)


def transitions(count: int) -> torch.Tensor:
    """Rows as :class:`Replay` holds them."""
    rows = torch.randn(count, 2 * OBSERVATION + ACTION + 2, generator=torch.Generator().manual_seed(0)).clamp(-1, 1)
    rows[:, -1] = 1.0
    return rows


def on_cpu() -> list[dict[str, object]]:
    """Interleaved on one thread; native half precision in small only, where it does not take minutes."""
    rows = []
    for units, batch in ((128, 128), (1024, 1024)):
        small = units < 1000
        contestants = {"reference": reference(units, batch)}
        for name, (format, settings) in AGENTS.items():
            if small or not settings.get("native"):
                contestants[name] = updates(format, units, batch, **settings)
        seconds = interleaved(contestants, rounds=9 if small else 5, seconds=0.3 if small else 0.1)
        rows.append(_row("cpu", units, batch, seconds))
    return rows


def _row(device: str, units: int, batch: int, seconds: dict[str, float]) -> dict[str, object]:
    over = {name: value / seconds["fp32"] for name, value in seconds.items() if name != "fp32"}
    print(f"SAC update on {device}, {units} units, batch {batch}: fp32 {seconds['fp32'] * 1e3:.2f} ms;", end=" ")
    print(", ".join(f"{name} {value:.2f} x" for name, value in over.items()))
    row = {"device": device, "units": units, "batch": batch, "seconds": seconds, "over_fp32": over}
    return row | {"fp32_over_reference": seconds["fp32"] / seconds["reference"]}


def main() -> None:
    """Prints and records the ratios."""
    rows = on_cpu()
    print("written to", record("update", rows))


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
