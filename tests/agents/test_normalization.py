"""Observations and rewards are normalized as by Stable-Baselines3, and a policy is that with its normalization."""

import numpy as np
import odd_goal  # noqa: F401  registers the task
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from roundoff.agents import RunError, TrainConfig, train
from roundoff.agents.acting.engines import SimulatedEngine
from roundoff.agents.acting.packed import PackedPolicy
from roundoff.agents.algorithms.ppo.agent import PPO
from roundoff.agents.experience.normalization import ObservationNormalizer, RewardNormalizer, RunningMoments
from roundoff.agents.run.restored import read_finished
from roundoff.agents.sizes import KnownSizes
from roundoff.agents.training.finished import learner_with, looked_at
from roundoff.runs.folder import RunDirectory

GOAL = {"algorithm": "ppo", "task": "gym:Goal-v0", "steps": 240, "horizon": 40, "batch_size": 20, "epochs": 2}
GOAL |= {"eval_every": 120, "eval_episodes": 2, "checkpoint_every": 240, "hidden_units": 8}


@given(st.lists(st.integers(1, 7), min_size=1, max_size=6), st.integers(0, 2**31), st.floats(-1e6, 1e6))
@settings(max_examples=40)
def test_moments_are_those_of_all_rows_however_they_come(sizes, seed, offset):
    rows = np.random.default_rng(seed).normal(offset, 3.0, (sum(sizes), 2))
    moments = RunningMoments(2)
    for part in np.split(rows, np.cumsum(sizes)[:-1]):
        moments.see(part)
    count, first = len(rows), 1e-4  # of numbers of mean 0 and variance 1
    mean = rows.sum(axis=0) / (count + first)
    squares = ((rows - mean) ** 2).sum(axis=0) + first * (1 + mean**2)
    np.testing.assert_allclose(moments.mean, mean, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(moments.deviation**2, squares / (count + first) + 1e-8, rtol=1e-7)


def test_they_are_normalized_as_by_stable_baselines3():
    theirs = pytest.importorskip("stable_baselines3.common.vec_env")
    import gymnasium

    class Stream(gymnasium.Env):
        observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (3,), np.float64)
        action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float64)

        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            return self.np_random.normal(5, 2, 3), {}

        def step(self, action):
            end = bool(self.np_random.random() < 0.2)
            return self.np_random.normal(5, 2, 3), float(self.np_random.normal(100, 50)), end, False, {}

    n = 4
    vector = theirs.VecNormalize(theirs.DummyVecEnv([Stream] * n), gamma=0.9)
    observations, rewards = ObservationNormalizer(3), RewardNormalizer(0.9, [n])
    vector.seed(0)
    found = vector.reset()
    observations.moments.see(vector.get_original_obs())
    np.testing.assert_allclose(observations(vector.get_original_obs()), found, rtol=1e-6)
    ends = 0
    for _ in range(50):
        found, paid, ended, _ = vector.step(np.zeros((n, 1)))
        observations.moments.see(vector.get_original_obs())
        np.testing.assert_allclose(observations(vector.get_original_obs()), found, rtol=1e-6, atol=1e-9)
        np.testing.assert_allclose(rewards(0, vector.get_original_reward(), ended), paid, rtol=1e-6)
        ends += ended.sum()
    assert ends


def test_each_group_has_returns_of_its_own_and_rewards_that_are_far_off_are_clipped():
    rewards = np.random.default_rng(0).normal(5, 3, (20, 2))
    ends = np.random.default_rng(1).random((20, 2)) < 0.2
    normalizer, moments, returns = RewardNormalizer(0.9, [1, 1]), RunningMoments(1), np.zeros(2)
    for paid, last in zip(rewards, ends, strict=True):
        for i in range(2):
            returns[i] = returns[i] * 0.9 + paid[i]
            moments.see(returns[i].reshape(1, 1))
            expected = np.clip(paid[i] / moments.deviation, -10, 10)  # the first one is: no deviation is known yet
            assert normalizer(i, paid[i : i + 1], last[i : i + 1]) == pytest.approx(expected)
            returns[i] *= not last[i]


def test_what_is_far_off_is_clipped_and_no_number_stays_none():
    normalizer = ObservationNormalizer(2)
    normalizer.moments.see(np.array([[0.0, 1.0], [1.0, 1.0]]))
    assert normalizer(np.array([[1e9, 1.0]])).tolist()[0] == [10.0, pytest.approx(0.0, abs=1e-2)]
    assert normalizer(np.array([[-np.inf, 1.0]]))[0, 0] == -10
    normalizer.moments.see(np.array([[np.nan, 1.0]]))
    assert np.isnan(normalizer(np.array([[0.5, 1.0]]))[0]).tolist() == [True, False]


def finished(folder):
    files = RunDirectory(folder)
    config, step, weights = read_finished(files)
    sizes = KnownSizes(1, (1,), np.float64, 1, 1, discrete=False)
    return learner_with(weights, looked_at(config, 1), step, sizes, folder), weights


def test_a_finished_policy_sees_what_it_saw_and_is_written_with_it(tmp_path):
    train(TrainConfig(**GOAL), tmp_path / "run", compiled=False)
    (learner, intake), weights = finished(tmp_path / "run")
    mean, variance, count = weights["observations"][:, 0].tolist()
    assert count == pytest.approx(241, abs=1e-3)
    assert abs(mean) < 0.2
    assert 0.1 < variance < 0.4
    seen = np.linspace(-0.8, 0.8, 9)[:, None]
    assert torch.equal(intake.perceive(seen), torch.from_numpy((seen - mean) / (variance + 1e-8) ** 0.5).float())
    actions = learner.act(intake.perceive(seen), deterministic=True).clamp(-1, 1)
    engine = SimulatedEngine(PackedPolicy.of(learner.policy_layers(), "fp32").to_bytes())
    np.testing.assert_allclose(engine.act(seen.astype(np.float32)), actions.numpy(), rtol=1e-5, atol=1e-6)


def test_where_nothing_is_normalized_it_is_the_plain_run(tmp_path):
    plain = {"normalize_observations": False, "normalize_rewards": False, "value_clip": 0.0}
    config = TrainConfig(**GOAL, **plain)
    assert TrainConfig(**config.as_json()) == config
    train(config, tmp_path / "run", compiled=False)
    _, weights = finished(tmp_path / "run")
    assert list(weights) == ["actor"]


def test_learning_stops_within_a_rollout_once_the_policy_has_moved_enough(tmp_path):
    far = train(TrainConfig(**GOAL), tmp_path / "far", compiled=False)
    assert far.updates == 24
    assert train(TrainConfig(**GOAL, target_kl=1e3), tmp_path / "never", compiled=False).updates == 24
    left = train(TrainConfig(**GOAL, target_kl=1e-7, lr=1e-2), tmp_path / "soon", compiled=False)
    assert 6 <= left.updates < 24  # the first minibatch of each rollout is that of the policy itself
    weights = [finished(tmp_path / name)[1]["actor"] for name in ("far", "never")]
    assert torch.equal(*weights)


@pytest.mark.parametrize("given", [{}, {"normalize_observations": None, "value_clip": None}])
def test_what_is_usual_is_said_where_actions_are_numbers_and_no_part_of_other_runs(given):
    usual = {"normalize_observations": True, "normalize_rewards": True, "value_clip": 0.2}
    config = TrainConfig(algorithm="ppo", task="gym:Pendulum-v1", **given)
    assert usual.items() <= config.as_json().items()
    assert TrainConfig(**config.as_json()) == config
    for other in ({"algorithm": "ppo", "task": "gym:CartPole-v1"}, {"algorithm": "a2c", "task": "gym:Pendulum-v1"}):
        config = TrainConfig(**other, **{name: None for name in given if other["algorithm"] == "ppo"})
        assert not usual.keys() & config.as_json().keys()
        assert not config.normalize_observations
    several = TrainConfig(algorithm="ppo", task="gym:Pendulum-v1", environments=2, learners=2)
    assert not several.normalize_observations
    assert not several.normalize_rewards
    assert TrainConfig(algorithm="ppo", task="gym:Pendulum-v1", clip_rewards=True).normalize_rewards is False


def test_planes_are_not_normalized():
    from types import SimpleNamespace

    sizes = SimpleNamespace(observation_size=400, observation_shape=(4, 10, 10), action_size=3, discrete=True)
    config = TrainConfig(algorithm="ppo", task="minatar:breakout", normalize_observations=True)
    with pytest.raises(RunError, match="normalize_observations is for vectors, and minatar:breakout shows planes"):
        PPO(sizes, config, torch.device("cpu"))
