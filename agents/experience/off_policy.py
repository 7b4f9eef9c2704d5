"""Learning from a replay buffer: random actions first, then an update for every transition."""

from __future__ import annotations

import json
from collections.abc import Generator, Sequence
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray

from ...formats import Format
from ..config.actor_keys import has_importance_weights
from ..config.learning_keys import OffPolicyKeys
from ..config.value_keys import ValueKeys
from ..sizes import Sizes
from ..streams import Stream, sequence, torch_generator
from .frame_replay import FrameBatch, FrameReplay
from .intake import Intake, PixelIntake, StateIntake, make_intake
from .n_step import NStepIntake, NStepPixelIntake
from .prioritized import PrioritizedReplay
from .replay import Batch, Replay
from .reward_range import RewardRange
from .sampling import Sample, random_actions


@final
class OffPolicyRecorder:
    """The recorder of off-policy runs: keeps all experience, and learns from a random batch after each transition.

    Args:
        config: the config of the run.
        intake: the intake, with its replay buffer.
        sizes: the sizes of actions.

    Attributes:
        intake: the argument.
        transitions: the number of transitions so far.
    """

    def __init__(self, config: OffPolicyKeys, intake: Intake, sizes: Sizes) -> None:
        self.intake = intake
        self.transitions = 0
        self._config = config
        self._rewards = RewardRange.of(config)
        self._action_size, self._discrete = sizes.action_size, sizes.discrete
        # A sampler-learner has the same seed, but draws different batches.
        stream = Stream.REPLAY if config.sampler_learner is None else Stream.REPLAY_OF_OTHERS
        self._generator = torch_generator(config.seed, stream, intake.device)
        self._random = np.random.default_rng(sequence(config.seed, Stream.SEED_ACTIONS))

    def begin(self, observation: NDArray[Any], environment: int) -> None:
        """Takes the first observation of an episode of a training environment, given its number."""
        self.intake.begin(observation, environment)

    def explore(self, count: int, under_way: int) -> NDArray[np.floating[Any]] | None:
        """Returns uniform random actions, (count, action), until learning starts; then None.

        Args:
            count: the number of actions.
            under_way: the number of actions with pending transitions.
        """
        if self.transitions + under_way >= self._config.seed_steps:
            return None
        drawn = random_actions(self._random, count, self._action_size, discrete=self._discrete)
        return drawn if self._discrete else self.intake.from_format(self.intake.to_format(drawn))

    def rows(self, observations: torch.Tensor, sample: Sample) -> Sequence[torch.Tensor] | torch.Tensor:
        """Returns the transitions of a sample, which began with ``observations``, for :meth:`add`."""
        if self._rewards:
            self._rewards.see(sample.steps.rewards)
        return self.intake.rows(observations, sample)

    def add(self, row: torch.Tensor, sample: Sample, i: int) -> None:
        """Stores the transition of environment ``i`` in the sample's group."""
        self.intake.remember(row, sample, i)
        self.transitions += 1

    def waits(self, under_way: int) -> bool:  # noqa: ARG002
        """Returns whether learning must come before further actions: never."""
        return False

    def due(self) -> Generator[Batch | FrameBatch, dict[str, torch.Tensor] | None, None]:
        """Yields the batches to learn from after a transition: none at first, then all that are due.

        Of n transitions since ``seed_steps``, floor(n updates_per_transition) updates are made. A replay buffer with
        priorities receives the new priorities from each update.
        """
        replay = self.intake.replay
        learned_from = self.transitions - self._config.seed_steps
        if learned_from <= 0 or not self.intake.ready:
            return
        if self._rewards:
            self._rewards.check()
        rate = self._config.updates_per_transition  # A fraction, so that the counts are exact.
        for _ in range(int(learned_from * rate) - int((learned_from - 1) * rate)):
            metrics = yield replay.sample(self._config.batch_size, self._generator)
            if isinstance(replay, PrioritizedReplay) and metrics is not None:
                replay.prioritize(metrics["priority"])

    def state_dict(self) -> dict[str, Any]:
        """Returns the state that is needed to continue identically."""
        return {
            "replay": self.intake.replay.state_dict(),
            **self.intake.state_dict(),
            "replay_generator": self._generator.get_state(),
            "seed_actions": json.dumps(self._random.bit_generator.state),
            "agent_steps": self.transitions,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores the state that :meth:`state_dict` returned."""
        self.intake.replay.load_state_dict(state["replay"])
        self.intake.load_state_dict(state)
        self._generator.set_state(state["replay_generator"])
        self._random.bit_generator.state = json.loads(state["seed_actions"])
        self.transitions = state["agent_steps"]


def record_states(config: OffPolicyKeys, sizes: Sizes, dtype: torch.dtype, device: torch.device) -> OffPolicyRecorder:
    """Makes a recorder of single steps; see ``make_intake``."""
    return OffPolicyRecorder(config, make_intake(config, sizes, dtype, device), sizes)


def record_steps(config: ValueKeys, sizes: Sizes, dtype: torch.dtype, device: torch.device) -> OffPolicyRecorder:
    """Makes a recorder of transitions of ``config.n_steps`` steps, with priorities if ``prioritized`` is set.

    Raises:
        RunError: memory cannot be allocated, or ``replay_capacity`` is too small for images of all environments.
    """
    fmt = Format.parse(config.format)
    intake: Intake = make_intake(config, sizes, dtype, device, n_steps=config.n_steps)
    options: dict[str, Any] = {"fmt": fmt, "dtype": dtype, "device": device}
    steps = config.n_steps, config.discount
    if isinstance(intake, PixelIntake):
        if config.n_steps > 1:
            intake = NStepPixelIntake(intake.frames, *steps, intake.image_shape, **options)
        replay: FrameReplay | Replay = intake.frames
    else:
        assert isinstance(intake, StateIntake)
        replay = intake.rows_kept
        if config.n_steps > 1 or has_importance_weights(config):
            intake = NStepIntake(replay, *steps, **options)
    if config.prioritized:
        intake.replay = PrioritizedReplay(replay, config.importance_exponent, additions=config.transitions, fmt=fmt)
    return OffPolicyRecorder(config, intake, sizes)
