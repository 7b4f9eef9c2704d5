"""Noise as large as a rounding error, and weights for what actors did that the learner would not: by hand."""

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from scipy import stats

from roundoff.agents import TrainConfig
from roundoff.agents.acting.engines import SimulatedEngine
from roundoff.agents.acting.packed import PackedPolicy
from roundoff.agents.actors.actor import NoisyPolicy
from roundoff.agents.actors.chunks import PolicyChoice, Pull
from roundoff.agents.algorithms.dqn.exploration import EpsilonGreedy
from roundoff.agents.algorithms.explorer import GaussianExplorer
from roundoff.agents.environments.parallel import Steps
from roundoff.agents.experience.n_step import NStepIntake
from roundoff.agents.experience.prioritized import PrioritizedReplay
from roundoff.agents.experience.replay import Replay
from roundoff.agents.experience.sampling import Sample
from roundoff.agents.models.policy_layers import Activation, Decision, LinearLayer, PolicyLayers
from roundoff.formats import Format

CPU = torch.device("cpu")
FP64 = Format.parse("fp64")
TWO_STEPS = {"algorithm": "dqn", "task": "gym:CartPole-v1", "n_steps": 2}
OPTIONS = {"dtype": torch.float64, "device": CPU}


def config_of(actors, **keys):
    return TrainConfig(**{**TWO_STEPS, "actors": actors, **keys})


@pytest.mark.parametrize(
    ("actors", "keys", "told"),
    [
        ({"noise_of": "int4"}, {}, "set format: fp32 and engine: simulated, got format: int8 and engine: simulated"),
        ({"format": "fp32", "engine": "onnxruntime", "noise_of": "int4"}, {}, "format: fp32 and engine: onnxruntime"),
        ({"format": "fp32", "noise_of": "int99"}, {}, "int99"),
        ({"importance_weights": True}, {"n_steps": 1}, "transitions have one step; leave it out, or set n_steps"),
        ({"importance_weights": True}, {"algorithm": "td3", "task": "gym:Pendulum-v1", "n_steps": None}, "n_steps"),
    ],
)  # fmt: skip
def test_a_mistake_is_told_in_one_message(actors, keys, told):
    with pytest.raises(ValidationError) as caught:
        TrainConfig(
            **{key: value for key, value in {**TWO_STEPS, "actors": actors, **keys}.items() if value is not None}
        )
    assert len(caught.value.errors()) == 1
    assert told in str(caught.value)


# How likely the learner takes an actor's actions


def probability(action, mean, sigma):
    """How likely a clipped action of a Gaussian policy is: a density, or the probability of an end."""
    if abs(action) < 1:
        return stats.norm.pdf(action, mean, sigma)
    return stats.norm.cdf(-1, mean, sigma) if action < 0 else stats.norm.sf(1, mean, sigma)


def test_ratios_of_clipped_gaussians_are_those_of_their_densities():
    random = np.random.default_rng(0)
    sigmas = np.array([0.2, 0.05, 1.0])
    explorer = GaussianExplorer(torch.tensor(sigmas, dtype=torch.float32).unsqueeze(1), 0, ())
    sigmas = explorer.deviations.double().squeeze(1).numpy()
    cut = 0
    for _ in range(50):
        learners, own = random.uniform(-1, 1, (2, 3, 2))
        learners = own + 0.1 * (learners - own)
        actions = (own + sigmas[:, None] * random.normal(size=(3, 2))).clip(-1, 1)
        found = explorer.ratios(*map(torch.from_numpy, (actions, learners, own)), 0).numpy()
        for i, sigma in enumerate(sigmas):
            each = [
                probability(a, mean, sigma) / probability(a, other, sigma)
                for a, mean, other in zip(actions[i], learners[i], own[i], strict=True)
            ]
            assert found[i] == pytest.approx(min(1.0, np.prod(each)), rel=1e-9)
            cut += np.prod(each) > 1
    assert 20 < cut < 130


def test_environments_without_noise_have_no_ratios_and_far_policies_none_that_is_not_finite():
    explorer = GaussianExplorer(torch.tensor([[0.0], [1e-3]]), 0, ())
    actions, learners = torch.tensor([[0.5], [-1.0]]), torch.tensor([[0.1], [1.0]])
    assert explorer.ratios(actions, learners, actions, 0).tolist() == [1.0, 0.0]


def test_ratios_of_epsilon_greedy_policies_are_those_of_their_probabilities():
    config = config_of({"count": 2}, seed_steps=20, exploration_start=1.0, exploration_end=0.1, exploration_steps=100)
    explorer = EpsilonGreedy(config, 2, 0, ())
    learners = torch.tensor([[3.0, 1.0, 2.0]] * 3)
    own = torch.tensor([[0.0, 1.0, 0.5]] * 3)
    actions = torch.eye(3)
    steps = 10 + 25  # its own: the first 10 were random, and 25 of each of two actors are 50 of 100
    share = 1.0 + (0.1 - 1.0) * 0.5
    best, other = 1 - share + share / 3, share / 3
    found = explorer.ratios(actions, learners, own, steps)
    assert found.tolist() == pytest.approx([1.0, other / best, 1.0])  # the first is cut off
    alike = explorer.ratios(actions, learners, learners, steps)
    assert alike.tolist() == [1.0, 1.0, 1.0]


def test_without_random_actions_ratios_are_zero_or_one():
    config = config_of({"count": 1}, exploration_start=0.0, exploration_end=0.0)
    explorer = EpsilonGreedy(config, 1, 0, ())
    learners, own = torch.tensor([[1.0, 0.0], [1.0, 0.0]]), torch.tensor([[0.0, 1.0], [1.0, 0.0]])
    assert explorer.ratios(torch.tensor([[0.0, 1.0], [1.0, 0.0]]), learners, own, 10**6).tolist() == [0.0, 1.0]


# Weights of transitions


def play(intake, ratios, last=()):
    """Steps of one environment, one after the other, with their ratios; returns the weights of what was kept."""
    intake.begin(np.zeros(1))
    for t, ratio in enumerate(ratios):
        over = np.array([t in last])
        steps = Steps(np.full((1, 1), t + 1.0), np.ones(1), np.ones(1), over, np.full((1, 1), t + 1.0))
        sample = Sample(0, np.ones((1, 1)), steps, np.zeros(1), ratios=None if ratio is None else np.array([ratio]))
        (row,) = intake.rows(torch.full((1, 1), float(t), dtype=torch.float64), sample)
        intake.remember(row, sample, 0)
        state = intake.state_dict()
        intake.load_state_dict(state)
    kept = intake.replay.take(torch.arange(len(intake.replay)))
    return kept.weights.flatten().tolist(), kept.observations.flatten().tolist()


def test_the_weight_of_a_transition_is_the_product_of_all_ratios_but_the_first():
    replay = Replay(20, 1, 1, weighed=True, **OPTIONS)
    weights, begun = play(
        NStepIntake(replay, 3, 0.9, fmt=FP64, **OPTIONS), [0.5, 0.25, 0.75, None, 0.5, 1.0, 0.125], {5}
    )
    # 0 1 2 | 1 2 3 | 2 3 4 | the episode ends after step 5: 3 4 5, 4 5, 5 | then 6 alone has begun
    assert begun == [0, 1, 2, 3, 4, 5]
    assert weights == [0.25 * 0.75, 0.75, 0.5, 0.5, 1.0, 1.0]


def test_weights_are_numbers_of_the_format_and_rows_without_them_are_as_before():
    replay = Replay(20, 1, 1, weighed=True, **OPTIONS)
    weights, _ = play(NStepIntake(replay, 2, 0.9, fmt=Format.parse("e5m2"), **OPTIONS), [1.0, 0.3, 0.4])
    assert weights == [0.3125, 0.375]  # a tie to even
    plain = Replay(20, 1, 1, **OPTIONS)
    assert play(NStepIntake(plain, 2, 0.9, fmt=FP64, **OPTIONS), [None] * 3)[0] == []


def test_planes_of_bytes_keep_weights_too():
    replay = Replay(4, 2, 1, weighed=True, planes=True, **OPTIONS)
    row = torch.tensor([0.0, 1.0, 0.5, 1.0, 1.0, 2.0, 1.0, 0.25], dtype=torch.float64)
    replay.add(row)
    batch = replay.take(torch.tensor([0]))
    assert torch.equal(batch.rows[0], row)
    assert batch.weights.tolist() == [[0.25]]


def test_priorities_and_importance_weights_are_multiplied():
    kept = Replay(4, 1, 1, weighed=True, **OPTIONS)
    replay = PrioritizedReplay(kept, 1.0, additions=4, fmt=FP64)
    for i, weight in enumerate((1.0, 0.5, 0.25, 0.125)):
        kept.add(torch.tensor([i, 0.0, i, 0.0, 1.0, weight], dtype=torch.float64))
    replay._tree.set(np.arange(4), np.array([1.0, 2.0, 4.0, 8.0]))
    batch = replay.sample(64, torch.Generator().manual_seed(0))
    of_each = {int(row): float(weight) for row, weight in zip(batch.observations, batch.weights, strict=True)}
    assert set(of_each) == {0, 1, 2, 3}
    # 1 / P(i), by the largest of them, which is the first one's
    assert of_each == pytest.approx({0: 1.0, 1: 0.5 * 0.5, 2: 0.25 * 0.25, 3: 0.125 * 0.125})
    assert batch.rows.shape[1] == 6


# Noise of a format's size


def policy_of(decision, outputs):
    generator = torch.Generator().manual_seed(1)
    draw = lambda *shape: torch.randn(*shape, generator=generator)  # noqa: E731
    atoms = torch.linspace(-1, 1, 3) if decision is Decision.LARGEST_MEAN else None
    layers = (
        LinearLayer(draw(16, 4), draw(16), Activation.RELU),
        LinearLayer(draw(outputs, 16), draw(outputs), Activation.NONE),
    )
    return PolicyLayers((4,), (), (layers,), decision, outputs if atoms is None else outputs // 3, atoms=atoms)


@pytest.mark.parametrize(
    ("decision", "outputs"), [(Decision.TANH, 3), (Decision.TANH, 1), (Decision.LARGEST, 4), (Decision.LARGEST_MEAN, 6)]
)
def test_noise_is_as_large_as_the_error_of_the_format_and_points_elsewhere(decision, outputs):
    policy = policy_of(decision, outputs)
    message = PackedPolicy.of(policy, "fp32").to_bytes()
    rounded = SimulatedEngine(PackedPolicy.of(policy, "int4_ax0").to_bytes())
    exact = SimulatedEngine(message)
    noisy = NoisyPolicy(message, "int4_ax0", torch.Generator().manual_seed(0))
    states = np.random.default_rng(0).normal(size=(200, 4)).astype(np.float32)
    y, q = (engine.outputs_and_actions(states)[0].astype(np.float64) for engine in (exact, rounded))
    found, actions = noisy.outputs_and_actions(states)
    error, noise = q - y, found - y
    if decision is not Decision.TANH:
        of_parts = (-1, 2 if decision is Decision.LARGEST_MEAN else 1, 3 if decision is Decision.LARGEST_MEAN else 4)
        error = (error.reshape(of_parts) - error.reshape(of_parts).mean(2, keepdims=True)).reshape(error.shape)
        np.testing.assert_allclose(noise.reshape(of_parts).mean(2), 0, atol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(noise, axis=1), np.linalg.norm(error, axis=1), rtol=1e-3, atol=1e-5)
    assert np.linalg.norm(error, axis=1).mean() > 0.1
    cosine = (noise * error).sum(1) / np.linalg.norm(error, axis=1) ** 2
    assert abs(cosine.mean()) < 0.25  # of a random direction
    again = noisy.outputs_and_actions(states)[0]
    assert not np.allclose(again, found)
    np.testing.assert_array_equal(actions, exact.decided(torch.from_numpy(found)).numpy())


def test_a_format_that_errs_not_adds_no_noise_and_one_output_to_choose_from_has_none():
    policy = policy_of(Decision.TANH, 2)
    message = PackedPolicy.of(policy, "fp32").to_bytes()
    states = np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32)
    exact = SimulatedEngine(message).outputs_and_actions(states)
    same = NoisyPolicy(message, "fp32", torch.Generator().manual_seed(0)).outputs_and_actions(states)
    for a, b in zip(exact, same, strict=True):
        np.testing.assert_array_equal(a, b)
    single = PackedPolicy.of(policy_of(Decision.LARGEST, 1), "fp32").to_bytes()
    outputs, actions = NoisyPolicy(single, "int4", torch.Generator()).outputs_and_actions(states)
    assert np.isfinite(outputs).all()
    assert (actions == 1).all()


def test_a_pull_shows_what_was_chosen_after_it():
    nothing = np.zeros((0, 0), dtype=np.float32)
    pull = Pull(0, 1, None, 10, nothing, nothing)
    choices = [PolicyChoice(np.full((2, 3), i, np.float32), np.full((2, 1), i, np.float32)) for i in range(2)]
    assert pull.shown([None, None]) is pull
    shown = pull.shown([None, *choices])
    np.testing.assert_array_equal(shown.states, np.repeat([0, 1], 2)[:, None] * np.ones(3))
    np.testing.assert_array_equal(shown.basis[:, 0], [0, 0, 1, 1])
