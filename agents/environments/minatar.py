"""MinAtar: five small games with planes of 0 and 1 as observations. The package is the user's to install."""

from __future__ import annotations

import logging
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from ..errors import RunError
from .episodes import SeededEpisodes, Transition
from .tasks import Task, check_game

_silenced = logging.root.manager.disable
logging.disable(logging.WARNING)  # MinAtar warns that packages for drawing are missing, which are not needed here.
try:
    from minatar import Environment
finally:
    logging.disable(_silenced)

MOST_STEPS = 5000
"""The most steps of an episode. MinAtar limits only freeway; an evaluation of other games might never end."""


@final
class MinAtarEnvironment(SeededEpisodes):
    """One game with the package's defaults: sticky actions (0.1), difficulty that rises.

    Actions are only the ones with an effect in the game (its minimal set); all others would do nothing. A terminal
    state of the package ends the return (discount 0); a time limit does not (discount 1).

    Args:
        task: ``minatar:<game>``.
        action_repeat: how often each action is repeated (less at the end of an episode).

    Attributes:
        observation_size: the number of elements in an observation.
        observation_shape: (planes, 10, 10).
        observation_dtype: bool.
        frames: 1.
        action_size: the number of actions.
        discrete: True.

    Raises:
        RunError: the game does not exist.

    Source:
        Young and Tian, "MinAtar: An Atari-Inspired Testbed for Thorough and Reproducible Reinforcement Learning
        Experiments".
    """

    def __init__(self, task: str, action_repeat: int) -> None:
        super().__init__()
        try:
            name = Task.parse(check_game(task)).name
        except ValueError as error:
            raise RunError(str(error)) from error
        self._game: Any = Environment(name)
        self._actions: list[int] = self._game.minimal_action_set()
        self._action_repeat = action_repeat
        self._steps = 0  # Of the episode.
        height, width, planes = self._game.state_shape()
        self.observation_shape: tuple[int, ...] = (planes, height, width)
        self.observation_size = planes * height * width
        self.observation_dtype: type[np.generic] = np.bool_
        self.frames = 1
        self.action_size = len(self._actions)
        self.discrete = True

    def reset(self) -> NDArray[np.bool_]:
        """Begins an episode and returns its first observation."""
        self._game.seed(self._next_seed())
        self._game.reset()
        self._game.last_action = 0  # A sticky action may repeat it, and the package's reset keeps it.
        self._steps = 0
        return self._observation()

    def step(self, action: NDArray[np.floating[Any]]) -> Transition:
        """Repeats the action in the place of the largest number of (action_size,)."""
        code = self._actions[int(action.argmax())]
        total, terminal, late = 0.0, False, False
        for _ in range(self._action_repeat):
            reward, terminal = self._game.act(code)
            total += float(reward)
            self._steps += 1
            late = self._steps >= MOST_STEPS
            if terminal or late:
                break
        return Transition(self._observation(), total, float(not terminal), bool(terminal or late))

    def _observation(self) -> NDArray[np.bool_]:
        return np.ascontiguousarray(self._game.state().transpose(2, 0, 1), dtype=np.bool_)
