"""Updates of PPO: ours in float32, simulated, and compiled; beside Stable-Baselines3's; by CPU time, on one thread."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch

from bench.timing import interleaved, record
from roundoff.agents.algorithms.ppo.agent import PPO
from roundoff.agents.config.train_config import TrainConfig
from roundoff.agents.experience.on_policy import minibatch_of
from roundoff.agents.programs.compiled import CompiledUpdates

if TYPE_CHECKING:
    from collections.abc import Callable

OBSERVATION, ACTIONS = 4, 2  # gym:CartPole-v1


def updates(format: str, units: int, batch: int, *, compiled: bool = False, **settings: Any) -> Callable[[], object]:
    """A function that does one update of an agent of this format, on one fixed minibatch."""
    sizes: Any = SimpleNamespace(
        observation_size=OBSERVATION, observation_shape=(OBSERVATION,), action_size=ACTIONS, discrete=True
    )
    keys = {"hidden_units": units, "batch_size": batch, "horizon": batch, **settings}
    agent = PPO(sizes, TrainConfig(algorithm="ppo", format=format, **keys), torch.device("cpu"))
    generator = torch.Generator().manual_seed(0)
    actions = torch.eye(ACTIONS)[torch.randint(ACTIONS, (batch,), generator=generator)]
    judged = torch.randint(-4, 5, (batch, 3), generator=generator) / 4
    rows = torch.cat((torch.randint(-8, 9, (batch, OBSERVATION), generator=generator) / 8, actions, judged), dim=1)
    minibatch = minibatch_of(rows, OBSERVATION)
    if compiled:
        agent.compiled = CompiledUpdates(agent)
    return lambda: agent.update(minibatch)


def stable_baselines(units: int, batch: int) -> Callable[[], object]:
    """A function that does one update of Stable-Baselines3's PPO: one epoch over a rollout of one minibatch."""
    import gymnasium  # noqa: PLC0415  extras
    from stable_baselines3 import PPO as Theirs  # noqa: PLC0415  extras
    from stable_baselines3.common.logger import Logger  # noqa: PLC0415  extras

    model = Theirs(
        "MlpPolicy", gymnasium.make("CartPole-v1"), n_steps=batch, batch_size=batch, n_epochs=1, device="cpu", seed=0,
        policy_kwargs={"net_arch": [units, units]},
    )  # fmt: skip
    model.set_logger(Logger(None, []))
    model.learn(batch)
    return model.train


def comparison(units: int, batch: int) -> dict[str, object]:
    """One size, all in turn."""
    contestants = {
        "fp32": updates("fp32", units, batch),
        "fp32, no fixes": updates("fp32", units, batch, fixes="none"),
        "e5m10": updates("e5m10", units, batch),
        "e5m10, no fixes": updates("e5m10", units, batch, fixes="none"),
        "e5m10, compiled": updates("e5m10", units, batch, compiled=True),
        "Stable-Baselines3": stable_baselines(units, batch),
    }
    seconds = interleaved(contestants, rounds=7, seconds=0.15, clock=time.process_time)
    ratios = {
        "e5m10 / fp32": seconds["e5m10"] / seconds["fp32"],
        "e5m10 compiled / fp32": seconds["e5m10, compiled"] / seconds["fp32"],
        "fp32 / Stable-Baselines3": seconds["fp32"] / seconds["Stable-Baselines3"],
        "fp32, no fixes / Stable-Baselines3": seconds["fp32, no fixes"] / seconds["Stable-Baselines3"],
    }
    print(f"PPO update, {units} units, batch {batch}:", ", ".join(f"{k} {v:.2f}" for k, v in ratios.items()))
    return {"what": f"PPO update, 2 x {units} units, batch {batch}", "seconds": seconds, "ratios": ratios}


def main() -> None:
    """Prints and records the ratios."""
    rows = [comparison(*sizes) for sizes in ((64, 64), (64, 512), (256, 512))]
    print("written to", record("policy_gradient", rows, packages=("stable-baselines3",)))


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
