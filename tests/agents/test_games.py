"""MinAtar and Atari: repeatable, and shaped as agents take them. Their packages are for the user to install."""

import sys

import numpy as np
import pytest
from pydantic import ValidationError
from runs import AfterSteps, outcome

from roundoff.agents import RunError, TrainConfig, train
from roundoff.agents.environments.opening import check_task_imports, open_environment
from roundoff.agents.environments.parallel import VectorEnvironment
from roundoff.agents.environments.tasks import MINATAR_GAMES, Task, TaskKind
from roundoff.agents.run.stopping import Stopped
from roundoff.extras import MissingExtraError

RAINBOW = {"atoms": 5, "double": True, "dueling": True, "n_steps": 3, "prioritized": True}
TASKS = [f"minatar:{game}" for game in MINATAR_GAMES] + ["atari:Pong", "atari:Qbert", "atari:IceHockey"]


def needs(task):
    pytest.importorskip("minatar" if Task.parse(task).kind is TaskKind.MINATAR else "ale_py")


def seeded(task, repeat=1, seed=0):
    needs(task)
    environment = open_environment(task, repeat)
    environment.seed(np.random.SeedSequence(seed))
    return environment


def play(environment, steps=60, seed=0):
    """The beginning of an episode with random actions: observations, and what came with them."""
    random = np.random.default_rng(seed)
    observations, rest = [environment.reset()], []
    for _ in range(steps):
        action = np.eye(environment.action_size)[random.integers(environment.action_size)]
        observation, *others = environment.step(action)
        observations.append(observation)
        rest.append(others)
        if others[-1]:
            break
    return np.stack(observations), rest


@pytest.mark.parametrize("task", TASKS)
def test_an_episode_depends_on_the_random_state_alone(task):
    used = seeded(task)
    first, _ = play(used, seed=1)
    state = used.random_state()
    second, rest = play(used)
    fresh = seeded(task, seed=9)
    play(fresh, 5)
    fresh.set_random_state(state)
    again, rest_again = play(fresh)
    assert np.array_equal(second, again)
    assert rest == rest_again
    assert np.array_equal(play(seeded(task), seed=1)[0], first)


@pytest.mark.parametrize("game", MINATAR_GAMES)
def test_observations_of_minatar_are_planes_of_zeros_and_ones(game):
    environment = seeded(f"minatar:{game}")
    observations, _ = play(environment)
    assert environment.observation_shape == observations.shape[1:]
    assert environment.observation_shape[1:] == (10, 10)
    assert observations.dtype == environment.observation_dtype == np.bool_
    assert environment.discrete
    assert environment.action_size == len(environment._game.minimal_action_set())
    state = environment._game.state()
    assert all(np.array_equal(observations[-1][i], state[:, :, i]) for i in range(len(observations[-1])))
    environment._game.last_action = 1  # a sticky action of one episode is not one of the next
    environment.reset()
    assert environment._game.last_action == 0


def test_an_episode_of_minatar_ends_in_time_or_by_the_game(monkeypatch):
    environment = seeded("minatar:breakout")
    ends = [play(environment, 10_000, seed)[1] for seed in range(5)]
    assert all(end[-1][1:] == [0.0, True] for end in ends)  # the ball is lost
    monkeypatch.setattr("roundoff.agents.environments.minatar.MOST_STEPS", 7)
    late = play(environment)[1]
    assert len(late) == 7
    assert late[-1][1:] == [1.0, True]
    assert all(step[1:] == [1.0, False] for step in late[:-1])
    repeated = play(seeded("minatar:breakout", repeat=3))[1]
    assert len(repeated) <= 3  # 7 steps, or until the ball is lost
    assert repeated[-1][-1]


def test_an_observation_of_atari_is_the_last_four_images_by_half(monkeypatch):
    environment = seeded("atari:Pong")
    first = environment.reset()
    assert first.shape == environment.observation_shape == (4, 104, 80)
    assert first.dtype == environment.observation_dtype == np.uint8
    assert environment.frames == 4
    assert (first == first[0]).all()
    screens = []
    ale = environment._ale

    class Watched:
        def __getattr__(self, name):
            return getattr(ale, name)

        def act(self, action):
            reward = ale.act(action)
            screens.append(ale.getScreenGrayscale())
            return reward

    environment._ale = Watched()
    for number in (1, 2):
        seen = environment.step(np.eye(environment.action_size)[2]).observation
        assert len(screens) == 4 * number
        assert np.array_equal(seen[-1], np.maximum(*screens[-2:])[1:-1][::2, ::2])
    assert np.array_equal(seen[1], first[-1])
    monkeypatch.setattr("roundoff.agents.environments.atari.MOST_STEPS", 3)
    assert environment.step(np.eye(environment.action_size)[2])[2:] == (1.0, True)


def test_the_loss_of_a_life_ends_the_return_and_not_the_episode():
    environment = seeded("atari:Breakout")
    environment.reset()
    fire = [environment.step(np.eye(environment.action_size)[1]) for _ in range(120)]
    lost = [step for step in fire if step.discount == 0]
    assert lost
    assert not lost[0].last


def test_beginnings_differ_by_the_number_of_actions_that_do_nothing():
    environment = seeded("atari:Pong")
    frames = set()
    for _ in range(12):
        environment.reset()
        frames.add(environment._ale.getEpisodeFrameNumber())
    assert len(frames) > 5
    assert max(frames) - min(frames) < 30


@pytest.mark.parametrize(
    ("task", "message"),
    [
        ("minatar:brekout", "allowed are minatar:asterix, minatar:breakout"),
        ("atari:pong", "a game is written as in atari:SpaceInvaders"),
        ("minatar:breakout", "algorithm sac takes continuous actions, and those of minatar:breakout are discrete"),
        ("atari:Pong", "algorithm sac takes continuous actions"),
    ],
)
def test_what_cannot_be_a_task_is_refused_when_the_config_is_read(task, message):
    with pytest.raises(ValidationError, match=message):
        TrainConfig(task=task)


@pytest.mark.parametrize("key", [{"random_start": 1}, {"clip_rewards": True}])
def test_what_an_adapted_algorithm_would_not_do_is_refused(key):
    with pytest.raises(ValidationError, match=r"is for roundoff's own agents, not for sb3:PPO"):
        TrainConfig(algorithm="sb3:PPO", task="gym:CartPole-v1", **key)


def test_a_game_that_ale_does_not_have_is_refused_before_anything_is_written():
    pytest.importorskip("ale_py")
    with pytest.raises(ValueError, match="did you mean atari:Pong"):
        check_task_imports("atari:Pnog", ())
    for task in ("atari:Pnog", "atari:Combat"):
        with pytest.raises(RunError, match="unknown task"):
            open_environment(task, 1)


@pytest.mark.parametrize(("task", "package"), [("minatar:breakout", "minatar"), ("atari:Pong", "ale-py")])
def test_a_missing_package_is_one_message(task, package, monkeypatch):
    monkeypatch.setitem(sys.modules, package.replace("-", "_"), None)  # cannot be imported, nor found
    monkeypatch.delitem(sys.modules, f"roundoff.agents.environments.{task.split(':')[0]}", raising=False)
    with pytest.raises(MissingExtraError, match=f"under the GPL .*: pip install {package}"):
        check_task_imports(task, ())
    with pytest.raises(MissingExtraError, match=f"pip install {package}"):
        open_environment(task, 1)


@pytest.mark.parametrize(
    ("task", "keys"),
    [
        ("minatar:breakout", {"algorithm": "dqn", "environments": 3, "format": "e5m10", "steps": 90}),
        ("atari:Breakout", {"algorithm": "dqn", "environments": 2, "clip_rewards": True, "steps": 40}),
        ("atari:Breakout", {"algorithm": "dqn", "environments": 2, "steps": 40} | RAINBOW),
    ],
)
def test_stopped_anywhere_it_continues_to_the_same_bytes(tmp_path, monkeypatch, task, keys):
    """Planes kept as bytes, images in a ring for each environment, and random starts."""
    needs(task)
    for game in ("minatar", "atari"):
        if game in task:
            monkeypatch.setattr(f"roundoff.agents.environments.{game}.MOST_STEPS", 12)
    small = {"seed_steps": 20, "batch_size": 4, "hidden_units": 8, "eval_every": 1000, "eval_episodes": 1}
    config = TrainConfig(task=task, random_start=20, replay_capacity=50, **small, **keys)
    train(config, tmp_path / "straight")
    stops = 0
    while not (tmp_path / "run" / "result.json").exists():
        try:
            train(config, tmp_path / "run", stop=AfterSteps(5 + 11 * stops))
        except Stopped:
            stops += 1
    assert stops >= 2
    assert outcome(tmp_path / "run") == outcome(tmp_path / "straight")


def test_an_adapted_algorithm_plays(tmp_path):
    for package in ("minatar", "stable_baselines3"):
        pytest.importorskip(package)
    keys = {
        "steps": 64,
        "eval_every": 64,
        "eval_episodes": 2,
        "options": {"n_steps": 16, "batch_size": 16, "n_epochs": 1},
    }
    result = train(TrainConfig(algorithm="sb3:PPO", task="minatar:breakout", **keys), tmp_path)
    assert result.status == "done"


@pytest.mark.parametrize("task", ["minatar:breakout", "atari:Pong"])
def test_processes_give_the_same_observations_as_one(task):
    needs(task)
    seen = []
    for workers in (0, 1):
        with VectorEnvironment({"task": task, "action_repeat": 1}, (2,), (True,), workers=workers) as environments:
            (group,) = environments.groups
            group.seed([np.random.SeedSequence((0, i)) for i in range(2)])
            observations = [group.reset()]
            for number in range(6):
                group.submit(np.eye(environments.action_size)[[number % 3, 1]])
                observations.append(group.collect().observations)
            assert observations[0].dtype == environments.observation_dtype
            seen.append(np.stack(observations))
    assert np.array_equal(*seen)
