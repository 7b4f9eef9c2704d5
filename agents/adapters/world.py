"""The environment that a library learns in: float32 where it has reals, and watched at every step."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, final

import gymnasium
import numpy as np

from ..environments.opening import open_environment
from ..environments.tasks import Task, TaskKind
from ..errors import RunError
from ..streams import Stream, sequence

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..config.train_config import TrainConfig
    from ..run.profile import Stopwatch


@final
class World(gymnasium.Wrapper[Any, Any, Any, Any]):
    """An environment with action repeat, and observations in float32 where they are real numbers.

    Args:
        env: the environment.
        repeat: how often each action is repeated (less at the end of an episode); rewards are summed.
        before: called with each action before it is taken.
        after: called with the reward of a step, and whether it has ended the episode.
        stopwatch: the stopwatch of the run.
    """

    def __init__(
        self,
        env: Any,
        repeat: int,
        before: Callable[[Any], None],
        after: Callable[[float, bool], None],
        stopwatch: Stopwatch,
    ) -> None:
        super().__init__(env)
        space = env.observation_space
        self._real = np.issubdtype(space.dtype, np.floating)
        if self._real:
            self.observation_space = gymnasium.spaces.Box(
                space.low.astype(np.float32), space.high.astype(np.float32), space.shape, np.float32
            )
        self._repeat = repeat
        self._before, self._after, self._stopwatch = before, after, stopwatch

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begins an episode."""
        observation, info = self.env.reset(seed=seed, options=options)
        return self._checked(observation), info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Repeats an action."""
        self._before(action)
        total = 0.0
        with self._stopwatch.measure("environment"):
            for _ in range(self._repeat):
                observation, reward, terminated, truncated, info = self.env.step(action)
                total += float(reward)
                if terminated or truncated:
                    break
        if not np.isfinite(total):
            raise RunError(f"the environment returned the reward {total}, which is its own error")
        self._after(total, bool(terminated or truncated))
        return self._checked(observation), total, bool(terminated), bool(truncated), info

    def _checked(self, observation: Any) -> Any:
        if not self._real:
            return observation
        if not np.isfinite(observation).all():
            raise RunError("the environment returned an observation that is not finite, which is its own error")
        return np.asarray(observation, np.float32)


@final
class _TaskEnv(gymnasium.Env[Any, Any]):
    """A task from outside of Gymnasium as a Gymnasium environment; planes of 0 and 1 are float32.

    Args:
        task: a task of the suite, or a game.
        repeat: the number of steps that an action is repeated for.
        seed: the seed of the first episodes, until a reset gives another seed.
    """

    def __init__(self, task: str, repeat: int, seed: np.random.SeedSequence) -> None:
        self._task = open_environment(task, repeat)
        self._task.seed(seed)
        bounds: dict[Any, Any] = {np.uint8: (0, 255, np.uint8), np.bool_: (0, 1, np.float32)}
        low, high, self._dtype = bounds.get(self._task.observation_dtype, (-np.inf, np.inf, np.float64))
        self.observation_space = gymnasium.spaces.Box(low, high, self._task.observation_shape, self._dtype)
        size = self._task.action_size
        boxed = gymnasium.spaces.Box(-1.0, 1.0, (size,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(size) if self._task.discrete else boxed

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[Any], dict[str, Any]]:
        super().reset(seed=seed, options=options)
        if seed is not None:
            self._task.seed(np.random.SeedSequence(seed))
        return self._task.reset().astype(self._dtype, copy=False), {}

    def step(self, action: NDArray[Any]) -> tuple[NDArray[Any], float, bool, bool, dict[str, Any]]:
        step = self._task.step(np.eye(self._task.action_size)[action] if self._task.discrete else action)
        terminal = step.last and step.discount == 0  # Otherwise the episode ends at a time limit.
        observation = step.observation.astype(self._dtype, copy=False)
        return observation, step.reward, terminal, step.last and not terminal, {}


def open_world(
    config: TrainConfig,
    number: int,
    before: Callable[[Any], None],
    after: Callable[[float, bool], None],
    stopwatch: Stopwatch,
) -> World:
    """Opens one of the environments that a run trains in.

    Args:
        config: the config of the run; its task has been checked.
        number: the index of the environment.
        before: see :class:`World`.
        after: see :class:`World`.
        stopwatch: see :class:`World`.
    """
    kind, name, _ = Task.parse(config.task)
    if kind is TaskKind.GYMNASIUM:
        env = gymnasium.make(name, disable_env_checker=True)
        return World(env, config.action_repeat, before, after, stopwatch)
    seed = sequence(config.seed, Stream.ENVIRONMENT, number)
    # The task repeats actions itself.
    return World(_TaskEnv(config.task, config.action_repeat, seed), 1, before, after, stopwatch)
