"""What is asked of actors and noted of them, with pretended ones."""

import math

import numpy as np
import pytest
import torch
from actor_runs import config_of

from roundoff.agents import RunError
from roundoff.agents.actors import sampler as sampler_module
from roundoff.agents.actors.chunks import Chunk, PolicyChoice, Pull, pulls_before
from roundoff.agents.actors.sampler import RemoteSampler
from roundoff.agents.actors.stage import ActorDied
from roundoff.agents.algorithms.dqn.agent import make
from roundoff.agents.algorithms.explorer import explorer_of
from roundoff.agents.environments.parallel import Steps, VectorEnvironment
from roundoff.agents.experience.sampling import Sample

CPU = torch.device("cpu")


class FakeStage:
    """Actors that do at once what they are asked for, and a quantizer that is as fast as it is told to be."""

    def __init__(self, count, each=1, *, slow=False):
        self.lives, self.count, self.each, self.slow = [0] * count, count, each, slow
        self.queue, self.published_versions, self.packs = [], [], False
        self.die = set()
        self.steps = [0] * count

    def start(self, rank, steps):
        self.queue = [one for one in self.queue if one[0] != rank]
        self.steps[rank] = steps
        self.queue.append((rank, None))

    def ask(self, rank, count):
        self.queue.append((rank, count))

    def publish(self, version, policy):
        self.published_versions.append(version)
        self.packs = self.slow

    def published(self, patience=0.0):
        return bool(self.published_versions)

    def receive(self):
        if not self.queue:
            return None
        rank, count = self.queue.pop(0)
        if rank in self.die:
            self.die.remove(rank)
            self.lives[rank] += 1
            self.queue = [one for one in self.queue if one[0] != rank]
            raise ActorDied(rank)
        if count is None:
            return rank, np.full((self.each, 4), float(self.steps[rank]))
        pulls, samples = [], []
        for i in range(count):
            if pulls_before(self.steps[rank], self.each, 10):
                states, outputs = np.ones((2, 2, 4), dtype=np.float32)[0], np.zeros((2, 2), dtype=np.float32)
                pulls.append(Pull(i, self.published_versions[-1], None, 100, states, outputs))
            row = np.full((self.each, 4), float(self.steps[rank]))
            nothing = np.zeros(self.each)
            actions = np.eye(2)[np.zeros(self.each, dtype=int)]
            samples.append(Sample(0, actions, Steps(row, nothing, nothing, nothing != 0, row), nothing))
            self.steps[rank] += self.each
        seconds = {"environment": 1.0 * self.steps[rank], "step": 0.0, "pull": 0.0, "deserialize": 0.0, "load": 0.0}
        return rank, Chunk.of(samples, pulls, seconds)


def fake_sampler(stage, actors, **keys):
    config = config_of(
        {"count": stage.count, "pull_every": 10, **actors}, environments=stage.count * stage.each, **keys
    )
    with_sizes = VectorEnvironment({"task": config.task, "action_repeat": 1}, [1], [True])
    learner, recorder = make(config, with_sizes, CPU)
    return RemoteSampler(stage, config, learner, recorder.intake.perceive), learner


def test_actors_are_two_chunks_ahead_and_no_more():
    stage = FakeStage(3)
    remote, _ = fake_sampler(stage, {})
    assert [len(one) for one in remote.begin()] == [1, 1, 1]
    for taken in range(200):
        sample = remote.wait()
        assert 0 <= sum(stage.steps) - taken - 1 <= 3 * 32
        assert len([one for one in stage.queue if one[1]]) <= 3 * 2
        assert sample.group == sample.first < 3


def test_samples_of_an_actor_come_in_its_order():
    stage = FakeStage(2)
    remote, _ = fake_sampler(stage, {})
    remote.begin()
    seen = [[], []]
    for _ in range(150):
        sample = remote.wait()
        seen[sample.group].append(sample.steps.observations[0, 0])
    assert all(own == list(range(len(own))) for own in seen)
    assert abs(len(seen[0]) - len(seen[1])) <= 32


def test_weights_are_published_for_every_pull_but_not_while_the_quantizer_is_at_work():
    stage = FakeStage(2)
    remote, learner = fake_sampler(stage, {})
    remote.begin()
    for learner.updates in range(100):
        remote.wait()
    gaps = np.diff(stage.published_versions)
    assert set(gaps) == {5}  # 10 steps of an actor, of whom there are two
    slow = FakeStage(2, slow=True)
    remote, learner = fake_sampler(slow, {})
    slow.slow = False
    remote.begin()
    slow.packs = True
    for learner.updates in range(100):
        remote.wait()
    assert slow.published_versions == [0]


def test_a_pull_is_noted_with_how_far_the_actor_is_behind():
    stage = FakeStage(1)
    remote, learner = fake_sampler(stage, {})
    remote.begin()
    learner.updates = 7
    remote.wait()
    (record,) = remote.pulls()
    assert (record["actor"], record["version"], record["staleness"]) == (0, 0, 7)
    q = learner.policy_at(torch.ones(2, 4)).double()
    want = (q.softmax(1) * (q.log_softmax(1) - math.log(0.5))).sum(1).mean()  # the actor's are alike
    assert record["kl"] == pytest.approx(float(want))
    assert remote.pulls() == []


def test_the_ratios_of_a_chunk_are_those_of_each_step_by_itself():
    remote, learner = fake_sampler(FakeStage(1), {"importance_weights": True}, seed_steps=0)
    states = torch.randn(5, 1, 4, generator=torch.Generator().manual_seed(0))
    own = torch.randn(5, 1, 2, generator=torch.Generator().manual_seed(1))
    choices = [PolicyChoice(*map(torch.Tensor.numpy, pair)) for pair in zip(states, own, strict=True)]
    actions, nothing = torch.eye(2)[torch.tensor([0, 1, 0, 1, 1])][:, None], np.zeros(1)
    samples = [
        Sample(0, action.numpy(), Steps(state, nothing, nothing, nothing != 0, state), nothing)
        for action, (state, _) in zip(actions, choices, strict=True)
    ]
    found = remote._likelihoods(0, Chunk.of(samples, [], {}, choices))
    explorer = explorer_of(remote._config, 0)
    expected = [
        explorer.ratios(action, learner.policy_at(state), mine, step).item()
        for step, (action, state, mine) in enumerate(zip(actions, states, own, strict=True))
    ]
    assert found[:, 0].tolist() == pytest.approx(expected)
    assert len(set(expected)) > 2  # fewer and fewer actions are random


def test_an_actor_that_died_begins_anew_and_keeps_what_it_has_spent():
    stage = FakeStage(2)
    remote, _ = fake_sampler(stage, {})
    remote.begin()
    for _ in range(32):
        remote.wait()
    before = remote.timing()["actors"][0]["spent"]["environment"]
    stage.die.add(0)
    taken = [remote.wait() for _ in range(100)]
    ((rank, observations),) = remote.begun()
    assert (rank, observations.shape) == (0, (1, 4))
    assert taken.count(None) == 2
    assert remote.timing()["actors"][0]["died"] == 1
    assert remote.timing()["actors"][0]["spent"]["environment"] > before


def test_no_transition_spans_two_lives_of_an_actor():
    config = config_of(None, n_steps=3)
    with_sizes = VectorEnvironment({"task": config.task, "action_repeat": 1}, [1], [True])
    _, recorder = make(config, with_sizes, CPU)
    states = np.arange(7.0)[:, None, None] * np.ones((1, 1, 4))

    def step(i):
        nothing = np.zeros(1)
        steps = Steps(states[i + 1], nothing, np.ones(1), nothing != 0, states[i + 1])
        sample = Sample(0, np.eye(2)[:1], steps, nothing)
        recorder.add(recorder.rows(recorder.intake.perceive(states[i]), sample)[0], sample, 0)
        return len(recorder.intake.replay)

    assert [step(0), step(1)] == [0, 0]
    recorder.intake.forget(0)
    assert [step(3), step(4), step(5)] == [0, 0, 1]
    assert recorder.intake.replay.rows[0, 0] == 3


def test_the_run_waits_no_longer_than_a_limit(monkeypatch):
    stage = FakeStage(1)
    remote, _ = fake_sampler(stage, {})
    remote.begin()
    stage.queue.clear()
    assert remote.wait() is None  # the run looks whether it is to stop
    monkeypatch.setattr(sampler_module, "_PATIENCE", 0.0)
    with pytest.raises(RunError, match="no actor has answered for 0 seconds; the same command continues"):
        remote.wait()
    with pytest.raises(RunError, match="no actor has answered"):
        remote.begin()


def test_the_clock_of_actors_is_noted_at_evaluations():
    stage = FakeStage(2)
    remote, _ = fake_sampler(stage, {}, eval_every=50, steps=110)
    remote.begin()
    for _ in range(110):
        remote.wait()
    clock = remote.timing()["actor_clock"]
    assert [step for step, _ in clock] == [50, 100, 110]
    assert [seconds for _, seconds in clock] == sorted(seconds for _, seconds in clock)


def test_pulls_come_at_multiples_of_their_period():
    assert [steps for steps in range(40) if pulls_before(steps, 1, 10)] == [0, 10, 20, 30]
    assert [steps for steps in range(0, 40, 4) if pulls_before(steps, 4, 10)] == [0, 12, 20, 32]
    assert all(pulls_before(steps, 4, 3) for steps in range(0, 40, 4))
