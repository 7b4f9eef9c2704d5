"""reward_scale: nothing but what is called a reward changes, to the bit where exponents have room; and bad ones."""

import json
import math

import numpy as np
import odd_goal  # noqa: F401  registers the task
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from paired_agents import AGENTS, THE_SIX, problems, states

from roundoff.agents import RunError, TrainConfig, train
from roundoff.agents.experience.reward_range import RewardRange
from roundoff.agents.models.networks import head
from roundoff.formats import Format
from roundoff.simulate import simulate

GOAL = {
    "task": "gym:Goal-v0", "hidden_units": 16, "batch_size": 16, "steps": 120, "eval_every": 60, "eval_episodes": 1,
    "checkpoint_every": 60, "seed_steps": 20, "lr": 1e-2,
}  # fmt: skip
ALGORITHMS = {
    "sac": {},
    "td3": {"last_hidden_units": 16},
    "d4pg": {"atoms": 11, "v_min": -5.0, "v_max": 25.0, "target_every": 1, "tau": 0.1, "prioritized": True},
    "ddpg": {"algorithm": "d4pg", "atoms": 1, "target_every": 1, "tau": 0.1, "prioritized": True},
    "ppo": {"horizon": 32, "batch_size": 32, "fixes": "none"},
    "a2c": {"environments": 1, "horizon": 32, "batch_size": 32, "normalize_advantages": False, "entropy_weight": 0.01},
    "dqn": {"task": "gym:CartPole-v1", "dueling": True, "prioritized": True, "target_every": 4},
    "c51": {"algorithm": "dqn", "task": "gym:CartPole-v1", "atoms": 11, "double": True, "target_every": 4},
}


def config(name, **more):
    keys = {"algorithm": name, **GOAL, **ALGORITHMS[name], **more}
    if keys["algorithm"] in ("ppo", "a2c"):
        keys.pop("seed_steps")
    return TrainConfig(**keys)


def records(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("format", ["fp64", "e8m7"])
@pytest.mark.parametrize("name", list(ALGORITHMS))
def test_a_run_is_the_same_to_the_bit(tmp_path, name, format):
    """Powers of two round nothing in formats with room, so that all actions, returns and logged values are the same."""
    for scale in (1.0, 2.0**-4):
        train(config(name, format=format, reward_scale=scale), tmp_path / str(scale), compiled=False)
    one, other = (records(tmp_path / str(scale)) for scale in (1.0, 2.0**-4))
    assert len(one) == len(other) > 2
    for a, b in zip(one, other, strict=True):
        assert a.keys() == b.keys()
        for key in a:
            assert a[key] == (b[key] if isinstance(b[key], str) else pytest.approx(b[key], rel=1e-12)), key
    weights = [torch.load(tmp_path / str(scale) / "agent.pt", weights_only=True) for scale in (1.0, 2.0**-4)]
    for key, value in weights[0].items():
        if isinstance(value, torch.Tensor):
            assert torch.equal(value, weights[1][key]), key


@settings(max_examples=5)
@given(
    problem=st.sampled_from(list(AGENTS)).flatmap(lambda name: problems(smallest_eps=1e-4, algorithm=name)),
    exponent=st.integers(-12, 6),
    stochastic=st.booleans(),
)
def test_statement_1_to_the_bit(problem, exponent, stochastic):
    fixes = (*THE_SIX, "stochastic_compensation", "stochastic_targets") if stochastic else THE_SIX
    keys = dict(problem.keys)
    scaled = type(problem)(
        problem.observation, problem.action, tuple((keys | {"reward_scale": 2.0**exponent}).items()), problem.algorithm
    )
    plain = states(problem, "e11m12", fixes, (6,))
    # The rewards of these problems come from no environment: they are scaled here.
    found = states(scaled, "e11m12", fixes, (6,), rewards=2.0**exponent)
    states.cache_clear()
    assert all(
        torch.equal(a, b) for one, other in zip(plain, found, strict=True) for a, b in zip(one, other, strict=True)
    )


@pytest.mark.parametrize("shape", [(5, 4), (2, 5, 4)])
def test_the_head_has_scaled_values_and_gradients_of_what_is_not_scaled(shape):
    generator = torch.Generator().manual_seed(0)
    x, g = torch.randn(shape, generator=generator), torch.randn(*shape[:-1], 3, generator=generator)
    weight = torch.randn(*shape[:-2], 4, 3, generator=generator)
    bias = torch.randn((3,) if len(shape) == 2 else (2, 1, 3), generator=generator)
    leaves = [one.requires_grad_() for one in (bias, x, weight)]
    with simulate("e5m7"):
        plain, scaled = head(*leaves), head(*leaves, 0.0625)
        gradients = [torch.autograd.grad(y, leaves, g) for y in (plain, scaled)]
    assert torch.equal(plain / 16, scaled)
    assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))


def test_values_that_would_overflow_do_not(tmp_path):
    """A reward of 8 at each step is worth 800; e4m3 has 240."""
    keys = {"format": "e4m3", "fixes": ["all", "stochastic_compensation", "stochastic_targets"], "observe": True}
    assert TrainConfig(**keys, action_repeat=8, reward_scale="auto").scale_of_rewards == 0.125
    with simulate("e4m3"):
        x, weight, bias = torch.full((1, 8), 16.0), torch.full((8, 1), 8.0), torch.zeros(1)
        assert head(bias, x, weight) == math.inf
        assert head(bias, x, weight, 0.125) == 128


@pytest.mark.parametrize(
    ("keys", "scale"),
    [
        ({"format": "e4m3", "action_repeat": 8}, 2.0**-3),
        ({"format": "e4m3"}, 1.0),
        ({"format": "e4m3", "discount": 0.997}, 2.0**-2),
        ({"format": "e4m3", "action_repeat": 8, "clip_rewards": True}, 1.0),
        ({"format": "e3m4", "action_repeat": 8}, 2.0**-7),
        ({"format": "e5m10", "action_repeat": 8}, 1.0),
        ({"format": "fp32"}, 1.0),
    ],
)
def test_the_automatic_scale(keys, scale):
    assert TrainConfig(**keys, reward_scale="auto").scale_of_rewards == scale
    assert TrainConfig(**keys).as_json() == TrainConfig(**keys, reward_scale=1).as_json()
    assert "reward_scale" not in TrainConfig(**keys).as_json()


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"reward_scale": 0.1}, "must be a power of two such as 0.0625.* got 0.1; the nearest are 0.0625 and 0.125"),
        ({"reward_scale": 0.0}, "must be a power of two"),
        ({"reward_scale": -1.0}, "must be a power of two"),
        ({"reward_scale": True}, "must be a power of two"),
        ({"reward_scale": "automatic"}, "or auto, got 'automatic'"),
        ({"reward_scale": "auto", "discount": 1.0}, "divides by the horizon"),
        (
            {"algorithm": "dqn", "task": "gym:CartPole-v1", "atoms": 11, "format": "e4m3", "v_max": 400.0},
            "need numbers up to 400",
        ),
    ],
)
def test_what_is_no_scale_is_refused_in_one_message(keys, message):
    with pytest.raises(ValueError, match=message) as raised:
        TrainConfig(**keys)
    assert raised.value.error_count() == 1


def test_a_support_that_fits_scaled_is_allowed():
    keys = {"algorithm": "dqn", "task": "gym:CartPole-v1", "atoms": 11, "format": "e4m3", "v_max": 400.0}
    assert TrainConfig(**keys, reward_scale=0.25).scale_of_rewards == 0.25


@pytest.mark.parametrize("name", ["sac", "ppo"])
def test_rewards_of_which_nothing_is_left_end_the_run(tmp_path, name):
    with pytest.raises(RunError, match=r"makes 0 of every reward so far in e4m3.* give a larger reward_scale"):
        train(config(name, format="e4m3", reward_scale=2.0**-30), tmp_path)


def test_rewards_of_which_something_is_left_may_come_late():
    scaled = RewardRange(Format.parse("e4m3"), 0.5)
    scaled.see(np.array([0.0, 1e-9, math.nan]))
    with pytest.raises(RunError, match="makes 0 of every reward so far"):
        scaled.check()
    scaled.see(np.array([0.25]))
    scaled.check()
