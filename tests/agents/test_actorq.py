"""Actors that act with a quantized policy: schedules to the bit, who may be killed, what is recorded."""

import itertools
import json
import math
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from processes import alive, children, wait_until
from pydantic import ValidationError

ray = pytest.importorskip("ray")

from roundoff.agents import RunError, TrainConfig, train  # noqa: E402
from roundoff.agents.actors import actor as actor_module  # noqa: E402
from roundoff.agents.actors import sampler as sampler_module  # noqa: E402
from roundoff.agents.actors.actor import Actor  # noqa: E402
from roundoff.agents.actors.chunks import Chunk, Pull, pulls_before  # noqa: E402
from roundoff.agents.actors.sampler import RemoteSampler  # noqa: E402
from roundoff.agents.actors.stage import ActorDied  # noqa: E402
from roundoff.agents.actors.weights import FullPolicy  # noqa: E402
from roundoff.agents.algorithms.d4pg import agent as d4pg_agent  # noqa: E402
from roundoff.agents.algorithms.dqn.agent import make  # noqa: E402
from roundoff.agents.algorithms.dqn.exploration import EpsilonGreedy  # noqa: E402
from roundoff.agents.algorithms.explorer import GaussianExplorer, explorer_of  # noqa: E402
from roundoff.agents.environments.parallel import Steps, VectorEnvironment  # noqa: E402
from roundoff.agents.experience.sampling import Sample, Sampler  # noqa: E402
from roundoff.agents.run import checkpoint  # noqa: E402
from roundoff.agents.run.stopping import Stopped, StopRequest  # noqa: E402
from roundoff.agents.streams import Stream, sequence, torch_generator  # noqa: E402

CPU = torch.device("cpu")
TINY = {
    "algorithm": "dqn", "task": "gym:CartPole-v1", "steps": 240, "eval_every": 120, "eval_episodes": 1,
    "checkpoint_every": 50, "hidden_units": 16, "hidden_layers": 2, "batch_size": 8, "seed_steps": 40,
    "exploration_steps": 100, "exploration_end": 0.2, "training_intensity": None, "target_every": 20, "lr": 1e-2,
    "n_steps": 3,
}  # fmt: skip
LOCKSTEP = {"count": 1, "format": "fp32", "lockstep": True}
SCRIPT = """
import json, sys
from roundoff.agents import TrainConfig, train
train(TrainConfig(**json.loads(sys.argv[1])), sys.argv[2], compiled=False)
"""


def config_of(actors, **keys):
    return TrainConfig(**{**TINY, "actors": actors, **keys})


def records(directory, *kinds):
    lines = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if line["kind"] in kinds]


@pytest.fixture(scope="module")
def cluster():
    """One Ray for all tests of this file that need one."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    ray.init(
        address="local", num_cpus=8, include_dashboard=False, log_to_driver=False, logging_level="ERROR",
        configure_logging=True, object_store_memory=2**28,
    )  # fmt: skip
    for number, handler in before.items():
        signal.signal(number, handler)
    yield ray
    ray.shutdown()


# What may stand in a config


@pytest.mark.parametrize(
    ("actors", "keys", "told"),
    [
        ({"pull_every": 0}, {}, "actors.pull_every must be greater than or equal to 1, got 0"),
        ({"count": 0}, {}, "actors.count must be greater than or equal to 1, got 0"),
        ({"engine": "tf"}, {}, "actors.engine must be 'simulated' or 'onnxruntime', got 'tf'"),
        (
            {"engine": "onnxruntime", "format": "e4m3"},
            {},
            "engine: onnxruntime computes in fp32 or int8 or int8_ax0, got format",
        ),
        ({"format": "posit7x"}, {}, "posit7x"),
        ({"pull": 3}, {}, "actors has no key pull; allowed are count, format,"),
        ({1: 3}, {}, "the keys of actors are names"),
        ({"count": 4}, {"environments": 6}, "allowed are divisors of environments"),
        ({}, {"learners": 2}, "actors serve one learner, got learners: 2"),
        ({}, {"random_start": 3}, "random_start: 3 is for environments that step together"),
        ({"samples_per_insert": 16}, {"training_intensity": 8.0}, "leave one of them out"),
        ({}, {"algorithm": "ppo"}, "actors is a key of "),
    ],
)
def test_a_mistake_is_told_in_one_message(actors, keys, told):
    keys = {"algorithm": "dqn", **keys}
    with pytest.raises(ValidationError) as error:
        TrainConfig(actors=actors, **keys)
    (found,) = error.value.errors()
    assert told in found["msg"]


def test_what_actors_say_of_other_keys():
    config = TrainConfig(algorithm="dqn", actors={"count": 3, "samples_per_insert": 16, "format": "fp16"})
    assert (config.environments, config.training_intensity, config.actors.format) == (3, 16.0, "e5m10")
    assert config.updates_in(1000) == 500  # 16 / 32 of a batch
    assert TrainConfig(**config.as_json()) == config
    assert TrainConfig(algorithm="dqn", actors={}, environments=8).environments == 8
    assert "actors" not in TrainConfig(algorithm="dqn").as_json()  # runs from before keep their names


# How actors explore, and how far they are from the learner


def test_divergence_of_boltzmann_policies_is_the_definition():
    random = np.random.default_rng(0)
    p, q = random.normal(size=(2, 7, 3)) * 3
    explorer = EpsilonGreedy(config_of(LOCKSTEP), 1, 0, ())
    softmax = [np.exp(x) / np.exp(x).sum(1, keepdims=True) for x in (p, q)]
    want = (softmax[0] * np.log(softmax[0] / softmax[1])).sum(1).mean()
    assert explorer.divergence(torch.tensor(p), torch.tensor(q)) == pytest.approx(want, rel=1e-12)
    assert explorer.divergence(torch.tensor(p), torch.tensor(p)) == 0


def test_divergence_of_gaussians_is_the_squared_distance_over_twice_the_variance():
    learners, own = torch.tensor([[0.5, -0.25], [0.0, 1.0]]), torch.tensor([[0.25, 0.25], [0.0, 0.0]])
    one = GaussianExplorer(torch.tensor([[0.125]]), 0, ())
    assert one.divergence(learners, own) == pytest.approx((0.0625 + 0.25 + 1) / 2 / (2 * 0.125**2))
    two = GaussianExplorer(torch.tensor([[0.0], [0.125]]), 0, ())  # the first state is of one without noise
    assert two.divergence(learners, own) == pytest.approx(1 / (2 * 0.125**2))
    assert math.isnan(GaussianExplorer(torch.tensor([[0.0]]), 0, ()).divergence(learners, own))


def test_noise_is_spread_over_the_actors_of_d4pg_and_the_same_for_those_of_td3():
    keys = {"task": "gym:Pendulum-v1", "actors": {"count": 3}, "environments": 6}
    d4pg = TrainConfig(algorithm="d4pg", exploration_noise_min=0.0, **keys)
    found = torch.cat([explorer_of(d4pg, rank).deviations for rank in range(3)])
    assert found.flatten().tolist() == pytest.approx([0, 0.04, 0.08, 0.12, 0.16, 0.2])
    td3 = TrainConfig(algorithm="td3", exploration_noise=0.3, **keys)
    assert explorer_of(td3, 2).deviations.flatten().tolist() == pytest.approx([0.3, 0.3])


def test_noise_has_the_deviation_of_its_environment():
    explorer = GaussianExplorer(torch.tensor([[0.0], [0.1]]), 0, ())
    drawn = torch.stack([explorer.act(torch.zeros(2, 50)) for _ in range(400)])
    assert float(drawn[:, 0].abs().max()) == 0
    assert float(drawn[:, 1].std()) == pytest.approx(0.1, rel=0.03)
    assert explorer.act(torch.ones(2, 50)).max() == 1


def test_a_categorical_head_is_compared_by_its_means():
    config = config_of(LOCKSTEP, atoms=5, v_min=-2.0, v_max=2.0)
    logits = torch.randn(3, 2 * 5, generator=torch.Generator().manual_seed(0))
    p = logits.double().numpy().reshape(3, 2, 5)
    p = np.exp(p) / np.exp(p).sum(2, keepdims=True)
    found = EpsilonGreedy(config, 1, 0, ()).basis(logits, torch.zeros(3, 2))
    np.testing.assert_allclose(found, (p * np.linspace(-2, 2, 5)).sum(2), rtol=1e-5, atol=1e-6)


def test_an_actor_never_hides_a_value_that_is_not_a_number():
    explorer = EpsilonGreedy(config_of(LOCKSTEP, exploration_start=1.0, exploration_end=1.0), 1, 0, ())
    assert explorer.act(torch.full((1, 2), math.nan)).isnan().all()
    assert GaussianExplorer(torch.tensor([[0.1]]), 0, ()).act(torch.tensor([[math.nan]])).isnan().all()


def test_actors_share_the_schedule_of_random_actions():
    keys = {"exploration_start": 1.0, "exploration_end": 0.0, "exploration_steps": 400}
    explorer = EpsilonGreedy(config_of({"count": 4}, **keys), 4, 0, (1, 0))
    best = torch.tensor([[1.0, 0.0]])
    chosen = [int(explorer.act(best).argmax()) for _ in range(200)]
    assert sum(chosen[:100]) > 10  # half of the random ones, of which there are fewer and fewer
    assert sum(chosen[100:]) == 0  # 4 x 100 steps have passed


# What is asked of actors, without any


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
    with pytest.raises(RunError, match="no actor has answered for 0 seconds; the same command goes on"):
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


# Schedules, to the bit


def by_hand(config, every):
    """A copy of the network acts, and is renewed before steps 0, every, 2 every, ...; all in this process."""
    environments = VectorEnvironment({"task": config.task, "action_repeat": 1}, [1], [True])
    environments.groups[0].seed([sequence(config.seed, Stream.ENVIRONMENT, 0)])
    sampler = Sampler(environments.groups)
    (learner, recorder), (acting, _) = make(config, environments, CPU), make(config, environments, CPU)
    perceive = recorder.intake.perceive
    before = perceive(sampler.begin()[0])
    returns = []
    for step in range(config.steps):
        if step % every == 0:
            acting.networks["critic"].flat.copy_(learner.networks["critic"].flat)
        actions = recorder.explore(1, 0)
        if actions is None:
            actions = recorder.intake.from_format(acting.act(before, deterministic=False))
        sample = sampler.act(actions)
        rows = recorder.rows(before, sample)
        before = perceive(sample.steps.observations)
        recorder.add(rows[0], sample, 0)
        for batch in recorder.due():
            learner.update(batch)
        if sample.steps.last[0]:
            returns.append(float(sample.returns[0]))
    return returns, learner.weights()["critic"]


def of_run(directory):
    returns = [record["episode_return"] for record in records(directory, "train")]
    return returns, checkpoint.load(directory / "agent.pt")["critic"]


def same(a, b):
    return a[0] == b[0] and torch.equal(a[1], b[1])


def test_the_schedule_by_hand_is_that_of_a_run_without_actors(tmp_path):
    config = config_of(None)
    train(config, tmp_path, compiled=False)
    assert same(by_hand(config, 1), of_run(tmp_path))
    assert not same(by_hand(config, 7), of_run(tmp_path))


@pytest.fixture(scope="module")
def in_lockstep(cluster, tmp_path_factory):
    directory = tmp_path_factory.mktemp("lockstep")
    train(config_of({**LOCKSTEP, "pull_every": 7}), directory, compiled=False)
    return directory


def test_one_actor_in_lockstep_keeps_the_documented_schedule(in_lockstep):
    assert same(by_hand(config_of(None), 7), of_run(in_lockstep))
    pulls = records(in_lockstep, "pull")
    assert [pull["step"] for pull in pulls if pull["version"]] == [42 + 7 * i for i in range(len(pulls) - 1)]
    assert {pull["staleness"] for pull in pulls} == {0}  # it waits for the weights of that moment
    assert [pull["staleness_before"] for pull in pulls[1:]] == [2, *([7] * (len(pulls) - 2))]
    assert all(pull["kl"] < 1e-9 for pull in pulls[1:])  # fp32 is what the learner has


def test_a_run_in_lockstep_has_the_same_bytes_when_it_is_stopped_and_goes_on(cluster, in_lockstep, tmp_path):
    stop = StopRequest()

    def interrupt(progress):
        if progress.step > 130:
            stop.make()

    config = config_of({**LOCKSTEP, "pull_every": 7})
    with pytest.raises(Stopped):
        train(config, tmp_path, interrupt, stop, compiled=False)
    train(config, tmp_path, compiled=False)
    for name in ("metrics.jsonl", "result.json"):
        assert (tmp_path / name).read_bytes() == (in_lockstep / name).read_bytes()
    assert same(of_run(tmp_path), of_run(in_lockstep))


# Who may be killed


def processes_of(stage_process_ids):
    return [pid for pid in stage_process_ids if alive(pid)]


def test_actors_and_the_quantizer_come_back_when_they_are_killed(cluster, tmp_path, monkeypatch):
    from roundoff.agents.actors import stage as stage_module

    opened, killed, begun = [], [], []
    original = stage_module.Stage.__init__

    def noted(self, *arguments):
        original(self, *arguments)
        opened.append(self)

    monkeypatch.setattr(stage_module.Stage, "__init__", noted)

    def on_progress(progress):
        if progress.step > 60 and not killed:
            begun.extend(opened[0].process_ids)
            killed.extend(begun[:2])  # the quantizer, and an actor
            for pid in killed:
                os.kill(pid, signal.SIGKILL)

    config = config_of({"count": 2, "format": "e4m3", "pull_every": 10}, steps=2000, eval_every=1000, lr=1e-4)
    result = train(config, tmp_path, on_progress, compiled=False)
    assert (result.status, result.step) == ("done", 2000)
    timing = json.loads((tmp_path / "timing.json").read_text())
    assert [actor["died"] for actor in timing["actors"]] == [1, 0]
    assert sum(actor["steps"] for actor in timing["actors"]) == 2000
    assert all(actor["steps"] > 0 and actor["pulls"] > 1 for actor in timing["actors"])
    assert set(timing["actors"][0]["spent"]) == {"environment", "step", "pull", "deserialize", "load"}
    assert [step for step, _ in timing["actor_clock"]] == [1000, 2000]
    versions = [pull["version"] for pull in records(tmp_path, "pull")]
    assert max(versions) > 1000  # also after the quantizer was killed
    wait_until(lambda: not any(map(alive, [*begun, *killed])))


def started_by(pid):
    return [one for child in children(pid) for one in (child, *started_by(child))]


def test_a_learner_that_is_killed_goes_on_and_leaves_nothing_behind(tmp_path):
    keys = {**TINY, "steps": 2000, "actors": {"count": 1, "format": "fp16", "pull_every": 20}}
    command = [sys.executable, "-c", SCRIPT, json.dumps(keys), str(tmp_path / "run")]
    memory = set(Path("/dev/shm").iterdir())
    learner = subprocess.Popen(command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    try:
        wait_until((tmp_path / "run/checkpoint.pt").exists, seconds=120)
        others = started_by(learner.pid)
        assert len(others) >= 4  # Ray's own, the quantizer, the actor
    finally:
        learner.kill()
        learner.wait()
    wait_until(lambda: not any(map(alive, others)))
    assert set(Path("/dev/shm").iterdir()) <= memory
    subprocess.run(command, check=True, timeout=300)
    result = json.loads((tmp_path / "run/result.json").read_text())
    assert (result["status"], result["step"]) == ("done", 2000)
    timing = json.loads((tmp_path / "run/timing.json").read_text())
    assert timing["actors"][0]["steps"] == 2000


# An actor by itself, without Ray


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

    def publish(self, version, policy, format="fp32", engine="simulated"):
        self.found = (version, [FullPolicy.of(policy).packed(format, engine)])


@pytest.fixture
def published(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", FakeRay)
    return Published()


def actor_of(config, published, rank=0, life=0, steps=0):
    opening = {"task": config.task, "action_repeat": config.action_repeat}
    return Actor(
        {"config": config.as_json(), "opening": opening, "rank": rank, "life": life, "steps": steps}, published
    )


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


def test_an_actor_goes_on_as_it_was_saved(published):
    config = TrainConfig(actors={"count": 2, "pull_every": 5, "format": "e4m3"}, **D4PG)
    published.publish(0, learner_of(config).policy_layers(), "e4m3")
    one, other = (actor_of(config, published) for _ in range(2))
    one.begin()
    one.collect(7)
    saved = one.state_dict()
    want = one.collect(20)
    other.begin()
    other.load_state_dict(saved)
    got = other.collect(20)
    assert np.array_equal(got.actions, want.actions)
    assert np.array_equal(got.steps.observations, want.steps.observations)


def test_actors_and_their_lives_meet_other_episodes_and_noise(published):
    config = TrainConfig(actors={"count": 2, "pull_every": 5}, **D4PG)
    published.publish(0, learner_of(config).policy_layers(), "int8")
    actors = [actor_of(config, published, rank, life) for rank, life in ((0, 0), (1, 0), (0, 1), (1, 1))]
    begun = [actor.begin() for actor in actors]
    taken = [actor.collect(8).actions for actor in actors]
    for i, j in itertools.combinations(range(4), 2):
        assert not np.array_equal(begun[i], begun[j])
        assert not np.array_equal(taken[i], taken[j])
