"""Environments: flat, repeatable from their random state, and honest about why an episode ends."""

import numpy as np
import pytest
from dm_control import suite

from roundoff.agents.environments.control_suite import Environment
from roundoff.agents.environments.parallel import VectorEnvironment
from roundoff.agents.environments.tasks import DOMAIN_AND_TASK, TASKS
from roundoff.agents.errors import RunError
from roundoff.agents.run.evaluate import evaluate


def seeded(task="cartpole_swingup", repeat=8, seed=0):
    environment = Environment(task, repeat)
    environment.seed(np.random.SeedSequence(seed))
    return environment


def trajectory(environment, steps):
    generator = np.random.default_rng(7)
    observations = [environment.reset()]
    for _ in range(steps):
        transition = environment.step(generator.uniform(-1, 1, environment.action_size))
        observations.append(np.append(transition.observation, transition.reward))
    return np.concatenate(observations)


@pytest.mark.parametrize("task", [name for name in TASKS if not name.startswith(("dog", "quadruped_fetch"))])
def test_an_episode_depends_on_the_random_state_alone(task):
    used = seeded(task, repeat=2)
    trajectory(used, 5)
    state = used.random_state()
    fresh = seeded(task, repeat=2, seed=1)
    fresh.set_random_state(state)
    expected = trajectory(used, 5)
    assert np.array_equal(trajectory(fresh, 5), expected)
    assert not np.array_equal(trajectory(used, 5), expected)


def test_sizes_and_types():
    environment = seeded("walker_walk")
    observation = environment.reset()
    assert observation.shape == (environment.observation_size,) == (24,)
    assert observation.dtype == np.float64
    assert environment.action_size == 6


def test_a_time_out_is_no_terminal_state():
    environment = seeded(repeat=30)  # 1000 steps: 33 times 30, and 10
    environment.reset()
    transitions = []
    while not transitions or not transitions[-1].last:
        transitions.append(environment.step(np.zeros(1)))
    assert len(transitions) == 34
    assert transitions[-1].discount == 1


def test_rewards_of_a_repeated_action_are_summed():
    one, five = seeded(repeat=1), seeded(repeat=5)
    one.reset()
    five.reset()
    action = np.full(1, 0.3)
    steps = [one.step(action) for _ in range(5)]
    repeated = five.step(action)
    assert repeated.reward == pytest.approx(sum(step.reward for step in steps), rel=1e-12)
    assert np.array_equal(repeated.observation, steps[-1].observation)


def test_actions_are_mapped_to_the_range_of_the_task():
    environment = seeded("quadruped_walk", repeat=1)
    environment.reset()
    spec = environment._env.action_spec()
    assert spec.maximum.max() > 1  # otherwise this tests nothing
    for sign, bound in ((1.0, spec.maximum), (-1.0, spec.minimum)):
        environment.step(np.full(environment.action_size, sign))
        assert np.allclose(environment._env.physics.control(), bound)


def test_an_unknown_task_is_an_error():
    with pytest.raises(RunError, match="did you mean cartpole_swingup"):
        Environment("cartpole_swinup", 1)


def test_an_unstable_simulation_is_an_error():
    environment = seeded()
    environment.reset()
    environment._env.physics.data.qvel[:] = np.nan
    with pytest.raises(RunError, match="became unstable"):
        environment.step(np.zeros(1))


def together(count):
    return VectorEnvironment({"task": "cartpole_swingup", "action_repeat": 8}, (count,), (False,)).groups[0]


def constant(observations):
    return np.full((len(observations), 1), 0.1)


def test_evaluation_depends_on_seed_and_step_alone():
    environments = together(3)
    first = evaluate(environments, constant, seed=1, step=800)
    assert len(first.returns) == len(set(first.returns)) == 3
    assert evaluate(environments, constant, seed=1, step=800) == first
    assert evaluate(environments, constant, seed=1, step=1600) != first
    assert evaluate(environments, constant, seed=2, step=800) != first
    assert first.mean == pytest.approx(sum(first.returns) / 3)
    assert first.std == pytest.approx(np.std(first.returns))


def test_episodes_in_lockstep_are_those_run_one_by_one():
    two, one = (evaluate(together(count), constant, seed=1, step=0) for count in (2, 1))
    assert two.returns[0] == one.returns[0]


def test_a_non_finite_action_crashes_an_evaluation():
    result = evaluate(together(2), lambda x: np.array([[0.0], [np.nan]]), seed=0, step=0)
    assert (result.crashed, result.mean, result.std, result.returns) == (True, 0, 0, ())


ONE_OF_EACH_DOMAIN = {domain: task for task, (domain, _) in DOMAIN_AND_TASK.items()}.values()


SLOW = ("dog",)  # seconds to load


@pytest.mark.parametrize(
    "task",
    [
        pytest.param(task, marks=pytest.mark.slow if task.startswith(SLOW) else [])
        for task in ("cartpole_swingup", "finger_spin", *ONE_OF_EACH_DOMAIN)
    ],
)
def test_a_repeated_action_is_steps_of_the_suite(task):
    """Also where the episode ends between two repeats, so that its last observation is not that of the last repeat."""
    mine, plain = Environment(task, 3), suite.load(*DOMAIN_AND_TASK[task])
    mine._env._step_limit = plain._step_limit = 31
    for random in (mine._env.task.random, plain.task.random):
        random.seed(4)
    generator, spec = np.random.default_rng(0), plain.action_spec()
    found, step = mine.reset(), plain.reset()
    while not step.last():
        action = generator.uniform(-1, 1, mine.action_size)
        transition, reward = mine.step(action), 0.0
        for _ in range(3):
            step = plain.step((spec.maximum + spec.minimum) / 2 + (spec.maximum - spec.minimum) / 2 * action)
            reward += step.reward
            if step.last():
                break
        found = transition.observation
        assert np.array_equal(found, np.concatenate([np.ravel(part) for part in step.observation.values()]))
        assert (transition.reward, transition.last) == (reward, step.last())
