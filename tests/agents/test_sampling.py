"""The sampler can be saved after any step, also where one under way has ended an episode."""

import numpy as np
import odd_environments  # noqa: F401  what the program itself has imported may be used

from roundoff.agents.environments.parallel import VectorEnvironment
from roundoff.agents.experience.sampling import Sampler

ACTIONS = np.random.default_rng(0).uniform(-1, 1, (60, 2, 2))


def sampler(seed):
    environments = VectorEnvironment({"task": "gym:odd_environments:Walk-v0", "action_repeat": 1}, (2, 2), (True, True))
    for i, group in enumerate(environments.groups):
        group.seed([np.random.SeedSequence((seed, i, j)) for j in range(2)])
    return Sampler(environments.groups)


def plain(sample):
    return sample and (sample.group, sample.returns.tolist(), [part.tolist() for part in sample.steps])


def test_saved_after_any_step_it_continues_identically():
    one = sampler(3)
    one.begin()
    states, seen = [], []
    for actions in ACTIONS:
        states.append(one.state_dict())
        seen.append(plain(one.act(actions)))
    for i, state in enumerate(states[:-6]):
        other = sampler(4)
        other.load_state_dict(state)
        assert [plain(other.act(ACTIONS[i + k])) for k in range(6)] == seen[i : i + 6]
