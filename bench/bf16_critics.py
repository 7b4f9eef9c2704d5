"""What a critic learns that is trained in bfloat16: docs/figures/bf16-critics.csv. Needs PyTorch, and no roundoff.

``python bench/bf16_critics.py`` takes some fifteen minutes on one core. The reward is 1 at every step, so that
1 / (1 - discount) is the right value everywhere. The critic is trained under PyTorch's own autocast, as in libraries.
"""

from __future__ import annotations

import csv
from pathlib import Path

import torch

TABLE = Path(__file__).parents[1] / "docs" / "figures" / "bf16-critics.csv"
STEPS = {0.9: 3000, 0.99: 6000, 0.997: 15000}  # by discount
LAST, BATCH = 500, 64
ONE = torch.ones(BATCH, 1)  # the reward; and that no episode ends
TARGETS = {
    "float32": lambda discount, v: ONE + discount * v,
    "reward + discount * v": lambda discount, v: ONE + discount * v,
    "reward + discount * v * not_done": lambda discount, v: ONE + discount * v * ONE,
    "reward + discount * not_done * v": lambda discount, v: ONE + discount * ONE * v,
    "reward + discount * v.float()": lambda discount, v: ONE + discount * v.float(),
}
"""How targets are computed, all but the first under autocast to bfloat16: ``v`` is what the critic gives there."""


def learned(discount: float, target: str, seed: int) -> float:
    """The mean value that a critic has learned, over the last steps."""
    torch.manual_seed(seed)
    critic = torch.nn.Sequential(torch.nn.Linear(2, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))
    optimizer = torch.optim.Adam(critic.parameters(), lr=3e-3, eps=1e-4)
    total = 0.0
    for step in range(STEPS[discount]):
        now, following = torch.randn(2, BATCH, 2)
        with torch.autocast("cpu", torch.bfloat16, enabled=target != "float32"):
            with torch.no_grad():
                wanted = TARGETS[target](discount, critic(following))
            value = critic(now)
        loss = torch.nn.functional.mse_loss(value.float(), wanted.float())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += value.mean().item() * (step >= STEPS[discount] - LAST)
    return total / LAST


def main() -> None:
    """Measures, and writes the table, a row at a time."""
    torch.set_num_threads(1)
    with TABLE.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["discount", "target", "seed", "value"])
        for seed in range(5):
            for discount in STEPS:
                for target in TARGETS:
                    writer.writerow([discount, target, seed, round(learned(discount, target, seed), 2)])
                    file.flush()


if __name__ == "__main__":
    main()
