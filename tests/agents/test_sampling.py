"""The sampler can be saved after any step, also where one under way has ended an episode."""

import numpy as np
import odd_environments  # noqa: F401  what the program itself has imported may be used
import pytest

from roundoff.agents.environments.parallel import VectorEnvironment
from roundoff.agents.experience.sampling import LocalSampler, NotFinite

ACTIONS = np.random.default_rng(0).uniform(-1, 1, (60, 2, 2))


def sampler(seed):
    environments = VectorEnvironment({"task": "gym:odd_environments:Walk-v0", "action_repeat": 1}, (2, 2), (True, True))
    for i, group in enumerate(environments.groups):
        group.seed([np.random.SeedSequence((seed, i, j)) for j in range(2)])
    return LocalSampler(environments.groups)


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


def test_the_next_sample_is_that_of_acting_and_an_action_that_is_not_finite_is_not_taken():
    one, other = sampler(3), sampler(3)
    one.begin(), other.begin()
    asked = []
    for actions in ACTIONS[:20]:
        turn, first, under_way = one.turn, one.first, one.under_way
        expected = plain(one.act(actions))
        found = other.next(lambda *of, actions=actions: asked.append(of) or actions, lambda _: False)
        assert plain(found) == expected
        assert asked[-1] == (turn, first, under_way)
    before = other.under_way
    with pytest.raises(NotFinite):
        other.next(lambda *_: np.full((2, 2), np.inf), lambda _: False)
    assert other.under_way == before == 2
    assert plain(other.next(None, lambda under_way: under_way == 2)) == plain(one.wait())
