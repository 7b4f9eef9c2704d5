"""What the framework does for every algorithm: it numbers random bits by name, and binds what derives from tensors."""

import numpy as np
import pytest
import torch

from roundoff.agents import TrainConfig
from roundoff.agents.algorithms.part import Part
from roundoff.agents.algorithms.td3.agent import TD3
from roundoff.agents.run.parts import make_learner
from roundoff.agents.sizes import KnownSizes

CPU = torch.device("cpu")
SMALL = {"format": "e5m10", "policy": {"rounding": "stochastic"}, "hidden_units": 8, "batch_size": 4}
SUITE = {"task": "pendulum_swingup", "seed_steps": 4, "replay_capacity": 100}
PIXELS = {**SUITE, "observations": "pixels", "image_size": 15, "filters": 2, "feature_size": 4}
# Where the random bits of each part begin, and those of each step. All bits of stochastic runs follow from these.
NUMBERED = {
    "sac": ({**SUITE}, {"critic": 1, "critic_step": 2, "actor": 3, "actor_step": 4, "temperature": 5, "target": 6}),
    "drq": (PIXELS, {"critic": 1, "critic_step": 2, "actor": 3, "actor_step": 4, "temperature": 5, "target": 6}),
    "td3": ({**SUITE}, {"critic": 1, "critic_step": 2, "actor": 3, "actor_step": 4, "targets": 5}),
    "d4pg": ({**SUITE}, {"critic": 1, "critic_step": 2, "actor": 3, "actor_step": 4, "targets": 5}),
    "dqn": ({"task": "gym:CartPole-v1", "seed_steps": 4}, {"critic": 1, "critic_step": 2, "targets": 5}),
    "ppo": ({"task": "pendulum_swingup", "horizon": 4}, {"actor": 1, "actor_step": 2}),
    "a2c": ({"task": "gym:CartPole-v1", "horizon": 4, "environments": 1}, {"actor": 1, "actor_step": 2}),
}


def learner_of(algorithm, **keys):
    config = TrainConfig(algorithm=algorithm, **{**SMALL, **keys})
    shape = (9, 15, 15) if algorithm == "drq" else (3,)
    kind = np.uint8 if algorithm == "drq" else np.float32
    sizes = KnownSizes(int(np.prod(shape)), shape, kind, 3 if algorithm == "drq" else 1, 2, algorithm in ("dqn", "a2c"))
    return make_learner(config, sizes, CPU)[0]


@pytest.mark.parametrize("algorithm", NUMBERED)
def test_random_bits_are_numbered_by_their_names(algorithm):
    keys, expected = NUMBERED[algorithm]
    learner = learner_of(algorithm, **keys)
    learner.updates = 7
    found = {}

    def draws_again(learner):
        for name in learner.draws:
            if name.startswith(part.name) or name == "temperature":
                learner.draw(name)
                found[name] = learner.simulation.step - 8 * 7
        return {}

    for part in learner.parts:
        learner.begin_part(part)
        assert learner.simulation.step == 8 * 7 + expected[part.name]
        learner.compute(Part(part.name, draws_again, batch=False), ())
    assert found == expected


def test_a_part_that_is_called_by_itself_draws_the_bits_of_the_names():
    learner = learner_of("td3", **SUITE)
    learner.updates = 7
    learner.begin_part(learner.parts[-1])
    learner.compute(Part("targets", lambda _: {}, batch=False), ())
    learner.draw("critic_step")
    assert learner.simulation.step == 8 * 7 + 2


def test_actions_that_are_looked_at_have_random_bits_by_their_number_and_the_updates():
    learner, places = learner_of("td3", **SUITE), []
    for learner.updates in (0, 7):
        for number in (0, 1):
            learner.act(torch.zeros(1, 3), deterministic=True, number=number)
            places.append(learner.simulation.step)
    assert len(set(places)) == 4
    assert min(places) >= 1 << 31  # those of training are before


def test_a_name_that_was_not_declared_has_no_random_bits():
    learner = learner_of("td3", **SUITE)
    with pytest.raises(AssertionError, match=r"TD3\.draws has no exploration"):
        learner.draw("exploration")


def test_what_derives_from_tensors_is_bound_once_the_constructor_is_through():
    class Late(TD3.__mro__[1]):
        bound = 0

        def __init__(self, config):
            super().__init__(3, 2, config, CPU, actor_widths=[8], critics=2, outputs=1)
            assert not self.bound
            self.last = 5

        def bind(self):
            super().bind()
            assert self.last == 5
            self.bound += 1

        sample_actions = actor_objective = None

    learner = Late(TrainConfig(algorithm="td3", **SMALL, **SUITE))
    assert learner.bound == 1
    views = learner.target["critic"]
    assert (
        views[0].untyped_storage().data_ptr() == learner.averages["target_critic"].average.untyped_storage().data_ptr()
    )
