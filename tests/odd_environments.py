"""Environments registered with Gymnasium for tests: a tiny one, and some that no agent can train on."""

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete


class Walk(gymnasium.Env):
    """A drift to be balanced; leaving [-1, 1] is terminal, so that episodes have many lengths."""

    observation_space = Box(-np.inf, np.inf, (2, 1), np.float64)
    action_space = Box(np.array([-1.0, 0.0], np.float32), np.array([3.0, 0.5], np.float32))

    def __init__(self, fault=None):
        self.fault = fault

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.state = self.np_random.uniform(-0.5, 0.5, (2, 1))
        self.actions = []
        return self.state.copy(), {}

    def step(self, action):
        assert self.action_space.contains(action), action
        self.actions.append(action)
        self.state += self.np_random.normal(0, 0.2, (2, 1)) + 0.02 * (np.ravel(action)[0] - 1)
        if self.fault == "raises" and len(self.actions) == 3:
            raise ZeroDivisionError("the third step")
        if self.fault == "nan" and len(self.actions) == 3:
            self.state[0] = np.nan
        return self.state.copy(), float(self.state[1, 0]), bool(abs(self.state[0, 0]) > 1), False, {}


class Spaces(Walk):
    """With other spaces."""

    def __init__(self, **spaces):
        super().__init__()
        for name, space in spaces.items():
            setattr(self, name, space)


def register(name, entry_point, **keys):
    gymnasium.register(name, entry_point, max_episode_steps=keys.pop("max_episode_steps", 20), kwargs=keys)


register("Walk-v0", Walk)
register("Raises-v0", Walk, fault="raises")
register("Nan-v0", Walk, fault="nan")
register("Endless-v0", Walk, max_episode_steps=None)
register("Unbounded-v0", Spaces, action_space=Box(-np.inf, np.inf, (1,)))
register("Integers-v0", Spaces, action_space=Box(0, 3, (1,), np.int64))
register("Named-v0", Spaces, observation_space=Dict({"x": Box(-1, 1)}))
register("Chosen-v0", Spaces, action_space=Discrete(3, start=4))
register("Several-v0", Spaces, action_space=MultiDiscrete([2, 3]))
