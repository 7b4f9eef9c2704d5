"""One DQN update: ours in float32 and in simulated half precision, eager and compiled, beside Stable-Baselines3's.

In CPU time on one thread, from the draw of a batch to the end of the update, with a scalar and a categorical head.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import gymnasium
import torch
from stable_baselines3 import DQN as SB3DQN
from stable_baselines3.common.logger import configure

from bench.timing import interleaved, record
from roundoff.agents.algorithms.dqn.agent import DQN
from roundoff.agents.config.train_config import TrainConfig
from roundoff.agents.experience.replay import Replay
from roundoff.agents.programs.compiled import CompiledUpdates
from roundoff.formats import round

if TYPE_CHECKING:
    from collections.abc import Callable

VECTOR, PLANES = (4,), (4, 10, 10)  # CartPole, MinAtar's Breakout
STORED = 4096
LAYERS = {VECTOR: 2, PLANES: 1}
UNITS = {VECTOR: 256, PLANES: 128}
ACTIONS = {VECTOR: 2, PLANES: 3}


def updates(
    shape: tuple[int, ...], format: str, batch: int, *, compiled: bool = False, **settings
) -> Callable[[], object]:
    """A function that draws a batch and does one update of an agent of this format."""
    keys = {"hidden_units": UNITS[shape], "hidden_layers": LAYERS[shape], "batch_size": batch, **settings}
    agent = DQN(shape, ACTIONS[shape], TrainConfig(algorithm="dqn", format=format, **keys), torch.device("cpu"))
    size, actions = agent.observation_size, agent.action_size
    planes = len(shape) > 1
    replay = Replay(STORED, size, actions, dtype=agent.dtype, device=torch.device("cpu"), planes=planes)
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(STORED, 2 * size + actions + 2, generator=generator)
    rows = (rows > 0).float() if planes else rows
    rows[:, size : size + actions] = torch.eye(actions)[torch.randint(actions, (STORED,), generator=generator)]
    rows[:, -1] = 1.0
    for row in round(rows.to(agent.dtype), format):
        replay.add(row)
    if compiled:
        agent.compiled = CompiledUpdates(agent)
        assert agent.compiled.reason is None, agent.compiled.reason
    return lambda: agent.update(replay.sample(batch, generator))


def stable_baselines(batch: int) -> Callable[[], object]:
    """A function that does one update of Stable-Baselines3's DQN of the same size on CartPole."""
    options = {"policy_kwargs": {"net_arch": [UNITS[VECTOR]] * LAYERS[VECTOR]}, "device": "cpu", "seed": 0}
    model = SB3DQN("MlpPolicy", gymnasium.make("CartPole-v1"), batch_size=batch, learning_starts=STORED, **options)
    model.learn(STORED)
    model.set_logger(configure(None, []))
    return lambda: model.train(gradient_steps=1, batch_size=batch)


def main() -> None:
    """Prints and records the ratios."""
    rows, ratios = [], []
    for shape, atoms in ((VECTOR, 1), (PLANES, 1), (PLANES, 51)):
        per_sample = {}
        for batch in (32, 512):
            settings = {"atoms": atoms}
            contestants = {
                "fp32, no fixes": updates(shape, "fp32", batch, fixes="none", **settings),
                "fp32": updates(shape, "fp32", batch, **settings),
                "simulated e5m10": updates(shape, "e5m10", batch, **settings),
                "compiled e5m10": updates(shape, "e5m10", batch, compiled=True, **settings),
            }
            if shape == VECTOR:
                contestants["Stable-Baselines3"] = stable_baselines(batch)
            seconds = interleaved(contestants, rounds=5, seconds=0.2, clock=time.process_time)
            over = {name: value / seconds["fp32"] for name, value in seconds.items() if name != "fp32"}
            per_sample[batch] = seconds["fp32"] / batch
            print(f"DQN update, {shape}, atoms {atoms}, batch {batch}: fp32 {seconds['fp32'] * 1e3:.2f} ms;", over)
            rows.append({"shape": shape, "atoms": atoms, "batch": batch, "seconds": seconds, "over_fp32": over})
        ratio = per_sample[512] / per_sample[32]
        print(f"time per sample, batch 512 over batch 32: {ratio:.2f}")
        ratios.append({"shape": shape, "atoms": atoms, "per_sample_512_over_32": ratio})
    print("written to", record("q_learning", rows + ratios, packages=("stable_baselines3",)))


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
