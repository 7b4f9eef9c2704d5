"""What a run consists of while it goes on: what a checkpoint holds, and gives back."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, final

import numpy as np
import torch

from ..actors.sampler import RemoteSampler
from ..config.actor_keys import WithActors
from ..config.learning_keys import OnPolicyKeys
from ..experience.normalization import RewardNormalizer
from ..experience.sampling import LocalSampler, Sampler, random_actions
from ..models.perturbation import move_by_ulps
from ..streams import Stream, sequence, torch_generator
from .observed import Numerics
from .parts import make_learner

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..actors.stage import Stage
    from ..algorithms.part import Metrics
    from ..config.train_config import TrainConfig
    from ..environments.parallel import VectorEnvironment


@final
class RunState:
    """The learner, its experience, the environments it learns in, and how far the run is.

    Args:
        config: of the run.
        environments: not seeded yet; the last group is for evaluation.
        device: of tensors.
        stage: where actors act for it, if any do.

    Attributes:
        learner: as it is.
        recorder: with its experience.
        sampler: the environments of training, here or of actors.
        observations: of each group, in the run's format: what its next action answers to.
        metrics: of the last updates.
        numerics: what rounding did; None if the run does not observe.
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
        self.learner, self.recorder = make_learner(config, environments, device)
        if ulps := getattr(config, "perturb", 0):
            generator = torch_generator(config.seed, Stream.PERTURBATION, torch.device("cpu"))
            for name in sorted(self.learner.networks):
                move_by_ulps(self.learner.networks[name].flat, ulps, generator)
        self.sampler: Sampler
        if stage:
            assert isinstance(config, WithActors)
            self.sampler = RemoteSampler(stage, config, self.learner, self.recorder.intake.perceive)
        else:
            starts = _random_starts(config, environments) if config.random_start else None
            normalize = None
            if isinstance(config, OnPolicyKeys) and config.normalize_rewards:
                normalize = RewardNormalizer(config.discount, list(map(len, training)))
            self.sampler = LocalSampler(
                training,
                clip_rewards=config.clip_rewards,
                reward_scale=config.scale_of_rewards,
                normalize=normalize,
                starts=starts,
            )
        self.numerics: Numerics | None = None
        if config.observe and self.learner.simulation:
            self.numerics = Numerics(self.learner.simulation, self.learner.watch_norms())
        self.observations: list[torch.Tensor] = []
        self.metrics: Metrics = {}
        self.step = 0

    def begin(self) -> None:
        """Begins the first episodes."""
        observations = self.sampler.begin()
        for number, observation in enumerate(one for part in observations for one in part):
            self.recorder.begin(observation, number)
        self.observations = [self.recorder.intake.perceive(part) for part in observations]

    def begin_anew(self, group: int, observations: NDArray[Any]) -> None:
        """Begins other episodes in a group, whatever its environments were at; observations are (n, observation)."""
        self.recorder.intake.forget(group)
        for i, observation in enumerate(observations):
            self.recorder.begin(observation, group * len(observations) + i)
        self.observations[group] = self.recorder.intake.perceive(observations)

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to continue identically."""
        return {
            "agent": self.learner.state_dict(),
            **self.recorder.state_dict(),
            "environment": self.sampler.state_dict(),
            "metrics": {name: value.clone() for name, value in self.metrics.items()},
            "numerics": self.numerics.state_dict() if self.numerics else None,
            "step": self.step,
            # What was perceived by other moments than those of now.
            **({"observations": [x.cpu() for x in self.observations]} if self.recorder.intake.normalizer else {}),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes over what :meth:`state_dict` returned."""
        self.learner.load_state_dict(state["agent"])
        self.recorder.load_state_dict(state)
        observations = self.sampler.load_state_dict(state["environment"])
        self.observations = [self.recorder.intake.perceive(part) for part in observations]
        if self.recorder.intake.normalizer:
            self.observations = [found.to(self._device) for found in state["observations"]]
        self.metrics = {name: value.to(self._device) for name, value in state["metrics"].items()}
        if self.numerics:
            self.numerics.load_state_dict(state["numerics"])
        self.step = state["step"]


def _random_starts(config: TrainConfig, environments: VectorEnvironment) -> list[NDArray[np.float64]]:
    """Returns, for each environment of training, the actions that its first episode begins with."""
    size, discrete = environments.action_size, environments.discrete
    drawing = [np.random.default_rng(sequence(config.seed, Stream.RANDOM_START, i)) for i in range(config.environments)]
    return [
        random_actions(random, int(random.integers(config.random_start + 1)), size, discrete=discrete)
        for random in drawing
    ]
