"""Games of Atari 2600, by the Arcade Learning Environment. The package, ale-py, is the user's to install."""

from __future__ import annotations

from collections import deque
from typing import Any, final

import numpy as np
from ale_py import ALEInterface, LoggerMode, roms
from numpy.typing import NDArray

from ..errors import RunError
from .episodes import SeededEpisodes, Transition
from .tasks import Task, TaskKind, check_game, unknown_task

MOST_STEPS = 27_000
"""The most steps of an episode: half an hour of play."""
_FRAMES = 4  # Images of an observation.
_SKIP = 4  # Frames of the game for which an action is held.
_MOST_NOOPS = 30  # Mnih et al., Extended Data Table 1.
_HEIGHT, _WIDTH = 104, 80


def check_atari_task(task: str) -> str:
    """Returns ``task``, ``atari:<Game>``, if ale-py has the game.

    Raises:
        ValueError: ale-py lacks the game; the message names the nearest ones.
    """
    known = [TaskKind.ATARI + game for game in _games()]
    if check_game(task) not in known:
        raise ValueError(unknown_task(task, known, f"allowed are {', '.join(known)}"))
    return task


@final
class AtariEnvironment(SeededEpisodes):
    """One game: four grey images, bytes, 104 x 80; an action holds for four frames.

    An image is the larger of the last two frames, pixel by pixel (sprites flicker), without the outermost rows, and
    every other pixel of the rest. An observation has the last four images, old to new; at the beginning the first
    replaces earlier ones. Every episode begins with 1 to 30 actions that do nothing, by its seed; the rest of the game
    is deterministic (no sticky actions). The loss of a life ends the return (discount 0), but not the episode; being
    out of time ends the episode, but not the return. Rewards are the game's score.

    Args:
        task: ``atari:<Game>``.
        action_repeat: how often the four frames of each action are repeated (less at the end of an episode).

    Attributes:
        observation_size: the number of elements in an observation.
        observation_shape: (4, 104, 80).
        observation_dtype: uint8.
        frames: 4.
        action_size: the number of actions with an effect in the game (its minimal set).
        discrete: True.

    Raises:
        RunError: the game does not exist.

    Source:
        Stooke, Abbeel, "Accelerated Methods for Deep Reinforcement Learning", Section 5 and Appendix A.1; all else
        as in Mnih et al., "Human-level control through deep reinforcement learning", Methods.
    """

    def __init__(self, task: str, action_repeat: int) -> None:
        super().__init__()
        try:
            rom = _games()[Task.parse(check_atari_task(task)).name]
        except ValueError as error:
            raise RunError(str(error)) from error
        ALEInterface.setLoggerMode(LoggerMode.Error)
        self._ale: Any = ALEInterface()
        self._ale.setFloat("repeat_action_probability", 0.0)
        self._ale.setInt("random_seed", 0)  # For the random state of a console that is switched on.
        self._ale.loadROM(roms.get_rom_path(rom))
        self._switched_on = self._ale.cloneSystemState()
        self._actions = self._ale.getMinimalActionSet()
        self._action_repeat = action_repeat
        self._steps = 0  # of the episode
        self._images: deque[NDArray[np.uint8]] = deque(maxlen=_FRAMES)
        self.observation_shape: tuple[int, ...] = (_FRAMES, _HEIGHT, _WIDTH)
        self.observation_size = _FRAMES * _HEIGHT * _WIDTH
        self.observation_dtype: type[np.generic] = np.uint8
        self.frames = _FRAMES
        self.action_size = len(self._actions)
        self.discrete = True

    def reset(self) -> NDArray[np.uint8]:
        """Begins an episode and returns its first observation."""
        count = int(np.random.default_rng(self._next_seed()).integers(1, _MOST_NOOPS + 1))
        # Without the system state, some games would keep their random state; without a reset, others their screen.
        self._ale.restoreSystemState(self._switched_on)
        self._ale.reset_game()
        for _ in range(count):
            self._ale.act(0)
            if self._ale.game_over():
                self._ale.reset_game()
        self._steps = 0
        self._images.extend([_image(self._ale.getScreenGrayscale())] * _FRAMES)
        return np.stack(self._images)

    def step(self, action: NDArray[np.floating[Any]]) -> Transition:
        """Repeats the action in the place of the largest number of (action_size,)."""
        code = self._actions[int(action.argmax())]
        lives, total, late = self._ale.lives(), 0.0, False
        for _ in range(self._action_repeat):
            for _ in range(_SKIP - 1):
                total += self._ale.act(code)
            before = self._ale.getScreenGrayscale()
            total += self._ale.act(code)
            self._images.append(_image(np.maximum(before, self._ale.getScreenGrayscale())))
            self._steps += 1
            late = self._steps >= MOST_STEPS
            if self._ale.game_over() or late:
                break
        over = self._ale.game_over()
        lost = self._ale.lives() < lives
        return Transition(np.stack(self._images), total, float(not (over or lost)), over or late)


def _games() -> dict[str, str]:
    """Returns ale-py's names of the games for one player, by our name, as in ``SpaceInvaders``: ``space_invaders``."""
    return {
        rom.title().replace("_", ""): rom
        for rom in sorted(roms.get_all_rom_ids())
        if rom not in {"combat", "joust", "maze_craze", "warlords"}  # Only for two players: ale-py ends the process.
    }


def _image(screen: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Returns every other pixel of the middle of a screen, (104, 80) of 160 columns and at least 210 rows."""
    top = (len(screen) - 2 * _HEIGHT) // 2
    return screen[top : top + 2 * _HEIGHT : 2, ::2]
