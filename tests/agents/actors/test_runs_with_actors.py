"""Runs with actors on Ray: schedules, noise and weights to the bit, who may be killed, what is recorded."""

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from actor_runs import LOCKSTEP, TINY, config_of
from forked_ray import forked_workers
from processes import PATIENCE, TRAINING, alive, children, wait_until

ray = pytest.importorskip("ray")

from roundoff.agents import TrainConfig, train  # noqa: E402
from roundoff.agents.actors.chunks import Chunk  # noqa: E402
from roundoff.agents.algorithms.dqn.agent import make  # noqa: E402
from roundoff.agents.environments.parallel import VectorEnvironment  # noqa: E402
from roundoff.agents.experience.sampling import LocalSampler  # noqa: E402
from roundoff.agents.run import checkpoint  # noqa: E402
from roundoff.agents.run.stopping import Stopped, StopRequest  # noqa: E402
from roundoff.agents.streams import Stream, sequence  # noqa: E402
from roundoff.ray_cluster import connect  # noqa: E402

CPU = torch.device("cpu")


def records(directory, *kinds):
    lines = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if line["kind"] in kinds]


@pytest.fixture(scope="module")
def cluster():
    """One Ray for all tests of this file; it starts as many processes at once as it has processors.

    They are forked. What a learner starts that has a Ray of its own, as in the last test, are new interpreters.
    """
    with forked_workers():
        with pytest.MonkeyPatch.context() as patch:
            for name in ("RAY_ADDRESS", "RAY_worker_niceness"):
                patch.delenv(name, raising=False)
            connect(num_cpus=3, include_dashboard=False, object_store_memory=2**28)
        yield ray
        ray.shutdown()


def test_processes_of_ray_have_the_niceness_of_ours(cluster):
    niceness = ray.remote(lambda: os.getpriority(os.PRIO_PROCESS, 0)).remote()
    assert ray.get(niceness, timeout=PATIENCE) == os.getpriority(os.PRIO_PROCESS, 0)  # Ray's own is 15 more


# Schedules, to the bit

SHORT = {"steps": 160, "eval_every": 80}


def by_hand(config, every):
    """A copy of the network acts, and is renewed before steps 0, every, 2 every, ...; all in this process."""
    environments = VectorEnvironment({"task": config.task, "action_repeat": 1}, [1], [True])
    environments.groups[0].seed([sequence(config.seed, Stream.ENVIRONMENT, 0)])
    sampler = LocalSampler(environments.groups)
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
    config = config_of(None, **SHORT)
    train(config, tmp_path, compiled=False)
    assert same(by_hand(config, 1), of_run(tmp_path))
    assert not same(by_hand(config, 7), of_run(tmp_path))


@pytest.fixture(scope="module")
def in_lockstep(cluster, tmp_path_factory):
    directory = tmp_path_factory.mktemp("lockstep")
    train(config_of({**LOCKSTEP, "pull_every": 7}, **SHORT), directory, compiled=False)
    return directory


def test_one_actor_in_lockstep_keeps_the_documented_schedule(in_lockstep):
    assert same(by_hand(config_of(None, **SHORT), 7), of_run(in_lockstep))
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

    config = config_of({**LOCKSTEP, "pull_every": 7}, **SHORT)
    with pytest.raises(Stopped):
        train(config, tmp_path, interrupt, stop, compiled=False)
    train(config, tmp_path, compiled=False)
    for name in ("metrics.jsonl", "result.json"):
        assert (tmp_path / name).read_bytes() == (in_lockstep / name).read_bytes()
    assert same(of_run(tmp_path), of_run(in_lockstep))


# Noise, and weights for what actors did that the learner would not


def weights_of(directory):
    return torch.cat([tensor.flatten().double() for tensor in checkpoint.load(directory / "agent.pt").values()])


@pytest.fixture(scope="module")
def learned_by(cluster, tmp_path_factory):
    """What runs in lockstep have learned, by the keys of their actors; each is made once."""
    found = {}

    def learned(**actors):
        name = str(sorted(actors.items()))
        if name not in found:
            directory = tmp_path_factory.mktemp("learned")
            train(config_of({**LOCKSTEP, "pull_every": 7, **actors}, **SHORT), directory, compiled=False)
            found[name] = weights_of(directory), directory
        return found[name]

    return learned


def test_weights_count_where_an_actor_does_what_the_learner_would_not(in_lockstep, learned_by, tmp_path):
    train(config_of(None, **SHORT), tmp_path, compiled=False)
    assert torch.equal(weights_of(tmp_path), learned_by(pull_every=1, importance_weights=True)[0])
    assert not torch.equal(weights_of(in_lockstep), learned_by(importance_weights=True)[0])


def test_actors_with_noise_go_on_as_they_were_saved(learned_by, tmp_path):
    keys = {"noise_of": "int2", "importance_weights": True}
    whole, directory = learned_by(**keys)
    stop = StopRequest()

    def interrupt(progress):
        if progress.step > 90:
            stop.make()

    config = config_of({**LOCKSTEP, "pull_every": 7, **keys}, **SHORT)
    with pytest.raises(Stopped):
        train(config, tmp_path, interrupt, stop, compiled=False)
    train(config, tmp_path, compiled=False)
    assert torch.equal(weights_of(tmp_path), whole)
    assert (tmp_path / "metrics.jsonl").read_bytes() == (directory / "metrics.jsonl").read_bytes()
    assert not torch.equal(whole, learned_by(importance_weights=True)[0])


# Who may be killed


def test_actors_and_the_quantizer_come_back_when_they_are_killed(cluster, tmp_path, monkeypatch):
    from roundoff.agents.actors import stage as stage_module

    opened, killed, begun, answered = [], [], [], [0, 0]
    stage = stage_module.Stage
    opening, starting, receiving = stage.__init__, stage.start, stage.receive

    def noted(self, *arguments):
        opening(self, *arguments)
        opened.append(self)

    def all_at_work():
        with suppress(ray.exceptions.RayError):  # of one that is not back yet
            return not set(opened[0].process_ids) & set(killed)

    def start(self, rank, steps):
        starting(self, rank, steps)
        if killed:
            wait_until(all_at_work)

    def receive(self):
        """Waits for every actor, so that each gets its share of the steps, however slowly its process starts."""
        self.published(PATIENCE)
        ray.wait(list(self._orders), num_returns=len(self._orders), timeout=PATIENCE)
        found = receiving(self)
        if found:
            answered[found[0]] += isinstance(found[1], Chunk)
        if min(answered) == 2 and not killed:
            begun.extend(self.process_ids)
            killed.extend(begun[:2])  # the quantizer, and an actor
            for pid in killed:
                os.kill(pid, signal.SIGKILL)
        return found

    monkeypatch.setattr(stage, "__init__", noted)
    monkeypatch.setattr(stage, "start", start)
    monkeypatch.setattr(stage, "receive", receive)
    config = config_of({"count": 2, "format": "e4m3", "pull_every": 10}, steps=400, eval_every=200, lr=1e-4)
    result = train(config, tmp_path, compiled=False)
    assert (result.status, result.step) == ("done", 400)
    timing = json.loads((tmp_path / "timing.json").read_text())
    assert [actor["died"] for actor in timing["actors"]] == [1, 0]
    assert sum(actor["steps"] for actor in timing["actors"]) == 400
    assert all(actor["steps"] > 0 and actor["pulls"] > 1 for actor in timing["actors"]), timing["actors"]
    assert set(timing["actors"][0]["spent"]) == {"environment", "step", "pull", "deserialize", "load"}
    assert [step for step, _ in timing["actor_clock"]] == [200, 400]
    pulls = records(tmp_path, "pull")
    assert max(pull["version"] for pull in pulls) > 200  # also after the quantizer was killed
    for rank in range(2):
        versions = [pull["version"] for pull in pulls if pull["actor"] == rank]
        assert versions == sorted(versions)  # steps come in the order in which they were taken
    wait_until(lambda: not any(map(alive, [*begun, *killed])))


def started_by(pid):
    return [one for child in children(pid) for one in (child, *started_by(child))]


def test_a_learner_that_is_killed_goes_on_and_leaves_nothing_behind(cluster, tmp_path):
    """The learner has a Ray of its own; the second run has that of this process, which takes less to start."""
    keys = {**TINY, "actors": {"count": 1, "format": "fp16", "pull_every": 20}}
    command = [sys.executable, "-c", TRAINING, json.dumps(keys), str(tmp_path / "run"), str(tmp_path / "never")]
    memory = set(Path("/dev/shm").iterdir())
    learner = subprocess.Popen(command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    try:
        wait_until((tmp_path / "run/checkpoint.pt").exists)
        others = started_by(learner.pid)
        assert len(others) >= 4  # Ray's own, the quantizer, the actor
    finally:
        learner.kill()
        learner.wait()
    wait_until(lambda: not any(map(alive, others)))
    assert set(Path("/dev/shm").iterdir()) <= memory
    result = train(TrainConfig(**keys), tmp_path / "run", compiled=False)
    assert (result.status, result.step) == ("done", TINY["steps"])
    timing = json.loads((tmp_path / "run/timing.json").read_text())
    assert timing["actors"][0]["steps"] == TINY["steps"]
