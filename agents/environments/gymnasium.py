"""Tasks of Gymnasium, by the ids of its registry: continuous or discrete actions, observations of numbers."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection
from functools import cache
from typing import Any, final

import gymnasium
import numpy as np
from numpy.typing import NDArray

from roundoff.own_modules import WHERE

from ..errors import RunError
from .episodes import SeededEpisodes, Transition
from .tasks import Task, TaskKind, may_import

# The extra of Gymnasium that installs the requirements of its own environments, by module.
_EXTRAS = {
    "gymnasium.envs.mujoco": "mujoco",
    "gymnasium.envs.box2d": "box2d",
    "gymnasium.envs.phys2d": "jax",
    "gymnasium.envs.tabular": "jax",
}


def check_gymnasium_task(task: str, allow_imports: Collection[str] = ()) -> str:
    """Returns ``task`` if agents can train on it; the environment is made once to see.

    Args:
        task: ``gym:<id>``, as in ``gym:Pendulum-v1``; ``gym:<module>:<id>`` imports the module that registers it.
        allow_imports: modules that may be imported for that, or packages that hold them.

    Raises:
        ValueError: Gymnasium does not know the environment, cannot make it, or its spaces or its length are unsuitable;
            or the module must not be imported.
    """
    module = Task.parse(task).module
    if module and not may_import(module, allow_imports):
        raise ValueError(
            f"{task}: needs the module {module}, which is not imported only because a file names it; if you trust it,"
            f" add --allow-import {module} (in Python: allow_imports=[{module!r}], or import it first)"
        )
    has_discrete_actions(task)
    return task


@cache
def has_discrete_actions(task: str) -> bool:
    """Whether an action of a task is one of several; the task's module must be allowed.

    Raises:
        ValueError: see :func:`check_gymnasium_task`.
    """
    environment = _make(task)  # Only to see its spaces and its time limit.
    try:
        actions, observations = environment.action_space, environment.observation_space
        _check_actions(task, actions)
        if not isinstance(observations, gymnasium.spaces.Box):
            raise ValueError(  # noqa: TRY004  pydantic wants it
                f"{task}: its observations are {observations}; allowed are observations of one array of numbers (a Box)"
            )
        if environment.spec is None or environment.spec.max_episode_steps is None:
            raise ValueError(
                f"{task}: its episodes have no time limit, so that an evaluation might never end;"
                " register it with max_episode_steps"
            )
    finally:
        environment.close()
    return isinstance(actions, gymnasium.spaces.Discrete)


@final
class GymnasiumEnvironment(SeededEpisodes):
    """One environment of Gymnasium, with flat observations, and actions in [-1, 1] or one of several.

    Every episode is reset with a different seed. A terminated episode ends the return (discount 0), a truncated one
    (out of time) does not (discount 1).

    Args:
        task: ``gym:<id>``.
        action_repeat: how often each action is repeated (less at the end of an episode).
        allow_imports: see :func:`check_gymnasium_task`.

    Attributes:
        observation_size: the number of elements in an observation.
        observation_dtype: the dtype of an observation.
        observation_shape: the shape of an observation.
        frames: 1.
        action_size: the number of elements in an action; for discrete actions, the number of actions.
        discrete: whether an action is one of several: the place of the largest number counts.

    Raises:
        RunError: the task is unknown or unsuitable.
    """

    def __init__(self, task: str, action_repeat: int, allow_imports: Collection[str] = ()) -> None:
        super().__init__()
        try:
            check_gymnasium_task(task, allow_imports)
            self._env: Any = _make(task)
        except ValueError as error:
            raise RunError(str(error)) from error
        space = self._env.action_space
        self.discrete = isinstance(space, gymnasium.spaces.Discrete)
        if self.discrete:  # The place of the largest number is the action; a space may start at another number than 0.
            self._to_space: Callable[[NDArray[Any]], Any] = lambda row: space.dtype.type(space.start + row.argmax())
        else:
            self._to_space = _box_scaling(space)  # Linear, from [-1, 1].
        self._action_repeat = action_repeat
        self.task = task
        self.action_size = int(space.n) if self.discrete else int(np.prod(space.shape))
        self.observation_dtype: type[np.generic] = np.float64
        self.observation_size = int(np.prod(self._env.observation_space.shape))
        self.observation_shape: tuple[int, ...] = (self.observation_size,)
        self.frames = 1

    def reset(self) -> NDArray[np.float64]:
        """Begins an episode and returns its first observation, flat."""
        observation, _ = self._call(self._env.reset, seed=self._next_seed())
        return self._flatten(observation)

    def step(self, action: NDArray[np.floating[Any]]) -> Transition:
        """Repeats an action.

        Args:
            action: (action_size,), finite; numbers in [-1, 1], mapped linearly to the environment's range, or numbers
                with the largest in the place of the action.

        Raises:
            RunError: the environment raised an error, or returned a number that is not finite.
        """
        converted = self._to_space(action)
        total = 0.0
        for _ in range(self._action_repeat):
            observation, reward, terminated, truncated, _ = self._call(self._env.step, converted)
            total += float(reward)
            if terminated or truncated:
                break
        if not np.isfinite(total):
            raise RunError(f"{self.task} returned the reward {total}, which is its own error")
        return Transition(self._flatten(observation), total, float(not terminated), bool(terminated or truncated))

    def _call(self, method: Any, *arguments: Any, **options: Any) -> Any:
        try:
            return method(*arguments, **options)
        except Exception as error:  # Of any type: the environment may be a user's.
            raise RunError(f"{self.task} raised {type(error).__name__}: {error}") from error

    def _flatten(self, observation: Any) -> NDArray[np.float64]:
        flat = np.array(observation, dtype=np.float64).reshape(-1)  # A copy: an environment may change its array.
        if not np.isfinite(flat).all():
            raise RunError(f"{self.task} returned an observation with {flat[~np.isfinite(flat)][0]} in it")
        return flat


def _make(task: str) -> Any:
    _, name, module = Task.parse(task)
    try:
        return gymnasium.make(name, disable_env_checker=True)
    except gymnasium.error.UnregisteredEnv as error:
        near = difflib.get_close_matches(name, list(gymnasium.registry), n=3, cutoff=0.5)
        hint = f"did you mean {' or '.join(TaskKind.GYMNASIUM + id_ for id_ in near)}?" if near else f"{error}"
        raise ValueError(f'unknown task "{task}"; {hint}') from error
    except (ImportError, gymnasium.error.DependencyNotInstalled) as error:
        missing = getattr(error.__cause__, "name", None)
        # The task's own module is missing, or a package around it; else something that the environment imports.
        if module and missing and f"{module}.".startswith(f"{missing}."):
            raise ValueError(f"{task}: No module named {missing!r}; {WHERE}") from error
        raise ValueError(f"{task}: something that it needs is not installed ({error}){_extra(name)}") from error
    except Exception as error:
        raise ValueError(f"{task}: Gymnasium cannot make it ({type(error).__name__}: {error})") from error


def _extra(name: str) -> str:
    """Returns instructions to install the requirements of a built-in environment; empty if none are known."""
    spec = gymnasium.registry.get(name)
    entry = str(spec.entry_point) if spec else ""
    extras = [extra for module, extra in _EXTRAS.items() if entry.startswith(module)]
    return f"; install it with: pip install 'gymnasium[{extras[0]}]'" if extras else ""


def _check_actions(task: str, actions: Any) -> None:
    """Raises ValueError if an agent cannot choose such actions."""
    if isinstance(actions, gymnasium.spaces.Discrete):
        return
    if not isinstance(actions, gymnasium.spaces.Box):
        raise ValueError(  # noqa: TRY004  pydantic wants it
            f"{task}: its actions are {actions}; allowed are continuous actions (a Box), or one of several (Discrete)"
        )
    if not np.issubdtype(actions.dtype, np.floating):
        raise ValueError(f"{task}: its actions are {actions}, of integers; allowed are continuous actions")
    if not (np.isfinite(actions.low).all() and np.isfinite(actions.high).all()):
        raise ValueError(
            f"{task}: its actions are {actions}, without bounds, and the policy's [-1, 1] cannot be mapped to them;"
            " wrap it in gymnasium.wrappers.RescaleAction or ClipAction where it is registered"
        )


def _box_scaling(space: Any) -> Callable[[NDArray[Any]], Any]:
    """Returns a function that maps numbers in [-1, 1] linearly to a box."""
    low, high = space.low.astype(np.float64), space.high.astype(np.float64)
    center, half_width = (high + low) / 2, (high - low) / 2
    return lambda action: (center + half_width * action.astype(np.float64).reshape(space.shape)).astype(space.dtype)
