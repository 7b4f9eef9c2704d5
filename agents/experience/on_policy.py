"""On-policy learning: rollouts, each learned from several times and then discarded."""

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
"""Numbers that the learner adds to each transition."""


@final
@dataclass(frozen=True)
class Minibatch:
    """Some transitions of a rollout; every tensor is a view of ``rows``, (batch, ...).

    Attributes:
        rows: everything, side by side.
        observations: (batch, observation).
        actions: (batch, action), as they were drawn.
        log_probs: (batch, 1), log-probabilities of the actions when they were chosen.
        values: (batch, 1), values of the observations then.
        advantages: (batch, 1).
        returns: (batch, 1), the targets of values.
        weights: (batch, 1), weights of the surrogate's terms; None where all are 1.
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
    """The computation of a learner on a rollout before it learns from it."""

    def __call__(self, rollout: Batch, last: torch.Tensor) -> torch.Tensor:
        """Log-probabilities, values, advantages and returns: (n, 4); before them the weights, if there are any: (n, 5).

        Args:
            rollout: all transitions: step by step, with all environments of a step together.
            last: (n, 1): whether an episode ended with the transition.
        """


def minibatch_of(rows: torch.Tensor, observation_size: int, *, weighed: bool = False) -> Minibatch:
    """The parts of rows (observation, action, [weight,] log-probability, value, advantage, return), as views."""
    o, end = observation_size, -JUDGEMENTS - weighed
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
    """Keeps a rollout: ``horizon`` steps of every environment; then it is learned from, and the next one begins.

    No action is chosen before all of the rollout are back and have been learned from, so that each was chosen by the
    policy that its rollout is learned from with. With several environments, in two alternating groups, one group
    therefore waits for the other at the end of each rollout.

    Args:
        config: the config of the run.
        intake: with a replay buffer that holds a rollout.
        judge: asked once for each rollout, when it is complete.
        enough: asked before each minibatch whether the rest of a rollout is not to be learned from; None: never.

    Attributes:
        intake: the same.
    """

    def __init__(
        self, config: OnPolicyKeys, intake: Intake, judge: Judge, enough: Callable[[Minibatch], bool] | None = None
    ) -> None:
        replay = intake.replay
        assert isinstance(replay, Replay)  # see record_rollouts
        self.intake = intake
        self._replay = replay
        self._size = len(replay.rows)
        self._batch_size, self._passes, self._weighed = config.batch_size, config.passes, config.weighed
        self._judge, self._enough = judge, enough
        self._rewards = RewardRange.of(config)
        self._last = torch.zeros(self._size, 1, dtype=torch.bool, device=intake.device)
        self._generator = torch_generator(config.seed, Stream.REPLAY, intake.device)

    def begin(self, observation: NDArray[Any], environment: int) -> None:
        """Notes the first observation of an episode of an environment of training, by its number."""
        if self.intake.normalizer:
            self.intake.normalizer.moments.see(observation[None])
        self.intake.begin(observation, environment)

    def explore(self, count: int, under_way: int) -> None:  # noqa: ARG002
        """Nothing: all actions are the learner's."""
        return

    def rows(self, observations: torch.Tensor, sample: Sample) -> Sequence[torch.Tensor] | torch.Tensor:
        """The transitions of a sample, which began with ``observations``, as :meth:`add` takes them."""
        if self._rewards:
            self._rewards.see(sample.steps.rewards)
        if self.intake.normalizer:
            self.intake.normalizer.moments.see(sample.steps.observations)
        return self.intake.rows(observations, sample)

    def add(self, row: torch.Tensor, sample: Sample, i: int) -> None:
        """Keeps the transition of environment ``i`` of the sample's group."""
        self._last[self._kept] = bool(sample.steps.last[i])
        self.intake.remember(row, sample, i)

    def waits(self, under_way: int) -> bool:
        """Whether those kept and those under way are the whole rollout."""
        return self._kept + under_way >= self._size

    def due(self) -> Generator[Minibatch, Any, None]:
        """The minibatches to learn from now, after a transition: none, or several times all of the rollout."""
        if self._kept:
            return
        if self._rewards:
            self._rewards.check()
        rollout = self._replay.take(torch.arange(self._size, device=self.intake.device))
        judged = self._judge(rollout, self._last)
        rows = torch.cat((rollout.observations_and_actions, judged), dim=1)
        for batch in self._minibatches(rows):
            if self._enough and self._enough(batch):
                return
            yield batch

    def _minibatches(self, rows: torch.Tensor) -> Iterator[Minibatch]:
        size = self._replay.observation_size
        for _ in range(self._passes):
            if self._batch_size == self._size:
                yield minibatch_of(rows, size, weighed=self._weighed)
                continue
            order = torch.randperm(self._size, generator=self._generator, device=rows.device)
            for places in torch.split(order, self._batch_size):
                yield minibatch_of(rows.index_select(0, places), size, weighed=self._weighed)

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to continue identically."""
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
    def _kept(self) -> int:
        """Transitions of the rollout so far; 0 also when it is complete."""
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
    """A recorder of rollouts of numbers, of planes of 0 and 1, which are kept as bytes, or of images, which are not."""
    options: dict[str, Any] = {"dtype": dtype, "device": device, "planes": sizes.observation_dtype is np.bool_}
    replay = Replay(config.rollout, sizes.observation_size, sizes.action_size, **options)
    intake = StateIntake(replay, Format.parse(config.format), dtype, device, normalizer)
    return RolloutRecorder(config, intake, judge, enough)
