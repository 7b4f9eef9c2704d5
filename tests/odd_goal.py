"""A task that is learned in seconds: actions should be the goal that the observation shows."""

import gymnasium
import numpy as np


class Goal(gymnasium.Env):
    """Episodes of 20 steps; the reward is 1 minus the squared distance of the action from the goal."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float64)
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float64)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.goal = self._draw()
        return self.goal, {}

    def step(self, action):
        reward = 1.0 - float((action[0] - self.goal[0]) ** 2)
        self.goal = self._draw()
        return self.goal, reward, False, False, {}

    def _draw(self):
        return self.np_random.uniform(-0.8, 0.8, 1)


gymnasium.register("Goal-v0", Goal, max_episode_steps=20)
