"""Environment steps a second: our sampler beside Gymnasium's vector environments, by environments a core.

Every contestant does the same: one call of a policy of two layers of 256 units for all environments that wait, then one
step of each; or, without a policy, actions that are there already. Only the way from actions to observations differs.
Gymnasium's steps its own environment where the task is one; else ours, which costs it nothing but a call.
"""

from __future__ import annotations

import os
import statistics
import time
from contextlib import ExitStack
from functools import partial
from importlib.util import find_spec
from itertools import pairwise
from typing import Any

import gymnasium
import numpy as np
import torch

from bench.timing import record
from roundoff.agents.environments.opening import open_environment
from roundoff.agents.environments.parallel import VectorEnvironment
from roundoff.agents.environments.tasks import PACKAGES, Task, TaskKind
from roundoff.agents.experience.sampling import LocalSampler

TASKS = ("gym:CartPole-v1", "walker_walk", "minatar:breakout")
A_CORE = (1, 2, 4, 16)
ROUNDS, SECONDS = 3, 0.25
UNITS = 256
# Table 3 of the paper: samples a second of 64 and of 512 simulators, that is 2 and 16 a core, on 32 cores and 8 GPUs.
PUBLISHED = {"sync": 35.8 / 29.6, "async": 38.4 / 31.9}


class Wrapped(gymnasium.Env[Any, Any]):
    """An environment of ours as one of Gymnasium's."""

    def __init__(self, task: str) -> None:
        self.inner = open_environment(task, 1)
        size = self.inner.action_size
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (self.inner.observation_size,), np.float64)
        box = gymnasium.spaces.Box(-1, 1, (size,), np.float64)
        self.action_space = gymnasium.spaces.Discrete(size) if self.inner.discrete else box
        self._rows = np.eye(size)

    def reset(self, *, seed=None, options=None):  # noqa: ARG002
        if seed is not None:
            self.inner.seed(np.random.SeedSequence(seed))
        return self.inner.reset().ravel(), {}

    def step(self, action):
        step = self.inner.step(self._rows[action] if self.inner.discrete else action)
        return step.observation.ravel(), step.reward, step.discount == 0, step.last and step.discount == 1, {}


def theirs(task: str) -> gymnasium.Env[Any, Any]:
    """The environment that Gymnasium steps."""
    if Task.parse(task).kind is TaskKind.GYMNASIUM:
        return gymnasium.make(task.removeprefix(TaskKind.GYMNASIUM), disable_env_checker=True)
    return Wrapped(task)


class Policy:
    """Actions for observations, as rows of numbers; as costly as an agent's."""

    def __init__(self, observation: int, action: int) -> None:
        generator = torch.Generator().manual_seed(0)
        sizes = (observation, UNITS, UNITS, action)
        self.layers = [torch.randn(a, b, generator=generator) / a**0.5 for a, b in pairwise(sizes)]

    def __call__(self, observations):
        x = torch.from_numpy(observations).float()
        for layer in self.layers[:-1]:
            x = (x @ layer).relu()
        return (x @ self.layers[-1]).tanh().numpy()


def ours(task: str, count: int, workers: int, groups: int, stack: ExitStack):
    """A function that takes a step in each of our environments, with a policy or without one."""
    sizes = [count // groups] * groups
    environments = stack.enter_context(
        VectorEnvironment({"task": task, "action_repeat": 1}, sizes, [True] * groups, workers=workers)
    )
    policy = Policy(environments.observation_size, environments.action_size)
    for i, group in enumerate(environments.groups):
        group.seed([np.random.SeedSequence((i, j)) for j in range(len(group))])
    sampling = LocalSampler(environments.groups)
    observations = sampling.begin()
    still = np.eye(environments.action_size)[[0] * sizes[0]]

    def step(*, acting: bool) -> None:
        for _ in range(groups):
            sample = sampling.act(policy(observations[sampling.turn]) if acting else still)
            if sample:
                observations[sample.group] = sample.steps.observations

    return step


def gymnasium_vector(kind: type[Any], task: str, count: int, stack: ExitStack):
    """A step of Gymnasium's: in one process, or in one for each environment, with shared memory for observations."""
    vector = kind([partial(theirs, task)] * count)
    stack.callback(vector.close)
    space = vector.single_action_space
    discrete = isinstance(space, gymnasium.spaces.Discrete)
    policy = Policy(vector.single_observation_space.shape[0], int(space.n) if discrete else space.shape[0])
    observations, _ = vector.reset(seed=list(range(count)))
    still = np.zeros(count, dtype=np.int64) if discrete else np.zeros((count, *space.shape))

    def step(*, acting: bool) -> None:
        nonlocal observations
        actions = still
        if acting:
            wanted = policy(observations)
            actions = wanted.argmax(1) if discrete else wanted
        observations, *_ = vector.step(actions)

    return step


def measure(task: str, a_core: int) -> list[dict[str, Any]]:
    """Steps a second of each contestant, in turns, and ratios within the same round; without a policy and with one."""
    cores = len(os.sched_getaffinity(0))
    count = a_core * cores
    with ExitStack() as stack:
        contestants = {
            # First: it forks, and inherits what there is.
            "gymnasium_async": gymnasium_vector(gymnasium.vector.AsyncVectorEnv, task, count, stack),
            "gymnasium_sync": gymnasium_vector(gymnasium.vector.SyncVectorEnv, task, count, stack),
            "one_process": ours(task, count, 0, 1, stack),
            "workers_alternating": ours(task, count, cores, 2, stack),
        }
        return [compared(contestants, task, a_core, count, acting=acting) for acting in (False, True)]


def compared(contestants: dict[str, Any], task: str, a_core: int, count: int, *, acting: bool) -> dict[str, Any]:
    """One row."""
    rates: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(ROUNDS):
        for name, step in contestants.items():
            step(acting=acting)
            start, taken = time.perf_counter(), 0
            while time.perf_counter() - start < SECONDS:
                step(acting=acting)
                taken += count
            rates[name].append(taken / (time.perf_counter() - start))

    def ratio(a: str, b: str) -> float:
        return statistics.median(x / y for x, y in zip(rates[a], rates[b], strict=True))

    return {
        "task": task,
        "a_core": a_core,
        "policy": acting,
        "load": round(os.getloadavg()[0], 1),
        **{name: statistics.median(values) for name, values in rates.items()},
        "one_process_over_sync": ratio("one_process", "gymnasium_sync"),
        "alternating_over_async": ratio("workers_alternating", "gymnasium_async"),
    }


def main() -> None:
    """Prints and records the ratios."""
    rows: list[dict[str, Any]] = []
    gains: list[dict[str, Any]] = []
    for task in TASKS:
        if find_spec(PACKAGES[Task.parse(task).kind]) is None:
            print(f"{task}: left out, {PACKAGES[Task.parse(task).kind]} is not installed")
            continue
        for a_core in A_CORE:
            for row in measure(task, a_core):
                print(*(f"{name} {value:.3g}" if isinstance(value, float) else value for name, value in row.items()))
                rows.append(row)
        few, many = (
            next(row for row in rows if (row["task"], row["a_core"], row["policy"]) == (task, n, True)) for n in (2, 16)
        )
        gained = {name: many[name] / few[name] for name in ("one_process", "workers_alternating", "gymnasium_async")}
        gains.append({"of_16_a_core_over_2": task, **gained, **{f"paper_{k}": v for k, v in PUBLISHED.items()}})
    print("written to", record("sampling", rows + gains))


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
