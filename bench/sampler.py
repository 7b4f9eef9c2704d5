"""Environment steps per second: the vectorised sampler against one process and against Gymnasium's AsyncVectorEnv.

Every contestant does the same: a policy of two layers of 256 units, one call for all the environments that wait, then
one step of each. Only the way from actions to observations differs. Two of them look at the stepping alone.
"""

from __future__ import annotations

import os
import statistics
import time
from contextlib import ExitStack
from functools import partial
from itertools import pairwise
from typing import Any

import gymnasium
import numpy as np
import torch

from bench.timing import record
from roundoff.agents.environments.opening import open_environment
from roundoff.agents.environments.parallel import VectorEnvironment
from roundoff.agents.experience.sampling import Sampler

TASKS = ("walker_walk", "gym:Pendulum-v1")
ENVIRONMENTS = 16
ROUNDS, SECONDS = 7, 0.4
UNITS = 256


class Wrapped(gymnasium.Env[Any, Any]):
    """An environment of ours as one of Gymnasium's."""

    def __init__(self, task: str) -> None:
        self.inner = open_environment(task, 1)
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (self.inner.observation_size,), np.float64)
        self.action_space = gymnasium.spaces.Box(-1, 1, (self.inner.action_size,), np.float64)

    def reset(self, *, seed=None, options=None):  # noqa: ARG002
        if seed is not None:
            self.inner.seed(np.random.SeedSequence(seed))
        return self.inner.reset(), {}

    def step(self, action):
        step = self.inner.step(action)
        return step.observation, step.reward, step.discount == 0, step.last and step.discount == 1, {}


class Policy:
    """Actions for observations; as costly as an agent's."""

    def __init__(self, observation: int, action: int) -> None:
        generator = torch.Generator().manual_seed(0)
        sizes = (observation, UNITS, UNITS, action)
        self.layers = [torch.randn(a, b, generator=generator) / a**0.5 for a, b in pairwise(sizes)]

    def __call__(self, observations):
        x = torch.from_numpy(observations).float()
        for layer in self.layers[:-1]:
            x = (x @ layer).relu()
        return (x @ self.layers[-1]).tanh().numpy()


def sampler(task: str, workers: int, groups: int, stack: ExitStack):
    """A function that takes a step in each of our environments."""
    sizes = [ENVIRONMENTS // groups] * groups
    environments = stack.enter_context(
        VectorEnvironment({"task": task, "action_repeat": 1}, sizes, [True] * groups, workers=workers)
    )
    policy = Policy(environments.observation_size, environments.action_size)
    for i, group in enumerate(environments.groups):
        group.seed([np.random.SeedSequence((i, j)) for j in range(len(group))])
    sampling = Sampler(environments.groups)
    observations = sampling.begin()

    def step() -> None:
        for _ in range(groups):
            sample = sampling.act(policy(observations[sampling.turn]))
            if sample:
                observations[sample.group] = sample.steps.observations

    return step


def gymnasium_vector(task: str, stack: ExitStack):
    """Likewise with Gymnasium's: a process per environment, shared memory for observations, pipes for actions."""
    vector = gymnasium.vector.AsyncVectorEnv([partial(Wrapped, task)] * ENVIRONMENTS)
    stack.callback(vector.close)
    policy = Policy(vector.single_observation_space.shape[0], vector.single_action_space.shape[0])
    observations, _ = vector.reset(seed=list(range(ENVIRONMENTS)))

    def step() -> None:
        nonlocal observations
        observations, *_ = vector.step(policy(observations))

    return step


def measure(task: str) -> dict[str, object]:
    """Steps per second of each contestant, in turns, and ratios within the same round."""
    workers = len(os.sched_getaffinity(0))
    with ExitStack() as stack:
        gymnasiums = gymnasium_vector(task, stack)  # first: it forks, and inherits what there is
        contestants = {
            "one_process": sampler(task, 0, 1, stack),
            "workers": sampler(task, workers, 1, stack),
            "workers_alternating": sampler(task, workers, 2, stack),
            "gymnasium_async": gymnasiums,
        }
        rates: dict[str, list[float]] = {name: [] for name in contestants}
        for step in contestants.values():
            for _ in range(20):
                step()
        for _ in range(ROUNDS):
            for name, step in contestants.items():
                start, count = time.perf_counter(), 0
                while time.perf_counter() - start < SECONDS:
                    step()
                    count += ENVIRONMENTS
                rates[name].append(count / (time.perf_counter() - start))
    ours = rates["workers_alternating"]
    ratios = {
        f"alternating_over_{name}": statistics.median(a / b for a, b in zip(ours, rates[name], strict=True))
        for name in ("one_process", "workers", "gymnasium_async")
    }
    return {
        "task": task,
        "environments": ENVIRONMENTS,
        "workers": workers,
        "load_of_the_machine": os.getloadavg()[0],
        "steps_per_second": {name: statistics.median(values) for name, values in rates.items()},
        **ratios,
    }


def main() -> None:
    """Prints and records the ratios."""
    rows = []
    for task in TASKS:
        row = measure(task)
        rates = row["steps_per_second"]
        assert isinstance(rates, dict)
        print(
            f"{task}, {ENVIRONMENTS} environments, {row['workers']} workers: steps a second"
            f" {', '.join(f'{name} {rate:.0f}' for name, rate in rates.items())};"
            f" alternating over one process {row['alternating_over_one_process']:.2f},"
            f" over Gymnasium's {row['alternating_over_gymnasium_async']:.2f}"
        )
        rows.append(row)
    print("written to", record("sampler", rows))


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
