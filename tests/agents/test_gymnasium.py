"""Environments of Gymnasium: repeatable, honest about ends, and refused where no agent of ours can act."""

import importlib.util
import json
import sys

import gymnasium
import numpy as np
import odd_environments  # noqa: F401  what the program itself has imported may be used
import pytest
from pydantic import ValidationError

from roundoff.agents import RunError, TrainConfig, train
from roundoff.agents.environments.opening import open_environment
from roundoff.agents.environments.parallel import VectorEnvironment
from roundoff.agents.environments.tasks import Task, may_import, modules_of_tasks_in
from roundoff.sweeps.subjects.subject import run_id

WALK = "gym:odd_environments:Walk-v0"


def seeded(task=WALK, repeat=1, seed=0):
    environment = open_environment(task, repeat)
    environment.seed(np.random.SeedSequence(seed))
    return environment


def episode(environment, action=0.0):
    observations, transitions = [environment.reset()], []
    while not transitions or not transitions[-1].last:
        transitions.append(environment.step(np.full(environment.action_size, action)))
        observations.append(transitions[-1].observation)
    return np.array(observations), transitions


@pytest.mark.parametrize("task", [WALK, "gym:Pendulum-v1"])
def test_an_episode_depends_on_the_random_state_alone(task):
    used = seeded(task, repeat=2)
    first, _ = episode(used)
    state = used.random_state()
    second, _ = episode(used)
    assert not np.array_equal(first[0], second[0])
    fresh = seeded(task, repeat=2, seed=9)
    fresh.set_random_state(state)
    assert np.array_equal(episode(fresh)[0], second)
    assert np.array_equal(episode(seeded(task, repeat=2))[0], first)
    assert not np.array_equal(episode(seeded(task, repeat=2, seed=1))[0], first)


def test_being_out_of_time_is_no_terminal_state_and_leaving_is_one():
    environment = seeded()
    ends = [episode(environment)[1] for _ in range(30)]
    assert {len(transitions) for transitions in ends} > {20}
    for transitions in ends:
        assert [t.discount for t in transitions[:-1]] == [1.0] * (len(transitions) - 1)
        left = abs(transitions[-1].observation[0]) > 1
        assert transitions[-1].discount == float(not left)
        assert left or len(transitions) == 20


def test_a_repeated_action_sums_rewards_and_ends_with_the_episode():
    one, three = seeded(), seeded(repeat=3)
    (_, single), (_, repeated) = episode(one), episode(three)
    assert len(repeated) == -(-len(single) // 3)
    for i, transition in enumerate(repeated):
        part = single[3 * i : 3 * i + 3]
        assert transition.reward == pytest.approx(sum(step.reward for step in part), rel=1e-12)
        assert np.array_equal(transition.observation, part[-1].observation)
    assert repeated[-1].discount == single[-1].discount


def test_actions_are_mapped_to_the_range_of_the_environment():
    environment = seeded()
    assert (environment.observation_size, environment.action_size) == (2, 2)
    assert environment.reset().dtype == np.float64
    for action in (-1.0, 0.0, 1.0):
        environment.step(np.full(2, action))
    assert [taken.tolist() for taken in environment._env.unwrapped.actions] == [[-1, 0], [1, 0.25], [3, 0.5]]
    assert environment._env.unwrapped.actions[0].dtype == np.float32


def test_an_algorithm_that_cannot_choose_an_action_is_refused_before_anything_is_written(tmp_path):
    with pytest.raises(RunError, match=r"sac takes continuous actions, and those of .*Chosen-v0 are discrete"):
        train(TrainConfig(task="gym:odd_environments:Chosen-v0"), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_discrete_action_is_the_place_of_the_largest_number():
    environment = open_environment("gym:odd_environments:Chosen-v0", 1)
    assert environment.discrete
    assert environment.action_size == 3
    environment.seed(np.random.SeedSequence(0))
    environment.reset()
    for row in ([0.0, 1.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 1.0]):
        environment.step(np.array(row))
    assert environment._env.unwrapped.actions == [5, 4, 6]  # the space begins with 4


def test_faults_of_an_environment_are_errors():
    for task, message in (("Raises-v0", "raised ZeroDivisionError: the third step"), ("Nan-v0", "with nan in it")):
        environment = seeded(f"gym:odd_environments:{task}")
        with pytest.raises(RunError, match=message):
            episode(environment)


@pytest.mark.parametrize(
    ("task", "message"),
    [
        ("CartPole-v1", "algorithm sac takes continuous actions, and those of gym:CartPole-v1 are discrete"),
        ("Pendulm-v1", "did you mean gym:Pendulum-v1"),
        ("", "Gymnasium cannot make it"),
        *(
            (name, r"the id .* is written gym:<module>:<id>")
            for name in ("..x:y", ":x", "a:b:c", " os:x", "os:", "o s:x")
        ),
        pytest.param(
            "HalfCheetah-v5",
            r"pip install 'gymnasium\[mujoco\]'",
            marks=pytest.mark.skipif(bool(importlib.util.find_spec("imageio")), reason="the extra is installed"),
        ),
    ],
)
def test_what_no_agent_can_train_on_is_refused_when_the_config_is_read(task, message):
    with pytest.raises(ValidationError, match=message):
        TrainConfig(task=f"gym:{task}")


@pytest.mark.parametrize(
    ("task", "message"),
    [
        ("odd_environments:Unbounded-v0", "without bounds"),
        ("odd_environments:Integers-v0", "of integers"),
        ("odd_environments:Named-v0", "its observations are Dict"),
        ("odd_environments:Several-v0", r"its actions are MultiDiscrete.*one of several \(Discrete\)"),
        ("odd_environments:Endless-v0", "have no time limit"),
        ("odd_environments:Missing-v0", "unknown task"),
        ("missing_module:Walk-v0", "needs the module missing_module, .*--allow-import missing_module"),
    ],
)
def test_what_a_module_registers_is_looked_at_before_anything_is_written(tmp_path, task, message):
    with pytest.raises(RunError, match=message):
        train(TrainConfig(task=f"gym:{task}"), tmp_path / "run")
    with pytest.raises(RunError, match=message):
        open_environment(f"gym:{task}", 1)
    assert not list(tmp_path.iterdir())


@pytest.fixture
def module(tmp_path, monkeypatch):
    """The name of a module that notes in a file that it was imported, and registers an environment."""
    name = "noting_environments"
    (tmp_path / f"{name}.py").write_text(
        "import pathlib, gymnasium, odd_environments\n"
        "with pathlib.Path(__file__).with_suffix('.log').open('a') as file: file.write('imported ')\n"
        "gymnasium.register('Noted-v0', odd_environments.Walk, max_episode_steps=20)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    yield name
    sys.modules.pop(name, None)
    gymnasium.registry.pop("Noted-v0", None)


def test_a_module_is_imported_only_where_the_user_allows_it(tmp_path, module):
    log, task = tmp_path / f"{module}.log", f"gym:{module}:Noted-v0"
    config = TrainConfig(task=task, steps=20, seed_steps=5, hidden_units=8, batch_size=8, eval_episodes=1)
    assert TrainConfig(**json.loads(json.dumps(config.as_json()))) == config
    with pytest.raises(RunError, match=f"needs the module {module}"):
        train(config, tmp_path / "run")
    assert not log.exists()
    assert not (tmp_path / "run").exists()
    assert train(config, tmp_path / "run", allow_imports=[module]).status == "done"
    assert log.read_text() == "imported "


def test_workers_may_import_what_their_parent_may(tmp_path, module):
    opening = {"task": f"gym:{module}:Noted-v0", "action_repeat": 1, "allow_imports": [module]}
    with VectorEnvironment(opening, (2,), (True,), workers=2) as environments:
        assert environments.action_size == 2
    assert (tmp_path / f"{module}.log").read_text() == "imported imported imported "


def test_which_module_a_task_names():
    assert Task.parse("gym:a.b_c:d/E-v0") == ("gym:", "a.b_c:d/E-v0", "a.b_c")
    assert [Task.parse(task).module for task in ("gym:E-v0", "cartpole_swingup", "gym:a:b:c", "x gym:a:b")] == [
        None
    ] * 4
    assert modules_of_tasks_in("grid.task=[gym:a.b:C-v0, 'gym:d:E-v0', gym:F-v0]") == ["a.b", "d"]
    assert may_import("a.b", ["a"])
    assert may_import("json.decoder", [])  # imported long ago
    assert not may_import("ab", ["a"])
    assert not may_import("a", ["a.b"])


def test_the_name_of_a_run_can_be_a_folder():
    assert run_id(TrainConfig(task="gym:Pendulum-v1")).startswith("gym_Pendulum-v1-fp32-s0-")
