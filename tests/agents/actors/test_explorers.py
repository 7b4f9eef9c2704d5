"""What a config may say of actors; how they explore, and how far they are from the learner."""

import math

import numpy as np
import pytest
import torch
from actor_runs import LOCKSTEP, config_of
from pydantic import ValidationError

from roundoff.agents import TrainConfig
from roundoff.agents.algorithms.dqn.exploration import EpsilonGreedy
from roundoff.agents.algorithms.explorer import GaussianExplorer, explorer_of


@pytest.mark.parametrize(
    ("actors", "keys", "told"),
    [
        ({"pull_every": 0}, {}, "actors.pull_every must be greater than or equal to 1, got 0"),
        ({"count": 0}, {}, "actors.count must be greater than or equal to 1, got 0"),
        ({"engine": "tf"}, {}, "actors.engine must be 'simulated' or 'onnxruntime', got 'tf'"),
        (
            {"engine": "onnxruntime", "format": "e4m3"},
            {},
            "engine: onnxruntime computes in fp32 or int8 or int8_ax0, got format",
        ),
        ({"format": "posit7x"}, {}, "posit7x"),
        ({"pull": 3}, {}, "actors has no key pull; allowed are count, format,"),
        ({1: 3}, {}, "the keys of actors are names"),
        ({"count": 4}, {"environments": 6}, "allowed are divisors of environments"),
        ({}, {"learners": 2}, "actors serve one learner, got learners: 2"),
        ({}, {"random_start": 3}, "random_start: 3 is for environments that step together"),
        ({"samples_per_insert": 16}, {"training_intensity": 8.0}, "leave one of them out"),
        ({}, {"algorithm": "ppo"}, "actors is a key of "),
    ],
)
def test_a_mistake_is_told_in_one_message(actors, keys, told):
    keys = {"algorithm": "dqn", **keys}
    with pytest.raises(ValidationError) as error:
        TrainConfig(actors=actors, **keys)
    (found,) = error.value.errors()
    assert told in found["msg"]


def test_what_actors_say_of_other_keys():
    config = TrainConfig(algorithm="dqn", actors={"count": 3, "samples_per_insert": 16, "format": "fp16"})
    assert (config.environments, config.training_intensity, config.actors.format) == (3, 16.0, "e5m10")
    assert config.updates_in(1000) == 500  # 16 / 32 of a batch
    assert TrainConfig(**config.as_json()) == config
    assert TrainConfig(algorithm="dqn", actors={}, environments=8).environments == 8
    assert "actors" not in TrainConfig(algorithm="dqn").as_json()  # runs from before keep their names


def test_divergence_of_boltzmann_policies_is_the_definition():
    random = np.random.default_rng(0)
    p, q = random.normal(size=(2, 7, 3)) * 3
    explorer = EpsilonGreedy(config_of(LOCKSTEP), 1, 0, ())
    softmax = [np.exp(x) / np.exp(x).sum(1, keepdims=True) for x in (p, q)]
    want = (softmax[0] * np.log(softmax[0] / softmax[1])).sum(1).mean()
    assert explorer.divergence(torch.tensor(p), torch.tensor(q)) == pytest.approx(want, rel=1e-12)
    assert explorer.divergence(torch.tensor(p), torch.tensor(p)) == 0


def test_divergence_of_gaussians_is_the_squared_distance_over_twice_the_variance():
    learners, own = torch.tensor([[0.5, -0.25], [0.0, 1.0]]), torch.tensor([[0.25, 0.25], [0.0, 0.0]])
    one = GaussianExplorer(torch.tensor([[0.125]]), 0, ())
    assert one.divergence(learners, own) == pytest.approx((0.0625 + 0.25 + 1) / 2 / (2 * 0.125**2))
    two = GaussianExplorer(torch.tensor([[0.0], [0.125]]), 0, ())  # the first state is of one without noise
    assert two.divergence(learners, own) == pytest.approx(1 / (2 * 0.125**2))
    assert math.isnan(GaussianExplorer(torch.tensor([[0.0]]), 0, ()).divergence(learners, own))


def test_noise_is_spread_over_the_actors_of_d4pg_and_the_same_for_those_of_td3():
    keys = {"task": "gym:Pendulum-v1", "actors": {"count": 3}, "environments": 6}
    d4pg = TrainConfig(algorithm="d4pg", exploration_noise_min=0.0, **keys)
    found = torch.cat([explorer_of(d4pg, rank).deviations for rank in range(3)])
    assert found.flatten().tolist() == pytest.approx([0, 0.04, 0.08, 0.12, 0.16, 0.2])
    td3 = TrainConfig(algorithm="td3", exploration_noise=0.3, **keys)
    assert explorer_of(td3, 2).deviations.flatten().tolist() == pytest.approx([0.3, 0.3])


def test_noise_has_the_deviation_of_its_environment():
    explorer = GaussianExplorer(torch.tensor([[0.0], [0.1]]), 0, ())
    drawn = torch.stack([explorer.act(torch.zeros(2, 50)) for _ in range(400)])
    assert float(drawn[:, 0].abs().max()) == 0
    assert float(drawn[:, 1].std()) == pytest.approx(0.1, rel=0.03)
    assert explorer.act(torch.ones(2, 50)).max() == 1


def test_a_categorical_head_is_compared_by_its_means():
    config = config_of(LOCKSTEP, atoms=5, v_min=-2.0, v_max=2.0)
    logits = torch.randn(3, 2 * 5, generator=torch.Generator().manual_seed(0))
    p = logits.double().numpy().reshape(3, 2, 5)
    p = np.exp(p) / np.exp(p).sum(2, keepdims=True)
    found = EpsilonGreedy(config, 1, 0, ()).basis(logits, torch.zeros(3, 2))
    np.testing.assert_allclose(found, (p * np.linspace(-2, 2, 5)).sum(2), rtol=1e-5, atol=1e-6)


def test_an_actor_never_hides_a_value_that_is_not_a_number():
    explorer = EpsilonGreedy(config_of(LOCKSTEP, exploration_start=1.0, exploration_end=1.0), 1, 0, ())
    assert explorer.act(torch.full((1, 2), math.nan)).isnan().all()
    assert GaussianExplorer(torch.tensor([[0.1]]), 0, ()).act(torch.tensor([[math.nan]])).isnan().all()


def test_actors_share_the_schedule_of_random_actions():
    keys = {"exploration_start": 1.0, "exploration_end": 0.0, "exploration_steps": 400}
    explorer = EpsilonGreedy(config_of({"count": 4}, **keys), 4, 0, (1, 0))
    best = torch.tensor([[1.0, 0.0]])
    chosen = [int(explorer.act(best).argmax()) for _ in range(200)]
    assert sum(chosen[:100]) > 10  # half of the random ones, of which there are fewer and fewer
    assert sum(chosen[100:]) == 0  # 4 x 100 steps have passed


@pytest.mark.parametrize(
    "keys",
    [
        {"algorithm": "dqn", "seed_steps": 0, "exploration_end": 0.0, "exploration_steps": 99},
        {"algorithm": "td3", "task": "gym:Pendulum-v1"},
    ],
    ids=["random actions", "noise"],
)
def test_an_explorer_goes_on_as_it_was_saved(keys):
    config = TrainConfig(**keys, actors={"count": 2})
    one, other = (explorer_of(config, 0) for _ in range(2))
    best = torch.tensor([[1.0, 0.0]])
    for _ in range(40):
        one.act(best)
    other.load_state_dict(one.state_dict())
    assert torch.equal(*(torch.cat([explorer.act(best) for _ in range(50)]) for explorer in (one, other)))
