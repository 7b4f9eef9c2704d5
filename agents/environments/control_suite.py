"""Control tasks with states as observations: the DeepMind control suite with action repeat.

The suite is imported without a renderer; its models are compiled once, and its rewards take less time.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from copy import copy
from functools import cache
from importlib.util import find_spec, module_from_spec
from types import SimpleNamespace
from typing import Any, final

import numpy as np
from dm_control.rl.control import PhysicsError
from dm_control.utils import rewards
from numpy.typing import NDArray

from ..errors import RunError
from .episodes import Transition
from .tasks import DOMAIN_AND_TASK, check_suite_task

_SCALES: dict[str, Callable[[float], np.float64]] = {
    "gaussian": lambda value: np.sqrt(-2 * np.log(value)),
    "linear": lambda value: np.float64(1 - value),
    "quadratic": lambda value: np.sqrt(1 - value),
}
"""For each formula, the distance at which it falls to a given value; it scales distances in units of the margin."""


@final
class Environment:
    """One task of the suite, with flat observations and actions in [-1, 1].

    At the beginning of an episode everything in it depends only on the state of its random generator, which
    :meth:`random_state` returns: restoring it there continues identically.

    Args:
        task: ``<domain>_<task>``.
        action_repeat: how often each action is repeated (less at the end of an episode).

    Attributes:
        observation_size: the number of elements in an observation.
        observation_dtype: the dtype of an observation.
        observation_shape: the shape of an observation.
        frames: 1.
        action_size: the number of elements in an action.
        discrete: False.

    Raises:
        RunError: the task does not exist.
    """

    def __init__(self, task: str, action_repeat: int) -> None:
        try:
            domain, name = DOMAIN_AND_TASK[check_suite_task(task)]
        except ValueError as error:
            raise RunError(str(error)) from error
        self._env: Any = load_task(domain, name)
        self._action_repeat = action_repeat
        self._steps = 0  # Of the episode, in the simulator's control steps.
        spec = self._env.action_spec()
        self._center = (spec.maximum + spec.minimum) / 2
        self._half_width = (spec.maximum - spec.minimum) / 2
        self.task = task
        self.action_size = int(spec.shape[0])
        self.observation_dtype: type[np.generic] = np.float64
        self.discrete = False
        self.observation_size = sum(int(np.prod(part.shape)) for part in self._env.observation_spec().values())
        self.observation_shape: tuple[int, ...] = (self.observation_size,)
        self.frames = 1

    def seed(self, sequence: np.random.SeedSequence) -> None:
        """Seeds the random generator; takes effect at the next reset."""
        self._env.task.random.seed(sequence.generate_state(8))

    def reset(self) -> NDArray[np.float64]:
        """Begins an episode and returns its first observation, flat."""
        self._steps = 0
        return _observation_vector(self._env.reset().observation)

    def step(self, action: NDArray[np.floating[Any]]) -> Transition:
        """Repeats an action.

        Args:
            action: (action_size,), finite, in [-1, 1]; mapped linearly to the task's range.

        Raises:
            RunError: the simulation has become unstable.
        """
        env, task, physics = self._env, self._env.task, self._env.physics
        scaled = self._center + self._half_width * action.astype(np.float64)
        reward = 0.0
        discount: float | None = None
        try:
            # The steps of dm_control.rl.control.Environment.step, without observations between repeats, and with one
            # check of the simulator's warnings for all of them.
            with physics.check_invalid_state():
                for _ in range(self._action_repeat):
                    task.before_step(scaled, physics)
                    physics._step_with_up_to_date_position_velocity(env._n_sub_steps)  # noqa: SLF001
                    task.after_step(physics)
                    reward += float(task.get_reward(physics))
                    self._steps += 1
                    in_time = self._steps < env._step_limit  # noqa: SLF001
                    # None while the episode continues; a time limit ends the episode, but not the return.
                    discount = task.get_termination(physics) if in_time else 1.0
                    if discount is not None:
                        break
        except PhysicsError as error:
            raise RunError(f"the simulation of {self.task} became unstable: {error}") from error
        observation = _observation_vector(task.get_observation(physics))
        return Transition(observation, reward, 1.0 if discount is None else float(discount), discount is not None)

    def physics(self) -> tuple[Any, Any]:
        """Returns the MuJoCo model and its data, only for reading."""
        physics = self._env.physics
        return physics.model.ptr, physics.data.ptr

    def random_state(self) -> dict[str, Any]:
        """Returns the state of the random generator as plain values; meaningful between episodes."""
        _, keys, position, has_gauss, cached = self._env.task.random.get_state()
        return {"keys": keys.tolist(), "position": position, "has_gauss": has_gauss, "cached": cached}

    def set_random_state(self, state: Mapping[str, Any]) -> None:
        """Restores the state that :meth:`random_state` returned."""
        keys = np.asarray(state["keys"], dtype=np.uint32)
        self._env.task.random.set_state(("MT19937", keys, state["position"], state["has_gauss"], state["cached"]))


def _observation_vector(observation: Mapping[str, Any]) -> NDArray[np.float64]:
    return np.concatenate([np.ravel(part) for part in observation.values()]).astype(np.float64, copy=False)


def load_task(domain: str, task: str) -> Any:
    """Returns a task of the suite, bit for bit the same as ``dm_control.suite.load``."""
    return _domain(domain).SUITE[task](random=0)


@cache
def _domain(name: str) -> Any:
    """Loads a separate copy of a domain's module with faster rewards and models; the suite itself is unchanged."""
    _import_suite()
    spec = find_spec(f"dm_control.suite.{name}")
    assert spec is not None
    assert spec.loader is not None
    module: Any = module_from_spec(spec)
    spec.loader.exec_module(module)  # Not in ``sys.modules``: other code imports the suite's own.
    if hasattr(module, "rewards"):
        module.rewards = SimpleNamespace(tolerance=tolerance)
    # ``Physics.from_xml_string`` compiles each description once (45 ms), and then copies the model (2 ms).
    from dm_control.mujoco.wrapper import MjModel  # noqa: PLC0415  imported by now

    models: dict[Any, Any] = {}  # Only by the description: the files that it names belong to the suite.

    def from_xml_string(xml_string: Any, assets: Any = None) -> Any:
        if xml_string not in models:
            models[xml_string] = MjModel.from_xml_string(xml_string, assets=assets)
        return module.Physics.from_model(copy(models[xml_string]))

    module.Physics.from_xml_string = staticmethod(from_xml_string)
    return module


def _import_suite() -> None:
    """Imports the suite without a search for a renderer, which costs time, or fails on machines without a display.

    Pixels are rendered by ``roundoff.agents.environments.pixels`` instead, which respects the user's settings.
    """
    backend = os.environ.get("MUJOCO_GL")
    os.environ["MUJOCO_GL"] = "disabled"
    try:
        from dm_control import suite  # noqa: F401, PLC0415  takes a second
    finally:
        if backend is None:
            del os.environ["MUJOCO_GL"]
        else:
            os.environ["MUJOCO_GL"] = backend


def tolerance(
    x: Any,
    bounds: tuple[float, float] = (0.0, 0.0),
    margin: float = 0.0,
    sigmoid: str = "gaussian",
    value_at_margin: float = 0.1,
) -> Any:
    """Computes the same as ``dm_control.utils.rewards.tolerance``, faster.

    It is 1 within the bounds, and ``value_at_margin`` where ``x`` is ``margin`` away from them. For a number, or an
    array of one, of float64, the commonest cases of the suite's rewards are computed without arrays: within the
    bounds, and by three formulas. The suite computes everything else.

    Args:
        x: a number or an array.
        bounds: lower and upper.
        margin: the distance from the bounds where the value has fallen to ``value_at_margin``; at 0 it is 0 outside.
        sigmoid: the suite's name of the formula by which the value falls.
        value_at_margin: see above.

    Returns:
        float for a number, else an array like ``x``. For NaN the same as the suite: NaN or 0, by the formula.
    """
    lower, upper = bounds
    is_number = isinstance(x, float)
    is_single = is_number or (isinstance(x, np.ndarray) and x.size == 1 and x.dtype == np.float64)
    if not is_single or lower > upper or margin < 0:  # The suite raises for such bounds and margins.
        return rewards.tolerance(x, bounds, margin, sigmoid, value_at_margin)
    number = x if is_number else x.item()
    if lower <= number <= upper:
        value: Any = 1.0
    elif margin == 0:
        value = 0.0
    else:
        distance = np.float64((lower - number if number < lower else number - upper) / margin)
        if sigmoid in _SCALES:
            value = _sigmoid_at(distance * _tolerance_scale(sigmoid, value_at_margin), sigmoid, is_number=is_number)
        else:
            distances = distance if is_number else np.array(distance, ndmin=x.ndim)
            value = rewards._sigmoids(distances, value_at_margin, sigmoid)  # noqa: SLF001  its version is fixed
    return float(value) if is_number else np.array(value, ndmin=x.ndim)


@cache
def _tolerance_scale(sigmoid: str, value: float) -> np.float64:
    rewards._sigmoids(0.0, value, sigmoid)  # noqa: SLF001  raises for values outside of the formula's range
    return _SCALES[sigmoid](value)


def _sigmoid_at(x: np.float64, sigmoid: str, *, is_number: bool) -> float:
    if sigmoid == "linear":
        return 1 - x if abs(x) < 1 else 0.0
    square = x**2 if is_number else x * x  # The bits differ: NumPy calls pow for a number, and multiplies arrays.
    if sigmoid == "quadratic":
        return 1 - square if abs(x) < 1 else 0.0
    gaussian: float = np.exp(-0.5 * square)
    return gaussian
