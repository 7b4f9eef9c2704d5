"""Environments stepped together: the same in any number of processes, and nothing left behind."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import odd_environments  # noqa: F401  what the program itself has imported may be used
import pytest
from processes import alive, wait_until

from roundoff.agents import RunError, TrainConfig
from roundoff.agents.environments.opening import open_environment
from roundoff.agents.environments.parallel import VectorEnvironment
from roundoff.agents.run.evaluate import evaluate

WALK = "gym:odd_environments:Walk-v0"
TWICE = {"task": WALK, "action_repeat": 2}


def sequences(count):
    return [np.random.SeedSequence((5, i)) for i in range(count)]


def rollout(environments, steps=40):
    """Steps both groups in turn, then evaluates while a step is under way."""
    generator = np.random.default_rng(0)
    seen = []
    *training, evaluation = environments.groups
    for group in training:
        group.seed(sequences(len(group)))
        seen.append(group.reset())
    for _ in range(steps):
        for group in training:
            group.submit(generator.uniform(-1, 1, (len(group), environments.action_size)))
        seen += [part for group in training for part in group.collect()]
    training[0].submit(np.zeros((len(training[0]), environments.action_size)))
    outcome = evaluate(evaluation, lambda x: np.full((len(x), environments.action_size), 0.1), seed=0, step=3)
    seen += [*training[0].collect(), np.array(outcome.returns)]
    states = [group.random_states(stepped=stepped) for group in training for stepped in (False, True)]
    return [part.tolist() for part in seen], states


def test_the_number_of_processes_changes_nothing_and_their_death_is_an_error():
    sizes, begin_next = (3, 2, 3), (True, True, False)
    expected = rollout(VectorEnvironment(TWICE, sizes, begin_next))
    asked = []
    with VectorEnvironment(TWICE, sizes, begin_next, workers=2, on_stop=lambda: asked.append(1)) as environments:
        pids = environments.process_ids
        assert len(pids) == 2
        assert rollout(environments) == expected
        # Asked to stop, a worker leaves it to this process.
        os.kill(pids[1], signal.SIGTERM)
        assert rollout(environments) == expected
        assert asked == [1]
        os.kill(pids[0], signal.SIGKILL)
        with pytest.raises(RunError, match=rf"environment worker 1 of 2 \(process {pids[0]}\) was killed by SIGKILL"):
            rollout(environments)
        assert not any(map(alive, pids))


def test_an_episode_that_ends_is_followed_by_the_next():
    environments = VectorEnvironment({"task": WALK, "action_repeat": 1}, (1, 1), (True, False))
    training, evaluation = environments.groups
    alone = open_environment(WALK, 1)
    for group in (training, evaluation):
        group.seed(sequences(1))
        group.reset()
    alone.seed(sequences(1)[0])
    alone.reset()
    before = None
    for _ in range(60):
        state = alone.random_state()
        transition = alone.step(np.zeros(2))
        training.submit(np.zeros((1, 2)))
        steps = training.collect()
        assert np.array_equal(steps.next_observations[0], transition.observation)
        assert (steps.rewards[0], steps.discounts[0], steps.last[0]) == transition[1:]
        following = alone.reset() if transition.last else transition.observation
        assert np.array_equal(steps.observations[0], following)
        if transition.last:
            assert training.random_states(stepped=False) == [state]
            assert training.random_states(stepped=True) == [before] or before is None
            before = state


def test_the_error_of_an_environment_crosses_processes():
    """An environment's error is raised here; whatever the environment prints, or its worker, is no message."""
    with VectorEnvironment(
        {"task": "gym:odd_environments:Raises-v0", "action_repeat": 1}, (1,), (True,), workers=1
    ) as environments:
        (group,), (pid,) = environments.groups, environments.process_ids
        group.reset()
        with pytest.raises(RunError, match=r"Raises-v0 raised ZeroDivisionError: the third step"):
            for _ in range(3):
                group.submit(np.zeros((1, 2)))
                group.collect()
        assert not alive(pid)


PARENT = """
import sys
from roundoff.agents.environments.parallel import VectorEnvironment
environments = VectorEnvironment({"task": "gym:Pendulum-v1", "action_repeat": 1}, (1,), (True,), workers=1)
print(environments.process_ids[0], flush=True)
sys.stdin.read()
"""


def test_workers_end_with_their_parent_however_it_dies():
    with subprocess.Popen([sys.executable, "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        worker = int(parent.stdout.readline())
        # The shared memory has no name under which it could stay behind.
        assert "/memfd:roundoff-environments (deleted)" in Path(f"/proc/{worker}/maps").read_text()
        parent.kill()
    wait_until(lambda: not alive(worker))


def test_more_workers_than_environments_are_refused():
    with pytest.raises(ValueError, match=r"environment_workers is 12, .* allowed are 0 to 10"):
        TrainConfig(environments=4, environment_workers=12)


def test_workers_import_nothing_from_the_folder_they_are_started_in(tmp_path, monkeypatch):
    """A user's own random.py, or somebody else's, is not Python's."""
    for name in ("random", "mmap", "torch"):
        (tmp_path / f"{name}.py").write_text("raise ImportError('of the folder')")
    monkeypatch.chdir(tmp_path)
    with VectorEnvironment({"task": "cartpole_swingup", "action_repeat": 1}, (1,), (True,), workers=1) as environments:
        assert environments.action_size == 1
