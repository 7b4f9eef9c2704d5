"""The interface of an environment; checking the name of a task, and opening its environment."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from roundoff.extras import from_extras, require

from .tasks import PACKAGES, Task, TaskKind, check_game, check_suite_task

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from .episodes import Transition


class TaskEnvironment(Protocol):
    """One task: observations, actions, and episodes that follow from a random state.

    At the beginning of an episode everything in it depends on :meth:`random_state` and on the actions that follow.

    Attributes:
        observation_size: the number of elements in an observation.
        observation_shape: the shape of observations: (n,), or (planes, height, width) of images.
        observation_dtype: the dtype of observations: ``float64``; ``uint8`` of images, where the brightest is 255;
            ``bool`` of planes of 0 and 1.
        frames: the number of images in an observation, old to new; 1 without images.
        action_size: the number of elements in an action; for discrete actions, the number of actions.
        discrete: whether an action is one of several, given as a row of zeros with a one in its place; else it is
            numbers in [-1, 1].
    """

    observation_size: int
    observation_shape: tuple[int, ...]
    observation_dtype: type[np.generic]
    frames: int
    action_size: int
    discrete: bool

    def seed(self, sequence: np.random.SeedSequence) -> None:
        """Seeds the random generator; takes effect at the next reset."""

    def reset(self) -> NDArray[Any]:
        """Begins an episode and returns its first observation."""

    def step(self, action: NDArray[np.floating[Any]]) -> Transition:
        """Repeats an action, (action_size,), finite; of a discrete one, the place of the largest number counts."""

    def random_state(self) -> dict[str, Any]:
        """Returns the state of the random generator as plain values; meaningful between episodes."""

    def set_random_state(self, state: Mapping[str, Any]) -> None:
        """Restores the state that :meth:`random_state` returned."""


def check_task(name: str) -> str:
    """Returns ``name`` if it is a task; imports nothing that it names.

    Args:
        name: ``<domain>_<task>`` of the DeepMind control suite, as in ``cartpole_swingup``; ``gym:<id>`` of a
            Gymnasium environment, as in ``gym:Pendulum-v1``; ``minatar:<game>``; or ``atari:<Game>``.
            ``gym:<module>:<id>`` and games of Atari are checked when they are opened (``open_environment``).

    Raises:
        ValueError: the task does not exist; the message names the nearest ones.
    """
    kind, short, module = Task.parse(name)
    if kind is TaskKind.SUITE:
        return check_suite_task(name)
    if kind is not TaskKind.GYMNASIUM:
        return check_game(name)
    if ":" not in short:  # An id of Gymnasium's registry, without a module.
        # Makes the environment once to see its spaces; only users of Gymnasium import it.
        with from_extras():
            from .gymnasium import check_gymnasium_task  # noqa: PLC0415

        return check_gymnasium_task(name)
    if module is None:
        raise ValueError(
            f'unknown task "{name}"; the id of an environment that a module registers is written'
            f" {kind}<module>:<id>, as in {kind}my_package:Mine-v0"
        )
    return name


def has_discrete_actions(task: str) -> bool | None:
    """Whether an action of a task is one of several; None if that is unknown before the task is opened."""
    kind, _, module = Task.parse(task)
    if kind is not TaskKind.GYMNASIUM:
        return kind is not TaskKind.SUITE  # Actions of games are discrete.
    if module:  # It must not be imported yet.
        return None
    from . import gymnasium  # noqa: PLC0415  costs seconds

    return gymnasium.has_discrete_actions(task)


def check_task_imports(task: str, allow_imports: Collection[str]) -> bool | None:
    """Checks whether the imports of a task are installed and allowed.

    Returns:
        Whether the actions of a task with an imported module are discrete; None: nothing was imported to check.

    Raises:
        MissingExtraError: a package is not installed.
        ValueError: the task's own module is not allowed, or its environment is not one to train in.
    """
    kind, _, module = Task.parse(task)
    require(PACKAGES[kind], "tensorboard")  # Every run writes curves.
    if kind is TaskKind.ATARI:
        from .atari import check_atari_task  # noqa: PLC0415  the package may be missing

        check_atari_task(task)
    if module is None:
        return None
    from . import gymnasium  # noqa: PLC0415  costs seconds

    gymnasium.check_gymnasium_task(task, allow_imports)
    return gymnasium.has_discrete_actions(task)


def open_environment(
    task: str, action_repeat: int, pixels: Mapping[str, Any] | None = None, allow_imports: Collection[str] = ()
) -> TaskEnvironment:
    """Opens the environment of a task.

    Args:
        task: ``<domain>_<task>`` of the DeepMind control suite, ``gym:<id>`` of Gymnasium, ``minatar:<game>`` or
            ``atari:<Game>``.
        action_repeat: how often each action is repeated (less at the end of an episode).
        pixels: ``size``, ``frames`` and ``fast`` of a :class:`PixelEnvironment`; None for states.
        allow_imports: modules that ``gym:<module>:<id>`` may import, or packages that hold them.

    Raises:
        MissingExtraError: the simulator is not installed.
        RunError: the task is unknown, no agent can train on it, its module is not allowed, or a renderer is missing.
    """
    with from_extras():  # Imports only the simulator of the task; planning and reading runs needs none.
        if pixels is not None:
            from .pixels import PixelEnvironment  # noqa: PLC0415

            return PixelEnvironment(task, action_repeat, **pixels)
        kind = Task.parse(task).kind
        if kind is TaskKind.GYMNASIUM:
            from .gymnasium import GymnasiumEnvironment  # noqa: PLC0415

            return GymnasiumEnvironment(task, action_repeat, allow_imports)
        if kind is TaskKind.MINATAR:
            from .minatar import MinAtarEnvironment  # noqa: PLC0415

            return MinAtarEnvironment(task, action_repeat)
        if kind is TaskKind.ATARI:
            from .atari import AtariEnvironment  # noqa: PLC0415

            return AtariEnvironment(task, action_repeat)
        from .control_suite import Environment  # noqa: PLC0415

        return Environment(task, action_repeat)
