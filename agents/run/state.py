"""The state of a run in progress, which a checkpoint saves and restores; the agents in it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Generator, Sequence
from typing import TYPE_CHECKING, Any, final

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
from ..experience.sampling import LocalSampler, NotFinite, Sample, Sampler, random_actions
from ..streams import Stream, sequence, torch_generator
from .parts import make_learner
from .reporter import Numerics

if TYPE_CHECKING:
    from ..algorithms.learner import Learner
    from .parts import Recorder


@final
class Agent:
    """A learner with its experience, and with the observations that it acts on next.

    Args:
        learner: the learner.
        recorder: the recorder of its experience.
        device: the device of tensors.

    Attributes:
        learner, recorder: the arguments.
        observations: the observations of each group, in the learner's format.
    """

    def __init__(self, learner: Learner, recorder: Recorder, device: torch.device) -> None:
        self.learner, self.recorder = learner, recorder
        self.observations: list[torch.Tensor] = []
        self._device = device

    def begin(self, observations: Sequence[NDArray[Any]]) -> None:
        """Begins the first episodes, with the observations of each group, (n, observation)."""
        for number, observation in enumerate(itertools.chain.from_iterable(observations)):
            self.recorder.begin(observation, number)
        self.observations = [self.recorder.intake.perceive(part) for part in observations]

    def begin_anew(self, group: int, observations: NDArray[Any]) -> None:
        """Begins new episodes in a group after an interruption; observations are (n, observation)."""
        self.recorder.intake.forget(group)
        for i, observation in enumerate(observations):
            self.recorder.begin(observation, group * len(observations) + i)  # Groups of actors have equal sizes.
        self.observations[group] = self.recorder.intake.perceive(observations)

    def choose(self, group: int, first: int, under_way: int) -> NDArray[np.floating[Any]]:
        """Returns actions for a group, for samplers: at first the recorder's, then the learner's."""
        observations = self.observations[group]
        random_choice = self.recorder.explore(len(observations), under_way)
        if random_choice is not None:
            return random_choice
        return self.recorder.intake.from_format(self.learner.act(observations, deterministic=False, first=first))

    def see(self, sample: Sample) -> Sequence[torch.Tensor] | torch.Tensor:
        """Updates the current observations by a sample; returns its transitions, for the recorder to add."""
        rows = self.recorder.rows(self.observations[sample.group], sample)
        self.observations[sample.group] = self.recorder.intake.perceive(sample.steps.observations)
        return rows

    def due(self) -> Generator[Any, Metrics | None, None]:
        """Yields the batches to learn from now; the caller sends the metrics of the update with each."""
        return self.recorder.due()

    def state_dict(self) -> dict[str, Any]:
        """Returns the state that is needed to continue identically, except the episodes."""
        return {
            "agent": self.learner.state_dict(),
            **self.recorder.state_dict(),
            # Environments return them only unnormalized, and the moments have changed since they were normalized.
            **({"observations": [x.cpu() for x in self.observations]} if self.recorder.intake.normalizer else {}),
        }

    def load_state_dict(self, state: dict[str, Any], observations: Sequence[NDArray[Any]]) -> None:
        """Restores the result of :meth:`state_dict`, with the observations of each group, (n, observation)."""
        self.learner.load_state_dict(state["agent"])
        self.recorder.load_state_dict(state)
        self.observations = [self.recorder.intake.perceive(part) for part in observations]
        if self.recorder.intake.normalizer:
            self.observations = [part.to(self._device) for part in state["observations"]]


@final
class RunState:
    """The agent, the environments in which it learns, and the progress of the run.

    Args:
        config: the config of the run.
        environments: the environments, without seeds; the last group is for evaluation.
        device: the device of tensors.
        stage: the actors that act for the run; None: the learner acts.

    Attributes:
        agent: the learner with its experience.
        sampler: the source of experience: local environments, or actors.
        metrics: the metrics of the last updates.
        numerics: the effects of rounding; None if the run does not observe.
        step: environment steps taken.
    """

    def __init__(
        self, config: TrainConfig, environments: VectorEnvironment, device: torch.device, stage: Stage | None = None
    ) -> None:
        self._device = device
        # Each environment has a seed of its number among all groups, however the groups are divided.
        *training, _ = environments.groups
        numbers = itertools.count()
        for group in training:
            group.seed([sequence(config.seed, Stream.ENVIRONMENT, next(numbers)) for _ in range(len(group))])
        self.agent = Agent(*make_learner(config, environments, device), device)
        learner = self.agent.learner
        if ulps := getattr(config, "perturb", 0):
            generator = torch_generator(config.seed, Stream.PERTURBATION, torch.device("cpu"))
            for name in sorted(learner.networks):  # In a fixed order of draws.
                move_by_ulps(learner.networks[name].flat, ulps, generator)
        self.sampler: Sampler  # Of actors, of a sampler-learner, or of local environments.
        if stage:
            assert isinstance(config, WithActors)
            self.sampler = RemoteSampler(stage, config, learner, self.agent.recorder.intake.perceive)
        elif isinstance(config, OffPolicyKeys) and config.sampler_learner is not None:
            sampler_config = config.of_sampler_learner()
            agent = Agent(*make_learner(sampler_config, environments, device), device)
            factor = config.scale_of_rewards / sampler_config.scale_of_rewards  # Exact: both are powers of two.
            self.sampler = SamplerLearner(_local_sampler(sampler_config, environments), agent, factor)
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
        """Returns the state that is needed to continue identically."""
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
    """Makes the sampler of local training environments, with the treatment of rewards that ``config`` sets."""
    *training, _ = environments.groups
    normalize = starts = None
    if isinstance(config, OnPolicyKeys) and config.normalize_rewards:
        normalize = RewardNormalizer(config.discount, list(map(len, training)))
    if config.random_start:
        # For each environment a random number of random actions, with which its first episode begins.
        streams = (sequence(config.seed, Stream.RANDOM_START, i) for i in range(config.environments))
        size, discrete = environments.action_size, environments.discrete
        starts = [
            random_actions(random, int(random.integers(config.random_start + 1)), size, discrete=discrete)
            for random in map(np.random.default_rng, streams)
        ]
    return LocalSampler(
        training,
        clip_rewards=config.clip_rewards,
        reward_scale=config.scale_of_rewards,
        normalize=normalize,
        starts=starts,
    )


def move_by_ulps(weights: torch.Tensor, ulps: int, generator: torch.Generator) -> None:
    """Moves each weight by units in its last place, randomly away from 0 or towards it, in place.

    Zeros, infinities and NaN do not change. At the end of a binade, a weight continues in units of the next binade;
    weights may become subnormal, and stop at 0.

    Args:
        weights: float32, contiguous, any shape.
        ulps: the number of units, at most 2^20.
        generator: a CPU generator, for the direction of each weight.
    """
    away = torch.randint(2, weights.shape, generator=generator, dtype=torch.int32).to(weights.device)
    # IEEE 754: neighboring magnitudes of one sign have neighboring codes, also across binades.
    bits = weights.view(torch.int32)
    magnitude = bits & 0x7FFFFFFF
    moved = (magnitude + ulps * (2 * away - 1)).clamp_(min=0)
    moved = torch.where((magnitude == 0) | ~weights.isfinite(), magnitude, moved)
    bits.copy_(moved | (bits & -0x80000000))  # With the old sign.


@final
class SamplerLearner:
    """Supplies a run with the experience of another agent, which acts and learns exactly as in a separate run.

    The agent has a separate format, batches and replay buffer. It learns from each transition before the run does, and
    the run does not affect it. So its episodes are bit for bit the same as in a separate run.

    Source:
        Stooke & Abbeel, "Accelerated Methods for Deep Reinforcement Learning", Section 5.5 ("Secondary-Learner
        Experiment": this is the sampler-learner, the run is the secondary learner), Figures 5 to 7.

    Args:
        sampler: the sampler of the environments that the agent acts in, with rewards in its scale.
        agent: the agent that acts.
        factor: the factor applied to rewards for the run: its scale over the agent's, a power of two.
    """

    is_remote, activity = False, "sampler-learner"

    def __init__(self, sampler: LocalSampler, agent: Agent, factor: float) -> None:
        self._sampler, self._agent, self._factor = sampler, agent, factor

    def begin(self) -> list[NDArray[Any]]:
        """Begins the first episodes; returns the observations of each group."""
        observations = self._sampler.begin()
        self._agent.begin(observations)
        return observations

    def next(
        self,
        choose: Callable[[int, int, int], NDArray[np.floating[Any]]],  # noqa: ARG002  the agent does
        waits: Callable[[int], bool],  # noqa: ARG002
    ) -> Sample | None:
        """Returns the next sample, after the agent has learned from it; see ``Sampler``."""
        agent = self._agent
        try:
            sample = self._sampler.next(agent.choose, agent.recorder.waits)
        except NotFinite:
            raise NotFinite("the policy of the sampler-learner took a non-finite action in training") from None
        if sample is None:
            return None
        for i, row in enumerate(agent.see(sample)):
            agent.recorder.add(row, sample, i)
            due, metrics = agent.due(), None
            while True:
                try:
                    batch = due.send(metrics)
                except StopIteration:
                    break
                metrics = agent.learner.update(batch)
        if self._factor == 1:
            return sample
        return sample._replace(steps=sample.steps._replace(rewards=sample.steps.rewards * self._factor))

    def begun(self) -> list[tuple[int, NDArray[Any]]]:
        """Returns no groups: none is ever restarted."""
        return self._sampler.begun()

    def pulls(self) -> list[dict[str, Any]]:
        """Returns no pulls: weights are not needed."""
        return self._sampler.pulls()

    def timing(self) -> dict[str, Any]:
        """Returns nothing."""
        return self._sampler.timing()

    def state_dict(self) -> dict[str, Any]:
        """Returns the state that is needed to continue identically, including the agent."""
        return {"environment": self._sampler.state_dict(), **self._agent.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> list[NDArray[Any]]:
        """Restores the state; returns the observations of each group for its next step."""
        observations = self._sampler.load_state_dict(state["environment"])
        self._agent.load_state_dict(state, observations)
        return observations
