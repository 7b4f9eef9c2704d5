"""One update of algorithms of other libraries, alone and simulated: CPU time, one thread, the libraries' own sizes.

Adam's eps is 1e-4, since its default is 0 in e5m10, and NaN would end most of them. Those of libraries that are not
installed are left out.
"""

from __future__ import annotations

import time
from contextlib import nullcontext
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import torch

from bench.timing import interleaved, record
from roundoff.agents.adapters.evaluation import make_model
from roundoff.agents.adapters.world import open_world
from roundoff.agents.algorithms.arithmetic import simulation_of
from roundoff.agents.config.train_config import TrainConfig
from roundoff.agents.run.profile import Stopwatch

if TYPE_CHECKING:
    from collections.abc import Callable

EPS = {"optimizer_kwargs": {"eps": 1e-4}}
ROLLOUT = {"policy_kwargs": EPS, "n_steps": 128}
REPLAY = {"policy_kwargs": EPS, "learning_starts": 300}
TIANSHOU = {**EPS, "hidden_sizes": [128, 128], "learning_starts": 300, "batch_size": 64, "target_update_freq": 100}
CARTPOLE, PENDULUM = "gym:CartPole-v1", "gym:Pendulum-v1"
UPDATES: dict[str, tuple[str, dict[str, Any]]] = {
    "sb3:A2C": (CARTPOLE, {"policy_kwargs": EPS}),
    "sb3:PPO": (CARTPOLE, {**ROLLOUT, "n_epochs": 1}),
    "sb3:DQN": (CARTPOLE, REPLAY),
    "sb3:QRDQN": (CARTPOLE, REPLAY),
    "sb3:DDPG": (PENDULUM, REPLAY),
    "sb3:TD3": (PENDULUM, REPLAY),
    "sb3:SAC": (PENDULUM, REPLAY),
    "sb3:TQC": (PENDULUM, REPLAY),
    "sb3:CrossQ": (PENDULUM, REPLAY),
    **{f"tianshou:{name}": (CARTPOLE, TIANSHOU) for name in ("C51", "DQN", "IQN", "QRDQN", "Rainbow")},
}
PACKAGES = ("stable-baselines3", "sb3-contrib", "tianshou", "gymnasium")


def update(algorithm: str, format: str) -> Callable[[], object]:
    """A function that does the update that comes after some experience, again and again."""
    task, options = UPDATES[algorithm]
    config = TrainConfig(algorithm=algorithm, task=task, options=options, format=format)
    nothing = (lambda _: None, lambda _reward, _last: None, Stopwatch())
    torch.manual_seed(0)
    model = make_model(config, lambda number: open_world(config, number, *nothing))
    simulation = simulation_of(config) or nullcontext()
    with simulation:
        model.learn(320)
    step = _of_tianshou(model) if algorithm.startswith("tianshou") else _of_sb3(model._model)

    def again() -> object:
        with simulation:
            return step()

    return again


def _of_sb3(model) -> Callable[[], object]:
    """An update from a batch, or from a whole rollout."""
    if hasattr(model, "rollout_buffer"):
        return model.train
    return lambda: model.train(gradient_steps=1, batch_size=model.batch_size)


def _of_tianshou(model) -> Callable[[], object]:
    from tianshou.algorithm.algorithm_base import policy_within_training_step  # noqa: PLC0415

    def step() -> object:
        with policy_within_training_step(model._policy):
            return model._algorithm.update(buffer=model._collector.buffer, sample_size=TIANSHOU["batch_size"])

    return step


def main() -> None:
    """Measures all of them."""
    rows = []
    for algorithm in UPDATES:
        package = "tianshou" if algorithm.startswith("tianshou") else "sb3_contrib"
        if find_spec(package) is None:
            continue
        contestants = {name: update(algorithm, name) for name in ("fp32", "e5m10")}
        seconds = interleaved(contestants, rounds=7, seconds=0.3, clock=time.process_time)
        ratio = seconds["e5m10"] / seconds["fp32"]
        rows.append({"algorithm": algorithm, "seconds": seconds, "over_fp32": ratio})
        print(f"{algorithm:<18} {1e3 * seconds['fp32']:8.2f} ms  x {ratio:.2f}", flush=True)
    print("written to", record("adapters", rows, packages=PACKAGES))


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
