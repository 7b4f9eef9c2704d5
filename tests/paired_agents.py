"""Statement 1 on agents: random problems, the same updates with and without fixes, and how far the two come apart."""

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import strategies as st

from roundoff.agents import TrainConfig
from roundoff.agents.algorithms.d4pg.agent import D4PG
from roundoff.agents.algorithms.sac.agent import SAC
from roundoff.agents.config.train_config import config_of
from roundoff.agents.experience.replay import Replay
from roundoff.formats import Format, round

AGENTS = {"sac": SAC, "d4pg": D4PG}
THE_SIX = ("hadam", "softplus_fix", "normal_fix", "kahan_momentum", "compound_loss_scaling", "kahan_gradients")
CPU = torch.device("cpu")

# By the bits of a number: sets would mostly be of one fix.
subsets = st.integers(1, 63).map(lambda bits: tuple(name for k, name in enumerate(THE_SIX) if bits >> k & 1))


@dataclass(frozen=True)
class Problem:
    """Sizes, hyper-parameters and a seed: of initial weights, of batches, and of the noise; and who learns."""

    observation: int
    action: int
    keys: tuple[tuple[str, Any], ...]
    algorithm: str = "sac"

    def config(self, format, fixes, **other):
        own = {name: value for name, value in self.keys if name in config_of(self.algorithm).model_fields}
        return TrainConfig(algorithm=self.algorithm, format=format, fixes=list(fixes) or "none", **own | other)


def _log_uniform(low, high):
    return st.floats(np.log10(low), np.log10(high)).map(lambda x: float(10.0**x))


@st.composite
def problems(draw, largest_rate=1e-3, smallest_eps=1e-8, algorithm="sac"):
    """Any hyper-parameters for which Statement 1 says what it says; those that ``algorithm`` has count.

    K = 40, since the statement holds up to exp(-K), which is 4e-18 then; log sigma reaches 3, so that -2u often
    exceeds K and softplus is linear. Loss scales are powers of two; a growth interval of 3 makes them grow on the way.
    """
    keys = {
        "hidden_units": draw(st.integers(2, 16)),
        "hidden_layers": draw(st.integers(1, 3)),
        "batch_size": draw(st.integers(1, 16)),
        "lr": draw(_log_uniform(1e-5, largest_rate)),
        "adam_eps": draw(_log_uniform(smallest_eps, 0.1)),
        "adam_beta1": draw(st.one_of(st.just(0.0), st.floats(2.0**-20, 0.95))),  # smaller, moments would be subnormal
        "adam_beta2": draw(st.floats(0.9, 0.9999)),
        "tau": draw(_log_uniform(1e-3, 0.1)),
        "discount": draw(st.floats(0.5, 1)),
        "initial_temperature": draw(_log_uniform(0.01, 0.5)),
        "target_update_every": draw(st.integers(1, 2)),
        "actor_update_every": draw(st.integers(1, 2)),
        "log_sigma_min": -5.0,
        "log_sigma_max": draw(st.floats(-1, 3)),
        "softplus_threshold": 40.0,
        "kahan_momentum_scale": draw(st.sampled_from([1.0, 2.0**13, 1e4])),
        "initial_loss_scale": 2.0 ** draw(st.integers(0, 15)),
        "loss_scale_growth_interval": draw(st.sampled_from([3, 10_000])),
        "seed": draw(st.integers(0, 10**6)),
    }
    if algorithm == "d4pg":
        atoms = draw(st.sampled_from([1, 2, 11, 51]))
        keys |= {"atoms": atoms, "n_steps": draw(st.integers(1, 4)), "target_every": 1}
        keys |= {"v_max": 150.0} if atoms > 1 else {}
    return Problem(draw(st.integers(1, 5)), draw(st.integers(1, 3)), tuple(keys.items()), algorithm)


@cache
def states(problem, format, fixes, after, seed=0, granularity="kernel", rewards=1.0):
    """What the agent holds after each of these numbers of updates: weights, first moments, roots of the second.

    Rewards are multiplied by ``rewards``. Moments are divided by the loss scale, and the root is taken of Adam's
    second: the proof's induction is about these.
    """
    keys = dict(problem.keys)
    policy = {"policy": {"granularity": granularity}} if granularity != "kernel" else {}
    config = problem.config(format, fixes, seed=keys["seed"] + seed, **policy)
    agent = AGENTS[problem.algorithm](problem.observation, problem.action, config, CPU)
    replay = Replay(1, problem.observation, problem.action, dtype=Format.parse(format).carrier, device=CPU)
    generator = torch.Generator().manual_seed(keys["seed"] + seed)
    found = []
    for update in range(1, max(after) + 1):
        rows = torch.randn(keys["batch_size"], replay.rows.shape[1], generator=generator, dtype=torch.float64)
        rows[:, problem.observation : problem.observation + problem.action].tanh_()
        rows[:, -1] = (torch.rand(len(rows), generator=generator) > 0.2).double()
        rows[:, -2] *= rewards
        agent.update(replay.as_batch(round(rows.to(replay.rows.dtype), format)))
        if update in after:
            found.append(_state(agent))
    return found


def _state(agent):
    moments, roots = [], []
    for optimizer in agent.optimizers.values():
        for state in optimizer.optimizer.state.values():
            # Kept as float64 and divided outside of the simulation: by powers of two, and a root like any other.
            second = state["second"].double()
            root = second if type(optimizer.optimizer).__name__ == "HAdam" else second.sqrt()
            moments.append(state["moment"].double().flatten() / optimizer.scale)
            roots.append(root.flatten() / optimizer.scale)
    weights = torch.cat([value.double().flatten() for value in agent.weights().values()])
    return weights, torch.cat(moments), torch.cat(roots)


def differences(problem, format, fixes, after, seeds=1, granularity="kernel"):
    """How far agents with and without fixes are apart after each number of updates, relative to what they hold.

    The largest of three: of all weights, of all first moments and of all roots of second moments, each the norm of
    the difference over the norm. Then the median over ``seeds`` repetitions with other weights and data: the minimum of
    the critics and each ReLU has a kink, where one ulp changes a gradient by its whole. With few bits that happens, to
    one seed in a hundred or so, and is no business of the fixes.
    """
    rows = []
    for seed in range(seeds):
        plain = states(problem, format, (), after, seed, granularity)
        fixed = states(problem, format, fixes, after, seed, granularity)
        rows.append(
            [max(_distance(a, b) for a, b in zip(p, f, strict=True)) for p, f in zip(plain, fixed, strict=True)]
        )
    return np.median(rows, axis=0)


def _distance(plain, fixed):
    norm = float(plain.norm())
    assert np.isfinite(norm)
    assert norm > 0
    return float((plain - fixed).norm()) / norm


def slopes(widths, table):
    """The fitted slope of log2(difference) against the significand width, for each column of (widths, columns).

    Of a difference that only a few elements make, chance decides whether it is zero at a width: less than a sixteenth
    of 2^-m counts as that much.
    """
    least = np.exp2(-np.array(widths, dtype=float) - 4)[:, None]
    logarithms = np.log2(np.maximum(np.asarray(table), least))
    return [float(np.polyfit(widths, column, 1)[0]) for column in logarithms.T]


def check_same_in_float64(problem, fixes):
    """The fixes change nothing in exact arithmetic: after one update and after ten, agents differ by rounding."""
    one, ten = differences(problem, "fp64", fixes, (1, 10))
    assert one < 2**-49
    assert ten < 2**-48


def check_halving(problem, fixes):
    """The difference that the fixes make halves with each significand bit."""
    widths = (12, 30, 48)
    table = [differences(problem, f"e11m{m}", fixes, (1, 10), seeds=3) for m in widths]
    states.cache_clear()
    assert slopes(widths, table) == pytest.approx([-1, -1], abs=0.25)
