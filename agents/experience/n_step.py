"""Transitions of several steps: the sum of their rewards, and the observation after the last one."""

from __future__ import annotations

import math
from collections import defaultdict, deque
from typing import Any, NamedTuple, final

import numpy as np
import torch
from numpy.typing import NDArray

from ...formats import Format
from .frame_replay import FrameReplay
from .intake import Intake, PixelIntake
from .replay import Replay
from .sampling import Sample


class _PendingTransition(NamedTuple):
    """A transition that has not ended: its first columns, the index of its image, and its rewards and ratios so far."""

    head: torch.Tensor
    image: int
    rewards: list[float]
    ratios: list[float]
    """The ratios of the actions after the first one."""


class _CompletedTransition(NamedTuple):
    """A transition that has ended."""

    head: torch.Tensor
    image: int
    environment: int
    rewards: float
    discount: float
    weight: float


@final
class _PendingTransitions:
    """The transitions of every environment that have not ended.

    The rewards are r_1 + g r_2 + ... + g^(n-1) r_n, summed in float64. The learner multiplies the next value by g^n.
    If an episode ends after m < n of the steps, its last observation is the next observation; the discount is then 0 at
    a terminal state (or the loss of a life of Atari), and g^(m - n) at a time limit, so that the factor of the next
    value is g^m. In all other cases the discount is 1.

    The weight of a transition is the product of the ratios of its actions (``Sample.ratios``) but the first, which the
    critic evaluates: truncated importance weights, each at most 1.

    Args:
        n: steps of a transition.
        discount: g, per step.

    Source:
        Sutton, "Learning to Predict by the Methods of Temporal Differences"; Hessel et al., "Rainbow", Section 2;
        for the weights Munos et al., "Safe and Efficient Off-Policy Reinforcement Learning", Section 3, with lambda 1.
    """

    def __init__(self, n: int, discount: float) -> None:
        self._n, self._discount = n, discount
        # By the numbers of the group and of the environment in it; the oldest transition is first.
        self._pending: defaultdict[tuple[int, int], deque[_PendingTransition]] = defaultdict(deque)

    def step(
        self, sample: Sample, heads: torch.Tensor, images: list[int]
    ) -> tuple[list[_CompletedTransition], list[int]]:
        """Returns the transitions that a sample completes, and how many per environment; begins one with each head."""
        steps = sample.steps
        completed: list[_CompletedTransition] = []
        counts = []
        # A discount of 0 ends transitions, also without the end of an episode: the loss of a life of Atari.
        for i, is_over in enumerate((steps.last | (steps.discounts == 0)).tolist()):
            pending = self._pending[sample.group, i]
            if sample.ratios is not None:
                for transition in pending:  # Not the one that begins now: the ratio of its first action does not count.
                    transition.ratios.append(float(sample.ratios[i]))
            pending.append(_PendingTransition(heads[i], images[i], [], []))
            for transition in pending:
                transition.rewards.append(float(steps.rewards[i]))
            count = len(pending) if is_over else int(len(pending) == self._n)  # All, or the oldest.
            completed += [self._complete(pending.popleft(), i, float(steps.discounts[i])) for _ in range(count)]
            counts.append(count)
        return completed, counts

    def forget(self, group: int) -> None:
        """Drops the pending transitions of a group."""
        for key in [key for key in self._pending if key[0] == group]:
            del self._pending[key]

    def state_dict(self) -> dict[str, Any]:
        """Returns all pending transitions."""
        return {  # The key of older checkpoints.
            "begun": [
                [group, i, torch.stack([t.head for t in pending]).cpu(), [list(t.rewards) for t in pending],
                 [t.image for t in pending], [list(t.ratios) for t in pending]]
                for (group, i), pending in sorted(self._pending.items())
                if pending
            ]
        }  # fmt: skip

    def load_state_dict(self, state: dict[str, Any], device: torch.device) -> None:
        """Restores the state that :meth:`state_dict` returned."""
        self._pending.clear()
        for group, i, heads, all_rewards, images, all_ratios in state["begun"]:
            parts = zip(heads.to(device), images, all_rewards, all_ratios, strict=True)
            self._pending[group, i] = deque(
                _PendingTransition(head, image, list(rewards), list(ratios)) for head, image, rewards, ratios in parts
            )

    def _complete(self, pending: _PendingTransition, environment: int, discount: float) -> _CompletedTransition:
        missing = self._n - len(pending.rewards)  # Steps after the end of the episode.
        rewards = sum(self._discount**k * reward for k, reward in enumerate(pending.rewards))
        rest = discount * self._discount**-missing if discount else 0.0  # The learner multiplies it by g^n.
        return _CompletedTransition(pending.head, pending.image, environment, rewards, rest, math.prod(pending.ratios))


class _ManySteps(Intake):
    """An intake of transitions that end several steps after they have begun."""

    _under_way: _PendingTransitions

    def forget(self, group: int) -> None:
        """Drops the pending transitions of a group."""
        self._under_way.forget(group)

    @property
    def ready(self) -> bool:
        """Whether any transition has been completed."""
        return len(self.replay) > 0

    def state_dict(self) -> dict[str, Any]:
        """Returns the pending transitions."""
        return self._under_way.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores the state that :meth:`state_dict` returned."""
        self._under_way.load_state_dict(state, self.device)


@final
class NStepIntake(_ManySteps):
    """The intake of states as transitions of n steps: (observation, action, next observation, rewards, discount).

    Sums of rewards and discounts are rounded once to the format; see ``_PendingTransitions``.
    With n = 1 these are the steps themselves. If the replay buffer keeps weights, theirs come last.

    Args:
        replay: the buffer of the transitions.
        n: steps of a transition.
        discount: the discount per step.
        fmt: the format of the run.
        dtype: the dtype of the agent.
        device: the device of the agent.
    """

    def __init__(
        self, replay: Replay, n: int, discount: float, *, fmt: Format, dtype: torch.dtype, device: torch.device
    ) -> None:
        super().__init__(fmt, dtype, device)
        self.rows_kept = replay
        self.replay = replay
        self._under_way = _PendingTransitions(n, discount)

    def perceive(self, observations: NDArray[Any]) -> torch.Tensor:
        """Converts observations to (n, observation)."""
        return self.to_format(observations)

    def begin(self, observation: NDArray[Any], environment: int = 0) -> None:
        """Does nothing: every row contains its observation."""

    def rows(self, observations: torch.Tensor, sample: Sample) -> list[torch.Tensor]:
        """Returns the transitions that a sample completes, (k, 2 observation + action + 2) for each environment."""
        rounded = self.to_format(np.column_stack((sample.actions, sample.steps.next_observations)))
        action_size = sample.actions.shape[1]
        actions, next_observations = rounded[:, :action_size], rounded[:, action_size:]
        heads = torch.cat((observations, actions), dim=1)
        completed, counts = self._under_way.step(sample, heads, [0] * len(heads))
        count = self.rows_kept.outcome_size
        if not completed:  # ``torch.stack`` needs a tensor.
            return [heads.new_empty(0, 2 * observations.shape[1] + action_size + count)] * len(counts)
        outcomes = self.to_format(np.array([(t.rewards, t.discount, t.weight)[:count] for t in completed]))
        environments = torch.tensor([t.environment for t in completed], device=self.device)
        heads = torch.stack([t.head for t in completed])
        rows = torch.cat((heads, next_observations[environments], outcomes), dim=1)
        return list(torch.split(rows, counts))  # By environment.

    def remember(self, row: torch.Tensor, sample: Sample, i: int) -> None:  # noqa: ARG002
        """Adds the transitions of one environment to the replay buffer."""
        for transition in row:
            self.rows_kept.add(transition)


@final
class NStepPixelIntake(_ManySteps, PixelIntake):
    """The intake of stacks of images as transitions of n steps; each image is stored once.

    Args:
        replay: the buffer of the images and the transitions.
        n: steps of a transition.
        discount: the discount per step.
        image_shape: (channels, height, width).
        fmt: the format of the run.
        dtype: the dtype of the agent.
        device: the device of the agent.
    """

    def __init__(
        self,
        replay: FrameReplay,
        n: int,
        discount: float,
        image_shape: tuple[int, ...],
        *,
        fmt: Format,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        super().__init__(replay, image_shape, fmt, dtype, device)
        self._under_way = _PendingTransitions(n, discount)

    def rows(self, observations: torch.Tensor, sample: Sample) -> list[list[tuple[torch.Tensor, int]]]:  # noqa: ARG002
        """Returns the transitions that a sample completes, by environment: rows, (action + 2,), and image numbers."""
        actions = self.to_format(sample.actions)
        images = [self.frames.newest(sample.first + i) for i in range(len(actions))]
        completed, counts = self._under_way.step(sample, actions, images)
        if not completed:
            return [[]] * len(counts)
        outcomes = self.to_format(np.array([(t.rewards, t.discount) for t in completed]))
        rows = torch.cat((torch.stack([t.head for t in completed]), outcomes), dim=1)
        pairs = iter(zip(rows, (t.image for t in completed), strict=True))
        return [[next(pairs) for _ in range(count)] for count in counts]

    def add(self, row: list[tuple[torch.Tensor, int]], image: torch.Tensor, environment: int) -> None:
        """Adds the newest image of an environment, and the transitions that end there."""
        self.frames.show(image, environment)
        for numbers, first_image in row:
            self.frames.keep(numbers, first_image, environment)
