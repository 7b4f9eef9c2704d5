"""Tasks that pay 1 at every step and never end: all values are 1 / (1 - discount), whatever the agent does.

``gym:bench.constant_reward:Discrete-v0`` takes one of two actions, ``Single-v0`` has one alone, and ``Box-v0`` takes
a number. Observations are random. The time limit of 50 steps is a truncation, beyond which values go on.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np


class ConstantReward(gymnasium.Env[np.ndarray, Any]):
    """Two random numbers as an observation, and a reward of 1."""

    def __init__(self, actions: gymnasium.spaces.Space[Any]) -> None:
        self.observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
        self.action_space = actions

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """A first observation."""
        super().reset(seed=seed, options=options)
        return self._observation(), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:  # noqa: ARG002
        """The next observation, and 1."""
        return self._observation(), 1.0, False, False, {}

    def _observation(self) -> np.ndarray:
        return self.np_random.uniform(-1, 1, 2).astype(np.float32)


ACTIONS = {
    "Single": gymnasium.spaces.Discrete(1),
    "Discrete": gymnasium.spaces.Discrete(2),
    "Box": gymnasium.spaces.Box(-1, 1, (1,), np.float32),
}
for name, space in ACTIONS.items():
    gymnasium.register(f"{name}-v0", lambda space=space: ConstantReward(space), max_episode_steps=50)
