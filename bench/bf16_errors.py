"""A bfloat16 critic's error in bfloat16 and in float32: docs/figures/bf16-errors.csv. Needs PyTorch, and no roundoff.

``python bench/bf16_errors.py`` takes some ten minutes on one core. In each state one of two actions earns a reward of
1, the other 0; the next state is random. With a discount of 0.997 values end at 333, where bfloat16 has a spacing of 2,
and the two actions differ by 1. The networks run under PyTorch's own autocast; weights and Adam are in float32.
"""

from __future__ import annotations

import csv
from pathlib import Path

import torch

TABLE = Path(__file__).parents[1] / "docs" / "figures" / "bf16-errors.csv"
DISCOUNT, STEPS, BATCH, EVERY = 0.997, 12000, 64, 1000
ERRORS = {
    "float32": lambda q, y: q - y,
    "q - y in bfloat16": lambda q, y: q - y.bfloat16(),
    "q.float() - y": lambda q, y: q.float() - y,
}
"""How errors are computed; the networks are in bfloat16 in all but the first."""


def curve(error: str, seed: int) -> list[tuple[int, float, float]]:
    """Trains a critic, and returns at intervals: step, mean value, and the share of states whose action is right.

    Actions are compared with the float32 weights, without autocast: what the critic knows, and not what it outputs.
    """
    torch.manual_seed(seed)
    critic = torch.nn.Sequential(torch.nn.Linear(2, 64), torch.nn.ReLU(), torch.nn.Linear(64, 2))
    optimizer = torch.optim.Adam(critic.parameters(), lr=1e-3)
    tests, found = torch.rand(2000, 2), []
    for step in range(1, STEPS + 1):
        now, following, actions = torch.rand(BATCH, 2), torch.rand(BATCH, 2), torch.randint(2, (BATCH, 1))
        reward = (actions[:, 0] == best(now)).float()
        with torch.autocast("cpu", torch.bfloat16, enabled=error != "float32"):
            with torch.no_grad():
                y = reward + DISCOUNT * critic(following).float().amax(1)
            q = critic(now).gather(1, actions)[:, 0]
        loss = ERRORS[error](q, y).float().square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % EVERY == 0:
            with torch.no_grad():
                values = critic(tests)
            found.append((step, values.amax(1).mean().item(), (values.argmax(1) == best(tests)).float().mean().item()))
    return found


def best(states: torch.Tensor) -> torch.Tensor:
    """The action that earns a reward in each state."""
    return (states[:, 0] > states[:, 1]).long()


def main() -> None:
    """Measures, and writes the table, a run at a time."""
    torch.set_num_threads(1)
    with TABLE.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["error", "seed", "step", "value", "right"])
        for seed in range(6):
            for error in ERRORS:
                for step, value, right in curve(error, seed):
                    writer.writerow([error, seed, step, round(value, 2), round(right, 4)])
                file.flush()


if __name__ == "__main__":
    main()
