"""Control tasks with images as observations: the DeepMind control suite, rendered, the last images stacked."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from .control_suite import Environment
from .episodes import Transition
from .renderer import Renderer

# Camera 0 shows the whole of every task, except of these, as in DrQ.
_CAMERAS = {"quadruped": 2}


@final
class PixelEnvironment:
    """One task of the suite, seen through a camera; actions and everything else as in ``Environment``.

    An observation is the newest image and the images of the agent steps before it, old to new:
    (3 frames, size, size), uint8. At the beginning of an episode the first image replaces earlier ones.

    Args:
        task: ``<domain>_<task>``.
        action_repeat: how often each action is repeated; an image is made after the last time.
        size: height and width of an image.
        frames: images of an observation.
        fast: see :class:`~roundoff.agents.environments.renderer.Renderer`.

    Attributes:
        action_size: the number of elements in an action.
        discrete: False.
        observation_size: the number of elements in an observation, 9 size^2 for three frames.
        observation_shape: (3 frames, size, size).
        frames: images of an observation.
        observation_dtype: the dtype of an observation.

    Raises:
        RunError: the task does not exist, or the renderer is missing.
    """

    def __init__(self, task: str, action_repeat: int, *, size: int, frames: int, fast: bool) -> None:
        self._environment = Environment(task, action_repeat)
        self.action_size = self._environment.action_size
        self.discrete = False
        self.observation_size = 3 * frames * size * size
        self.observation_shape: tuple[int, ...] = (3 * frames, size, size)
        self.observation_dtype: type[np.generic] = np.uint8
        self.frames = frames
        self._size, self._fast = size, fast
        self._camera = _CAMERAS.get(task.partition("_")[0], 0)
        self._images: deque[NDArray[np.uint8]] = deque(maxlen=frames)
        self._rendered: Any = None
        self._look()  # no renderer is an error now, not after the seed steps

    def seed(self, sequence: np.random.SeedSequence) -> None:
        """Seeds the random generator; takes effect at the next reset."""
        self._environment.seed(sequence)

    def reset(self) -> NDArray[np.uint8]:
        """Begins an episode and returns its first observation."""
        self._environment.reset()
        self._images.extend([self._look()] * (self._images.maxlen or 0))
        return self._observation()

    def step(self, action: NDArray[np.floating[Any]]) -> Transition:
        """Repeats an action; see ``Environment.step``."""
        transition = self._environment.step(action)
        self._images.append(self._look())
        return Transition(self._observation(), transition.reward, transition.discount, transition.last)

    def random_state(self) -> dict[str, Any]:
        """The state of the random generator as plain values; meaningful between episodes."""
        return self._environment.random_state()

    def set_random_state(self, state: Mapping[str, Any]) -> None:
        """Restores the state that :meth:`random_state` returned."""
        self._environment.set_random_state(state)

    def _look(self) -> NDArray[np.uint8]:
        model, data = self._environment.physics()
        if self._rendered is not model:  # a task may build its model anew at a reset
            self._renderer = Renderer(model, data, size=self._size, camera=self._camera, fast=self._fast)
            self._rendered = model
        return self._renderer.render()

    def _observation(self) -> NDArray[np.uint8]:
        return np.concatenate(self._images)
