"""Learners and policies of every kind, with weights that make their actions differ; for tests of acting."""

from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import torch

from roundoff.agents import TrainConfig
from roundoff.agents.models.policy_layers import Activation, Decision, LinearLayer, PolicyLayers
from roundoff.agents.run.parts import make_learner

VECTOR, PLANES = (5,), (4, 10, 10)
SMALL = {"hidden_units": 16, "hidden_layers": 2}
CASES = {
    "sac": ("sac", VECTOR, False, SMALL),
    "td3": ("td3", VECTOR, False, SMALL),
    "d4pg": ("d4pg", VECTOR, False, {**SMALL, "actor_units": 24, "actor_layers": 2}),
    "ppo of numbers": ("ppo", VECTOR, False, SMALL),
    "a2c of numbers": ("a2c", VECTOR, False, SMALL),
    "ppo": ("ppo", VECTOR, True, SMALL),
    "a2c of planes": ("a2c", PLANES, True, {"hidden_units": 16, "hidden_layers": 1}),
    "dqn": ("dqn", VECTOR, True, SMALL),
    "dqn of planes": ("dqn", PLANES, True, {"hidden_units": 16, "hidden_layers": 1}),
    "dueling": ("dqn", VECTOR, True, {**SMALL, "dueling": True}),
    "categorical": ("dqn", VECTOR, True, {**SMALL, "atoms": 11, "v_min": -4.0, "v_max": 4.0}),
    "rainbow of planes": (
        "dqn", PLANES, True,
        {"hidden_units": 16, "hidden_layers": 1, "dueling": True, "atoms": 11, "v_min": -4.0, "v_max": 4.0},
    ),
}  # fmt: skip
"""Algorithm, shape of observations, whether actions are discrete, keys."""
ACTIONS = 3


def learner_of(case, **keys):
    """A learner of a case, float32 if ``keys`` do not say otherwise, with noise on its weights."""
    algorithm, shape, discrete, own = CASES[case]
    task = "minatar:breakout" if len(shape) > 1 else "gym:CartPole-v1" if discrete else "cartpole_swingup"
    config = TrainConfig(algorithm=algorithm, task=task, **{"format": "fp32", "fixes": "none", **own, **keys})
    sizes = SimpleNamespace(
        observation_size=int(np.prod(shape)), observation_shape=shape, frames=1, action_size=ACTIONS, discrete=discrete,
        observation_dtype=np.float32 if len(shape) == 1 else np.uint8,
    )  # fmt: skip
    learner, _ = make_learner(config, sizes, torch.device("cpu"))
    generator = torch.Generator().manual_seed(7)
    for network in learner.networks.values():
        network.flat.add_(torch.randn(network.flat.shape, generator=generator) * 0.2)
    return learner


def observations_of(case, count, seed=0):
    """(count, ...) float32, standard normal; of planes zeros and ones."""
    shape = CASES[case][1]
    generator = np.random.default_rng(seed)
    if len(shape) > 1:
        return (generator.random((count, *shape)) < 0.2).astype(np.float32)
    return generator.standard_normal((count, *shape)).astype(np.float32)


def perceptron(sizes, hidden=Activation.RELU, decision=Decision.TANH, seed=0):
    """A policy of linear layers with these widths, from observations to outputs."""
    generator = torch.Generator().manual_seed(seed)
    layers = [
        LinearLayer(
            torch.randn(n_out, n_in, generator=generator) / n_in**0.5,
            torch.randn(n_out, generator=generator) * 0.1,
            hidden if i < len(sizes) - 2 else Activation.NONE,
        )
        for i, (n_in, n_out) in enumerate(pairwise(sizes))
    ]
    return PolicyLayers((sizes[0],), (), (tuple(layers),), decision, sizes[-1])
