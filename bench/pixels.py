"""One update from pixels with all six fixes: plain float32 against simulated e5m10, one thread."""

from __future__ import annotations

import torch

from bench.timing import interleaved, record
from roundoff.agents.algorithms.drq.agent import DrQ
from roundoff.agents.config.train_config import TrainConfig
from roundoff.agents.experience.frame_replay import FrameReplay
from roundoff.formats import round

SIZES = ((48, 8, 64, 32), (84, 32, 256, 32))  # image, filters, hidden units, batch
ACTION = 6  # cheetah_run


def updates(format: str, size: int, filters: int, units: int, batch: int, **settings):
    """A function that does one update of an agent of this format, on one fixed batch; every second one the actor's."""
    cpu = torch.device("cpu")
    config = TrainConfig(
        observations="pixels", format=format, image_size=size, filters=filters, hidden_units=units, batch_size=batch,
        lr=1e-3, tau=0.01, actor_update_every=2, log_sigma_min=-10.0, sigma_eps=1e-4, kahan_momentum_scale=100.0,
        **settings,
    )  # fmt: skip
    agent = DrQ(ACTION, config, cpu)
    replay = FrameReplay(
        batch + 1, (3, size, size), stack=config.frames, row_size=ACTION + 2, dtype=agent.dtype, device=cpu
    )
    generator = torch.Generator().manual_seed(0)

    def image():
        return torch.randint(256, (3, size, size), generator=generator, dtype=torch.uint8)

    replay.begin(image())
    for _ in range(batch):
        row = torch.randn(ACTION + 2, generator=generator).clamp(-1, 1)
        row[-1] = 1.0
        replay.add(round(row, format).to(agent.dtype), image())
    sample = replay.sample(batch, generator)

    def two_updates():
        agent.update(sample)
        agent.update(sample)

    return two_updates


def main() -> None:
    """Prints and records the ratios."""
    rows = []
    for size, filters, units, batch in SIZES:
        pairs = interleaved(
            {name: updates(name, size, filters, units, batch) for name in ("fp32", "e5m10")}, rounds=5, seconds=0.1
        )
        seconds = {name: pair / 2 for name, pair in pairs.items()}
        ratio = seconds["e5m10"] / seconds["fp32"]
        print(
            f"DrQ update, {size} x {size} pixels, {filters} filters, {units} units, batch {batch}:"
            f" fp32 {seconds['fp32'] * 1e3:.0f} ms, simulated e5m10 {seconds['e5m10'] * 1e3:.0f} ms, ratio {ratio:.2f}"
        )
        rows.append({
            "image": size, "filters": filters, "units": units, "batch": batch, "seconds": seconds,
            "simulated_over_plain": ratio,
        })  # fmt: skip
    print("written to", record("pixels", rows))


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
