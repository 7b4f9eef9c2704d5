"""On-policy learning from rollouts, each used for several passes and then discarded."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, final

import numpy as np
import torch
from numpy.typing import NDArray

from ...formats import Format
from ..config.on_policy_keys import OnPolicyKeys
from ..sizes import Sizes
from ..streams import Stream, torch_generator
from .intake import Intake, StateIntake
from .normalization import ObservationNormalizer
from .replay import Batch, Replay
from .reward_range import RewardRange
from .sampling import Sample

JUDGEMENTS = 4
"""The number of values that the learner computes for each transition: see :class:`Judge`."""


@final
@dataclass(frozen=True)
class Minibatch:
    """Some transitions of a rollout; every tensor is a view of ``rows``, (batch, ...).

    Attributes:
        rows: all other attributes, in columns.
        observations: (batch, observation).
        actions: (batch, action), as drawn from the policy, before any clipping.
        log_probs: (batch, 1), log-probabilities of the actions when they were chosen.
        values: (batch, 1), values of the observations before learning from the rollout.
        advantages: (batch, 1).
        returns: (batch, 1), the targets of values.
        weights: (batch, 1), weights of the surrogate's terms; None: all are 1.
    """

    rows: torch.Tensor
    observations: torch.Tensor
    actions: torch.Tensor
    log_probs: torch.Tensor
    values: torch.Tensor
    advantages: torch.Tensor
    returns: torch.Tensor
    weights: torch.Tensor | None = None


class Judge(Protocol):
    """The learner's computation on a rollout before it learns from it."""

    def __call__(self, rollout: Batch, last: torch.Tensor) -> torch.Tensor:
        """Returns log-probabilities, values, advantages and returns, (n, 4); with weights before them (n, 5).

        Args:
            rollout: all transitions: step by step, with all environments of a step together.
            last: (n, 1): whether an episode ended with the transition.
        """


def minibatch_of(rows: torch.Tensor, observation_size: int, *, weighed: bool = False) -> Minibatch:
    """Splits rows (observation, action, [weight,] log-probability, value, advantage, return) into views."""
    o, end = observation_size, -JUDGEMENTS - weighed  # The weight precedes the other judgements.
    return Minibatch(
        rows=rows,
        observations=rows[:, :o],
        actions=rows[:, o:end],
        weights=rows[:, end:-JUDGEMENTS] if weighed else None,
        log_probs=rows[:, -4:-3],
        values=rows[:, -3:-2],
        advantages=rows[:, -2:-1],
        returns=rows[:, -1:],
    )


@final
class RolloutRecorder:
    """Stores a rollout, ``horizon`` steps of every environment; when it is complete, the agent learns from it.

    The next rollout begins only after that, so that all actions of a rollout are chosen by the same policy. With
    several environments, in two alternating groups, one group therefore waits for the other at the end of each rollout.

    Args:
        config: the config of the run.
        intake: with a replay buffer that holds a rollout.
        judge: called once for each complete rollout.
        enough: called before each minibatch; returns whether to skip the rest of the passes. None: never.

    Attributes:
        intake: the argument.
    """

    def __init__(
        self, config: OnPolicyKeys, intake: Intake, judge: Judge, enough: Callable[[Minibatch], bool] | None = None
    ) -> None:
        replay = intake.replay
        assert isinstance(replay, Replay)  # see record_rollouts
        self.intake = intake
        self._replay = replay
        self._size = len(replay.rows)  # Of a rollout.
        self._batch_size, self._passes, self._weighed = config.batch_size, config.passes, config.weighed
        self._judge, self._enough = judge, enough
        self._rewards = RewardRange.of(config)
        self._last = torch.zeros(self._size, 1, dtype=torch.bool, device=intake.device)
        self._generator = torch_generator(config.seed, Stream.REPLAY, intake.device)

    def begin(self, observation: NDArray[Any], environment: int) -> None:
        """Takes the first observation of an episode of a training environment, given its number."""
        if self.intake.normalizer:
            self.intake.normalizer.moments.see(observation[None])
        self.intake.begin(observation, environment)

    def explore(self, count: int, under_way: int) -> None:  # noqa: ARG002
        """Returns None: all actions are the learner's."""
        return

    def rows(self, observations: torch.Tensor, sample: Sample) -> Sequence[torch.Tensor] | torch.Tensor:
        """Returns the transitions of a sample, which began with ``observations``, for :meth:`add`."""
        if self._rewards:
            self._rewards.see(sample.steps.rewards)
        if self.intake.normalizer:
            self.intake.normalizer.moments.see(sample.steps.observations)  # Of a new episode, the first one.
        return self.intake.rows(observations, sample)

    def add(self, row: torch.Tensor, sample: Sample, i: int) -> None:
        """Stores the transition of environment ``i`` in the sample's group."""
        self._last[self._filled] = bool(sample.steps.last[i])
        self.intake.remember(row, sample, i)

    def waits(self, under_way: int) -> bool:
        """Returns whether the stored and the pending transitions complete the rollout."""
        return self._filled + under_way >= self._size  # The other actions need the policy after the update.

    def due(self) -> Generator[Minibatch, Any, None]:
        """Yields the minibatches to learn from after a transition: none, or several passes over a complete rollout."""
        if self._filled:
            return
        if self._rewards:
            self._rewards.check()
        rollout = self._replay.take(torch.arange(self._size, device=self.intake.device))
        judgements = self._judge(rollout, self._last)  # Once, by the policy that made the rollout.
        rows = torch.cat((rollout.observations_and_actions, judgements), dim=1)
        for batch in self._minibatches(rows):
            if self._enough and self._enough(batch):
                return
            yield batch

    def _minibatches(self, rows: torch.Tensor) -> Iterator[Minibatch]:
        size = self._replay.observation_size
        for _ in range(self._passes):
            if self._batch_size == self._size:  # Without a draw: the order has no effect on a single batch.
                yield minibatch_of(rows, size, weighed=self._weighed)
                continue
            order = torch.randperm(self._size, generator=self._generator, device=rows.device)
            for indices in torch.split(order, self._batch_size):
                yield minibatch_of(rows.index_select(0, indices), size, weighed=self._weighed)

    def state_dict(self) -> dict[str, Any]:
        """Returns the state that is needed to continue identically."""
        return {
            "rollout": self._replay.state_dict(),
            "rollout_last": self._last.cpu(),
            "rollout_generator": self._generator.get_state(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores the state that :meth:`state_dict` returned."""
        self._replay.load_state_dict(state["rollout"])
        self._last.copy_(state["rollout_last"])
        self._generator.set_state(state["rollout_generator"])

    @property
    def _filled(self) -> int:
        """The number of transitions of the rollout so far; 0 also when it is complete."""
        return self._replay.added % self._size


def record_rollouts(
    config: OnPolicyKeys,
    sizes: Sizes,
    dtype: torch.dtype,
    device: torch.device,
    judge: Judge,
    *,
    normalizer: ObservationNormalizer | None = None,
    enough: Callable[[Minibatch], bool] | None = None,
) -> RolloutRecorder:
    """Makes a recorder of rollouts; planes of 0 and 1 are stored as bytes, other observations in the format."""
    options: dict[str, Any] = {"dtype": dtype, "device": device, "planes": sizes.observation_dtype is np.bool_}
    replay = Replay(config.rollout, sizes.observation_size, sizes.action_size, **options)
    intake = StateIntake(replay, Format.parse(config.format), dtype, device, normalizer)
    return RolloutRecorder(config, intake, judge, enough)
