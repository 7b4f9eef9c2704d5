"""Training in several environments at once, and stopping between any two steps."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import odd_environments  # noqa: F401  what the program itself has imported may be used
import pytest
from processes import PATIENCE
from runs import AfterSteps, weights

from roundoff.agents import TrainConfig, train
from roundoff.agents.algorithms.sac.agent import SAC
from roundoff.agents.environments.opening import open_environment
from roundoff.agents.experience.sampling import LocalSampler
from roundoff.agents.run import checkpoint
from roundoff.agents.run.stopping import Stopped, StopRequest, stopping_on_sigterm
from roundoff.agents.streams import Stream, sequence

WALK = "gym:odd_environments:Walk-v0"
SMALL = {
    "task": WALK,
    "steps": 240,
    "hidden_units": 4,
    "batch_size": 4,
    "seed_steps": 20,
    "eval_every": 100,
    "eval_episodes": 2,
    "checkpoint_every": 1000,
}


def config(**keys):
    return TrainConfig(**(SMALL | keys))


def outcome(directory):
    return (directory / "metrics.jsonl").read_bytes(), (directory / "result.json").read_bytes(), weights(directory)


def unlearned(**keys):
    """A run that only collects experience, which no config may ask for."""
    return config(**keys).model_copy(update={"seed_steps": 1000})


def records(directory, kind):
    lines = (directory / "metrics.jsonl").read_text().splitlines()
    return [record for line in lines if (record := json.loads(line))["kind"] == kind]


@pytest.mark.parametrize(
    "keys",
    [
        {},
        {"environments": 2, "format": "e5m10", "policy": {"rounding": "stochastic"}, "steps": 60, "eval_every": 50},
        # So rarely that the actor's numbers in a record can be from before the stop.
        {"environments": 5, "actor_update_every": 40, "replay_capacity": 50, "steps": 240},
        {"task": "cartpole_swingup", "action_repeat": 40, "environments": 3, "steps": 2400, "eval_every": 2000},
    ],
)
def test_stopped_anywhere_it_continues_to_the_same_bytes(tmp_path, keys):
    one = config(**({"steps": 100} | keys))
    train(one, tmp_path / "straight")
    stops = 0
    while not (tmp_path / "run" / "result.json").exists():
        try:
            train(one, tmp_path / "run", stop=AfterSteps(1 + 17 * stops % 29))
        except Stopped:
            stops += 1
    assert stops >= 3
    assert outcome(tmp_path / "run") == outcome(tmp_path / "straight")


def test_each_transition_is_learned_from_once(tmp_path, monkeypatch):
    batches, updates, rows = [], [], []
    act, update = SAC.act, SAC.update

    def watched_act(self, observations, *, deterministic, **rest):
        if not deterministic:
            batches.append(len(observations))
        return act(self, observations, deterministic=deterministic, **rest)

    def watched_update(self, batch):
        updates.append(self.updates)
        return update(self, batch)

    monkeypatch.setattr(SAC, "act", watched_act)
    monkeypatch.setattr(SAC, "update", watched_update)
    monkeypatch.setattr(
        "roundoff.agents.experience.replay.Replay.add", lambda self, row: rows.append(row.clone()), raising=True
    )
    monkeypatch.setattr(
        "roundoff.agents.experience.replay.Replay.sample", lambda self, n, g: self.as_batch(rows[-1][None])
    )
    result = train(config(environments=5), tmp_path)
    assert result.step == len(rows) == 240
    assert len(updates) == 240 - 20
    assert set(batches) == {3, 2}  # one call for each group
    # The observations of each environment's transitions are those before; 2 observations, 2 actions, 2 after.
    groups = [np.array([row.tolist() for row in rows[i::5]]) for i in range(5)]
    for transitions in groups:
        follows = (transitions[1:, :2] == transitions[:-1, 4:6]).all(1)
        ended = ~follows
        assert 0 < ended.sum() < 40
        assert (np.abs(transitions[:-1][follows][:, 4]) <= 1).all()
        assert ((np.abs(transitions[:, 4]) > 1) == (transitions[:, -1] == 0)).all()


def test_returns_are_those_of_each_episode(tmp_path, monkeypatch):
    rows = []
    add = "roundoff.agents.experience.replay.Replay.add"
    monkeypatch.setattr(add, lambda self, row: rows.append(row.tolist()))
    train(unlearned(environments=3), tmp_path)
    expected, sums, lengths = [], [0.0] * 3, [0] * 3
    for i, row in enumerate(rows):
        sums[i % 3] += row[-2]
        lengths[i % 3] += 1
        if row[-1] == 0 or lengths[i % 3] == 20:
            expected.append((i + 1, sums[i % 3]))
            sums[i % 3], lengths[i % 3] = 0.0, 0
    found = [(record["step"], record["episode_return"]) for record in records(tmp_path, "train")]
    assert len(found) > 10
    assert [step for step, _ in found] == [step for step, _ in expected]
    assert [value for _, value in found] == pytest.approx([value for _, value in expected], abs=1e-4)


PROGRAM = """
import sys
from roundoff.cli import main
sys.argv[0] = "roundoff"
main()
"""
LONG = SMALL | {"steps": 900, "environments": 3, "eval_every": 600}


@pytest.mark.usefixtures("forked_interpreters")
def test_sigterm_saves_and_the_same_command_continues(tmp_path):
    settings = [f"{key}={value}" for key, value in LONG.items()]
    command = [sys.executable, "-c", PROGRAM, "train", "--out", str(tmp_path / "run"), *settings]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)
    try:
        metrics = tmp_path / "run" / "metrics.jsonl"
        while not (metrics.exists() and metrics.stat().st_size > 0):
            assert process.poll() is None
            time.sleep(0.005)
        process.send_signal(signal.SIGTERM)
        errors = process.communicate(timeout=PATIENCE)[1]
    finally:
        process.kill()
    assert process.returncode == 143
    (line,) = (line for line in errors.splitlines() if "roundoff" in line)
    assert "and saved; the same command continues" in line
    assert "Traceback" not in errors
    step = checkpoint.load(tmp_path / "run" / "checkpoint.pt")["step"]
    assert f"stopped at step {step}" in line
    train(TrainConfig(**LONG), tmp_path / "run")
    train(TrainConfig(**LONG), tmp_path / "straight")
    assert outcome(tmp_path / "run") == outcome(tmp_path / "straight")


# As a container does it: every process gets the signal, the workers too, whose numbers are printed.
DURING_AN_EVALUATION = """
import os, signal
from roundoff.agents.run import loop as run
from roundoff.agents.training import alone as training
evaluate, open_environments, opened = run.evaluate, training.open_environments, []
def remembered(*arguments):
    opened.append(open_environments(*arguments))
    return opened[0]
def interrupted(environments, policy, **keys):
    if not keys["step"]:  # before it has learned
        return evaluate(environments, policy, **keys)
    calls = []
    def watched(observations):
        calls.append(len(observations))
        if len(calls) == 5:
            workers = opened[0].process_ids
            print(*workers, flush=True)
            for process in (*workers, os.getpid()):
                os.kill(process, signal.SIGTERM)
        return policy(observations)
    return evaluate(environments, watched, **keys)
run.evaluate, training.open_environments = interrupted, remembered
"""


@pytest.mark.usefixtures("forked_interpreters")
def test_sigterm_in_an_evaluation_with_workers_saves_and_leaves_no_process(tmp_path):
    settings = [f"{key}={value}" for key, value in (LONG | {"environment_workers": 2}).items()]
    command = [sys.executable, "-c", DURING_AN_EVALUATION + PROGRAM, "train", "--out", str(tmp_path / "run"), *settings]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen(command, env=environment, **pipes)
    try:
        printed, errors = process.communicate(timeout=PATIENCE)
    finally:
        process.kill()
    assert process.returncode == 143
    assert "and saved; the same command continues" in errors
    assert "Traceback" not in errors
    (workers,) = (line.split() for line in printed.splitlines() if line.replace(" ", "").isdigit())
    assert len(workers) == 2
    assert not [worker for worker in workers if Path(f"/proc/{worker}").exists()]
    assert [record["step"] for record in records(tmp_path / "run", "eval")] == [600]  # which was finished first
    assert checkpoint.load(tmp_path / "run" / "checkpoint.pt")["step"] < 900
    train(TrainConfig(**LONG, environment_workers=2), tmp_path / "run")
    train(TrainConfig(**LONG), tmp_path / "straight")
    assert outcome(tmp_path / "run") == outcome(tmp_path / "straight")


def test_patience_ends():
    stop = StopRequest()
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt), stopping_on_sigterm(stop, patience=0.05):
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.made
        time.sleep(10)
    assert signal.getsignal(signal.SIGTERM) == before
    assert signal.getitimer(signal.ITIMER_REAL) == (0, 0)


def test_memory_does_not_grow(tmp_path):
    """Once the replay is full, more steps, episodes and checkpoints need no more memory."""
    seen = {}

    def look(progress):
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        seen[progress.step] = pages * os.sysconf("SC_PAGE_SIZE") / 2**20

    keys = {"steps": 2200, "environments": 4, "replay_capacity": 100, "seed_steps": 2000, "checkpoint_every": 200}
    train(config(**keys, eval_every=1100), tmp_path, look)
    early = max(size for step, size in seen.items() if step <= 500)
    late = max(size for step, size in seen.items() if step <= 2000)
    assert late - early < 4


def test_random_actions_at_the_start_are_no_experience_but_part_of_the_episode(tmp_path, monkeypatch):
    rows, found = [], []
    monkeypatch.setattr("roundoff.agents.experience.replay.Replay.add", lambda self, row: rows.append(row.tolist()))
    make = LocalSampler.__init__

    def watched(self, *args, starts, **keys):
        found.extend(starts)
        make(self, *args, starts=starts, **keys)

    monkeypatch.setattr(LocalSampler, "__init__", watched)
    train(unlearned(environments=4, random_start=9), tmp_path)
    lengths = [len(start) for start in found]
    assert len(lengths) == 4
    assert len(set(lengths)) > 1
    assert max(lengths) <= 9
    assert len(rows) == 240
    # What is left of the first episodes is played, and an episode of no end has 20 steps.
    ends = [next((k for k, row in enumerate(rows[i::4]) if row[-1] == 0 or k == 19), None) for i in range(4)]
    for i, (length, end) in enumerate(zip(lengths, ends, strict=True)):
        environment = open_environment(WALK, 1)
        environment.seed(sequence(0, Stream.ENVIRONMENT, i))
        observation = environment.reset()
        for action in found[i]:
            step = environment.step(action)
            observation = environment.reset() if step.last else step.observation
        assert rows[i][:2] == pytest.approx(observation.tolist(), rel=1e-6)
        assert end is not None
        assert end < 20 - length or step.last or rows[i + 4 * end][-1] == 1


@pytest.mark.parametrize("keys", [{"random_start": 30, "environments": 3}, {"clip_rewards": True, "random_start": 5}])
def test_a_random_start_continues_to_the_same_bytes(tmp_path, keys):
    one = config(steps=60, **keys)
    train(one, tmp_path / "straight")
    stops = 0
    while not (tmp_path / "run" / "result.json").exists():
        try:
            train(one, tmp_path / "run", stop=AfterSteps(1 + 5 * stops))
        except Stopped:
            stops += 1
    assert stops >= 2
    assert outcome(tmp_path / "run") == outcome(tmp_path / "straight")
    train(config(steps=60), tmp_path / "other")
    assert outcome(tmp_path / "other") != outcome(tmp_path / "straight")


def test_clipped_rewards_are_learned_from_and_returns_are_whole(tmp_path, monkeypatch):
    rows = []
    monkeypatch.setattr("roundoff.agents.experience.replay.Replay.add", lambda self, row: rows.append(row.tolist()))
    keys = {"task": "gym:Pendulum-v1", "steps": 400, "eval_every": 400, "eval_episodes": 1}
    train(unlearned(clip_rewards=True, **keys), tmp_path)
    rewards = [row[-2] for row in rows]
    assert min(rewards) == -1
    assert max(rewards) > -1
    first, _ = (record["episode_return"] for record in records(tmp_path, "train"))
    assert first < sum(rewards[:200]) - 100


def test_the_new_keys_leave_the_names_of_runs_as_they_were():
    assert not {"random_start", "clip_rewards"} & config().as_json().keys()
    assert config(random_start=3).as_json()["random_start"] == 3
