"""An actor by itself, without Ray: what it does, pulls, and is saved as."""

import itertools
import math
import sys

import numpy as np
import pytest
import torch

from roundoff.agents import RunError, TrainConfig
from roundoff.agents.acting.engines import message_for, open_engine
from roundoff.agents.acting.packed import PackedPolicy
from roundoff.agents.actors import actor as actor_module
from roundoff.agents.actors.actor import Actor
from roundoff.agents.actors.weights import FullPolicy
from roundoff.agents.algorithms.d4pg import agent as d4pg_agent
from roundoff.agents.config.actor_keys import ActorKeys
from roundoff.agents.config.own_algorithms import for_others
from roundoff.agents.environments.parallel import VectorEnvironment
from roundoff.agents.streams import Stream, torch_generator

CPU = torch.device("cpu")


class FakeRay:
    """What an actor asks of Ray: references that are what they refer to, and errors."""

    class exceptions:
        class RayError(Exception):
            pass

    @staticmethod
    def get(reference, timeout=None):
        return reference


class Published:
    """A quantizer's handle: it has something, or nothing, or is dead."""

    def __init__(self):
        self.found, self.dead, self.latest = None, False, self

    def remote(self):
        if self.dead:
            raise FakeRay.exceptions.RayError
        return self.found

    def publish(self, version, policy, format="fp32", engine="simulated", communicate=None):
        keys = ActorKeys(format=format, engine=engine, communicate=communicate)
        self.found = (version, [FullPolicy.of(policy).packed(keys)])


@pytest.fixture
def published(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", FakeRay)
    return Published()


def actor_of(config, published, rank=0, life=0, steps=0):
    opening = {"task": config.task, "action_repeat": config.action_repeat}
    about = {"rank": rank, "life": life, "steps": steps}
    order = {"config": config.as_json(), "opening": opening, **for_others(config.algorithm), **about}
    return Actor(order, published)


D4PG = {
    "algorithm": "d4pg", "task": "gym:Pendulum-v1", "steps": 200, "hidden_units": 16, "hidden_layers": 1,
    "batch_size": 8, "seed_steps": 8, "exploration_noise_min": 0.0,
}  # fmt: skip


def learner_of(config):
    with_sizes = VectorEnvironment({"task": config.task, "action_repeat": 1}, [1], [True])
    return d4pg_agent.make(config, with_sizes, CPU)[0]


@pytest.mark.parametrize("engine", ["simulated", "onnxruntime"])
def test_an_actor_of_d4pg_acts_as_the_network_and_its_noise_say(published, engine):
    if engine == "onnxruntime":
        pytest.importorskip("onnxruntime")
    config = TrainConfig(actors={"count": 4, "format": "fp32", "engine": engine, "pull_every": 10}, **D4PG)
    learner = learner_of(config)
    published.publish(0, learner.policy_layers(), "fp32", engine)
    actor = actor_of(config, published, rank=3)
    first = actor.begin()
    chunk = actor.collect(6)
    assert np.abs(chunk.actions[:2]).max() <= 1  # random: its part of seed_steps
    before = np.concatenate([first[None], chunk.steps.observations[:-1]])[2:]
    best = learner.best_actions(torch.from_numpy(before[:, 0].astype(np.float32))).numpy()
    generator = torch_generator(config.seed, Stream.ACTION_NOISE, CPU, 3, 0)
    noise = 0.2 * torch.stack([torch.randn(1, generator=generator) for _ in range(4)]).numpy()
    np.testing.assert_allclose(chunk.actions[2:, 0], (best + noise).clip(-1, 1), atol=1e-6)
    ((pull),) = chunk.pulls
    assert (pull.at, pull.version, pull.before) == (0, 0, None)
    np.testing.assert_allclose(pull.states, before[:, 0], atol=1e-6)
    np.testing.assert_allclose(pull.basis, best, atol=1e-6)


@pytest.mark.parametrize(
    ("format", "engine"), [("fp32", "simulated"), ("int8_ax0", "simulated"), ("int8", "onnxruntime")]
)
def test_weights_travel_in_one_format_and_act_in_another(published, format, engine):
    if engine == "onnxruntime":
        pytest.importorskip("onnxruntime")
    keys = {"count": 4, "format": format, "engine": engine, "pull_every": 10, "communicate": "e4m3"}
    config = TrainConfig(actors=keys, **D4PG | {"exploration_noise": 0.0, "exploration_noise_min": None})
    policy = learner_of(config).policy_layers()
    published.publish(0, policy, format, engine, "e4m3")
    assert published.found[1][0].nbytes == len(PackedPolicy.of(policy, "e4m3").to_bytes())
    actor = actor_of(config, published, rank=3)
    first = actor.begin()
    chunk = actor.collect(6)
    seen = np.concatenate([first[None], chunk.steps.observations[:-1]])[2:, 0].astype(np.float32)
    rounded = PackedPolicy.of(PackedPolicy.of(policy, "e4m3").policy, format)
    by_rounded, by_plain = (
        open_engine(engine, message_for(engine, one)) for one in (rounded, PackedPolicy.of(policy, format))
    )
    expected, plain = (np.concatenate([one.act(x[None]) for x in seen]) for one in (by_rounded, by_plain))
    np.testing.assert_array_equal(chunk.actions[2:, 0], expected)
    assert np.abs(expected - plain).max() > 1e-4


@pytest.mark.parametrize("engine", ["simulated", "onnxruntime"])
def test_with_weights_that_have_become_infinite_on_their_way_nobody_acts(published, engine):
    if engine == "onnxruntime":
        pytest.importorskip("onnxruntime")
    keys = {"count": 4, "format": "fp32", "engine": engine, "communicate": "e5m10"}
    config = TrainConfig(actors=keys, **D4PG)
    learner = learner_of(config)
    learner.networks["actor"].layers[0][0, 0, 0] = 1e6
    published.publish(0, learner.policy_layers(), "fp32", engine, "e5m10")
    actor = actor_of(config, published, rank=3)
    actor.begin()
    assert np.isnan(actor.collect(6).actions[-1]).all()


def test_in_what_weights_travel_is_part_of_a_run_where_it_is_said():
    assert "communicate" not in TrainConfig(actors={"count": 2}, **D4PG).as_json()["actors"]
    config = TrainConfig(actors={"count": 2, "communicate": "fp16", "format": "fp32"}, **D4PG)
    assert config.as_json()["actors"]["communicate"] == "e5m10"
    assert TrainConfig(**config.as_json()) == config
    with pytest.raises(ValueError, match="which receive weights in fp32, got communicate"):
        TrainConfig(actors={"format": "fp32", "noise_of": "int8", "communicate": "fp16"}, **D4PG)
    with pytest.raises(ValueError, match=r"actors\.communicate"):
        TrainConfig(actors={"communicate": "no such"}, **D4PG)


def test_an_actor_goes_on_with_its_weights_while_there_are_no_others(published):
    config = TrainConfig(actors={"count": 2, "pull_every": 5}, **D4PG)
    learner = learner_of(config)
    published.publish(3, learner.policy_layers(), "int8")
    actor = actor_of(config, published)
    actor.begin()
    assert [pull.version for pull in actor.collect(6).pulls] == [3]
    published.dead = True
    assert actor.collect(10).pulls == []
    published.dead = False
    published.publish(9, learner.policy_layers(), "int8")
    assert [(pull.at, pull.version, pull.before) for pull in actor.collect(16).pulls] == [(4, 9, 3)]


def test_an_actor_without_any_weights_says_so_after_a_while(published, monkeypatch):
    monkeypatch.setattr(actor_module, "_SECONDS_TO_PULL", 0.0)
    actor = actor_of(TrainConfig(actors={"count": 2}, **D4PG), published)
    actor.begin()
    with pytest.raises(RunError, match="no weights were published within 0 seconds"):
        actor.collect(1)


def test_weights_that_are_not_finite_end_a_chunk_with_an_action_that_is_none(published):
    config = TrainConfig(actors={"count": 2, "pull_every": 5}, **D4PG)
    learner = learner_of(config)
    learner.networks["actor"].flat[0] = math.nan
    published.publish(0, learner.policy_layers(), "int8")
    actor = actor_of(config, published)
    actor.begin()
    chunk = actor.collect(16)
    assert len(chunk.actions) == 4 + 1  # random ones first
    assert np.isnan(chunk.actions[-1]).all()
    assert chunk.sample(4, 1).group == 1


@pytest.mark.parametrize("taken", [2, 7])
def test_an_actor_goes_on_as_it_was_saved(published, taken):
    """An actor's first actions are random, and all others have noise."""
    config = TrainConfig(actors={"count": 2, "pull_every": 5, "format": "e4m3"}, **D4PG)
    published.publish(0, learner_of(config).policy_layers(), "e4m3")
    one, other = (actor_of(config, published, rank=1) for _ in range(2))
    one.begin()
    one.collect(taken)
    saved = one.state_dict()
    want = one.collect(20)
    other.begin()
    other.load_state_dict(saved)
    got = other.collect(20)
    assert np.array_equal(got.actions, want.actions)
    assert np.array_equal(got.steps.observations, want.steps.observations)


def test_bytes_of_images_become_numbers_up_to_one(published):
    actor = actor_of(TrainConfig(actors={"count": 2}, **D4PG), published)
    seen = actor._perceived(np.array([[0, 51, 255]], dtype=np.uint8))
    assert seen.dtype == np.float32
    assert seen[0].tolist() == [0, np.float32(0.2), 1]


def test_rewards_are_clipped_and_scaled_as_without_actors(published):
    rewards = []
    for keys in ({}, {"clip_rewards": True}, {"reward_scale": 0.25}):
        config = TrainConfig(actors={"count": 2, "pull_every": 5}, **{**D4PG, "seed_steps": 100}, **keys)
        published.publish(0, learner_of(config).policy_layers(), "int8")
        actor = actor_of(config, published)
        actor.begin()
        rewards.append(actor.collect(50).steps.rewards)  # of random actions
    plain, clipped, scaled = rewards
    assert np.array_equal(clipped, plain.clip(-1, 1))
    assert not np.array_equal(clipped, plain)
    assert np.array_equal(scaled, plain / 4)


def test_actors_and_their_lives_meet_other_episodes_and_noise(published):
    config = TrainConfig(actors={"count": 2, "pull_every": 5}, **D4PG)
    published.publish(0, learner_of(config).policy_layers(), "int8")
    actors = [actor_of(config, published, rank, life) for rank, life in ((0, 0), (1, 0), (0, 1), (1, 1))]
    begun = [actor.begin() for actor in actors]
    taken = [actor.collect(8).actions for actor in actors]
    for i, j in itertools.combinations(range(4), 2):
        assert not np.array_equal(begun[i], begun[j])
        assert not np.array_equal(taken[i], taken[j])
        assert not torch.equal(*(actors[k]._noise.get_state() for k in (i, j)))  # of the control
