"""The state of a run in progress, which a checkpoint saves and restores."""

from __future__ import annotations

import itertools
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray

from ..actors.sampler import RemoteSampler
from ..actors.stage import Stage
from ..algorithms.part import Metrics
from ..config.actor_keys import WithActors
from ..config.learning_keys import OffPolicyKeys
from ..config.on_policy_keys import OnPolicyKeys
from ..config.train_config import TrainConfig
from ..environments.parallel import VectorEnvironment
from ..experience.normalization import RewardNormalizer
from ..experience.sampling import LocalSampler, Sampler, random_actions
from ..streams import Stream, sequence, torch_generator
from .agent import Agent
from .observed import Numerics
from .parts import make_learner
from .sampler_learner import SamplerLearner


@final
class RunState:
    """The agent, the environments it learns in, and how far the run is.

    Args:
        config: the config of the run.
        environments: not seeded yet; the last group is for evaluation.
        device: the device of tensors.
        stage: where actors act for it, if any do.

    Attributes:
        agent: the learner with its experience.
        sampler: the environments of training, here or of actors.
        metrics: the metrics of the last updates.
        numerics: the effects of rounding; None if the run does not observe.
        step: environment steps taken.
    """

    def __init__(
        self, config: TrainConfig, environments: VectorEnvironment, device: torch.device, stage: Stage | None = None
    ) -> None:
        self._device = device
        *training, _ = environments.groups
        numbers = itertools.count()
        for group in training:
            group.seed([sequence(config.seed, Stream.ENVIRONMENT, next(numbers)) for _ in range(len(group))])
        self.agent = Agent(*make_learner(config, environments, device), device)
        learner = self.agent.learner
        if ulps := getattr(config, "perturb", 0):
            generator = torch_generator(config.seed, Stream.PERTURBATION, torch.device("cpu"))
            for name in sorted(learner.networks):
                move_by_ulps(learner.networks[name].flat, ulps, generator)
        self.sampler: Sampler
        if stage:
            assert isinstance(config, WithActors)
            self.sampler = RemoteSampler(stage, config, learner, self.agent.recorder.intake.perceive)
        elif isinstance(config, OffPolicyKeys) and config.sampler_learner is not None:
            acting = config.of_sampler_learner()
            agent = Agent(*make_learner(acting, environments, device), device)
            factor = config.scale_of_rewards / acting.scale_of_rewards
            self.sampler = SamplerLearner(_local_sampler(acting, environments), agent, factor)
        else:
            self.sampler = _local_sampler(config, environments)
        self.numerics: Numerics | None = None
        if config.observe and learner.simulation:
            self.numerics = Numerics(learner.simulation, learner.watch_norms())
        self.metrics: Metrics = {}
        self.step = 0

    def begin(self) -> None:
        """Begins the first episodes."""
        self.agent.begin(self.sampler.begin())

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to continue identically."""
        return {
            **self.agent.state_dict(),
            "environment": self.sampler.state_dict(),
            "metrics": {name: value.clone() for name, value in self.metrics.items()},
            "numerics": self.numerics.state_dict() if self.numerics else None,
            "step": self.step,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores the state that :meth:`state_dict` returned."""
        self.agent.load_state_dict(state, self.sampler.load_state_dict(state["environment"]))
        self.metrics = {name: value.to(self._device) for name, value in state["metrics"].items()}
        if self.numerics:
            self.numerics.load_state_dict(state["numerics"])
        self.step = state["step"]


def _local_sampler(config: TrainConfig, environments: VectorEnvironment) -> LocalSampler:
    """The environments of training, stepped here, with rewards as a run with ``config`` learns from them."""
    *training, _ = environments.groups
    normalize = None
    if isinstance(config, OnPolicyKeys) and config.normalize_rewards:
        normalize = RewardNormalizer(config.discount, list(map(len, training)))
    return LocalSampler(
        training,
        clip_rewards=config.clip_rewards,
        reward_scale=config.scale_of_rewards,
        normalize=normalize,
        starts=_random_starts(config, environments) if config.random_start else None,
    )


def _random_starts(config: TrainConfig, environments: VectorEnvironment) -> list[NDArray[np.float64]]:
    """Returns, for each environment of training, the actions that its first episode begins with."""
    size, discrete = environments.action_size, environments.discrete
    drawing = [np.random.default_rng(sequence(config.seed, Stream.RANDOM_START, i)) for i in range(config.environments)]
    return [
        random_actions(random, int(random.integers(config.random_start + 1)), size, discrete=discrete)
        for random in drawing
    ]


def move_by_ulps(weights: torch.Tensor, ulps: int, generator: torch.Generator) -> None:
    """Moves each weight by units in its last place, away from 0 or towards it as a coin says, in place.

    A weight of 0 stays, and so do infinities and NaN. One that is next to another binade moves by units of the binade
    it goes through; one may go through subnormals, and stops at 0.

    Args:
        weights: float32, contiguous, any shape.
        ulps: the number of units, at most 2^20.
        generator: draws the coins, one for each weight, on the CPU.
    """
    away = torch.randint(2, weights.shape, generator=generator, dtype=torch.int32).to(weights.device)
    bits = weights.view(torch.int32)
    magnitude = bits & 0x7FFFFFFF
    moved = (magnitude + ulps * (2 * away - 1)).clamp_(min=0)
    moved = torch.where((magnitude == 0) | ~weights.isfinite(), magnitude, moved)
    bits.copy_(moved | (bits & -0x80000000))
