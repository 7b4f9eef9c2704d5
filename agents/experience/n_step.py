"""Transitions over several steps: the rewards between, and the observation after them."""

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
    """A transition that is under way: its initial numbers, the index of its image, and the later steps."""

    head: torch.Tensor
    image: int
    rewards: list[float]
    ratios: list[float]
    """The ratios of the actions after the first one."""


class _CompletedTransition(NamedTuple):
    """One that has ended."""

    head: torch.Tensor
    image: int
    environment: int
    rewards: float
    discount: float
    weight: float


@final
class _UnderWay:
    """The transitions that have begun and not ended, of every environment.

    The rewards are r_1 + g r_2 + ... + g^(n-1) r_n, summed in float64. The learner multiplies the next value by g^n.
    Where an episode ends after m < n of the steps, its last observation takes the place of the later one; the discount
    is then 0 at a terminal state (or the loss of a life of Atari), and g^(m - n) where time was up, so that what
    follows counts g^m. Everywhere else it is 1.

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
        # By the number of the group and the environment's own there: old to new.
        self._begun: defaultdict[tuple[int, int], deque[_PendingTransition]] = defaultdict(deque)

    def step(
        self, sample: Sample, heads: torch.Tensor, images: list[int]
    ) -> tuple[list[_CompletedTransition], list[int]]:
        """The transitions that a sample has ended, and their number for each environment; ``heads`` begin with it."""
        steps = sample.steps
        whole: list[_CompletedTransition] = []
        counts = []
        for i, over in enumerate((steps.last | (steps.discounts == 0)).tolist()):
            begun = self._begun[sample.group, i]
            if sample.ratios is not None:
                for one in begun:
                    one.ratios.append(float(sample.ratios[i]))
            begun.append(_PendingTransition(heads[i], images[i], [], []))
            for one in begun:
                one.rewards.append(float(steps.rewards[i]))
            count = len(begun) if over else int(len(begun) == self._n)
            whole += [self._ended(begun.popleft(), i, float(steps.discounts[i])) for _ in range(count)]
            counts.append(count)
        return whole, counts

    def forget(self, group: int) -> None:
        """Drops the transitions of a group."""
        for key in [key for key in self._begun if key[0] == group]:
            del self._begun[key]

    def state_dict(self) -> dict[str, Any]:
        """All of them."""
        return {
            "begun": [
                [group, i, torch.stack([one.head for one in begun]).cpu(), [list(one.rewards) for one in begun],
                 [one.image for one in begun], [list(one.ratios) for one in begun]]
                for (group, i), begun in sorted(self._begun.items())
                if begun
            ]
        }  # fmt: skip

    def load_state_dict(self, state: dict[str, Any], device: torch.device) -> None:
        """Restores the state that :meth:`state_dict` returned."""
        self._begun.clear()
        for group, i, heads, rewards, images, ratios in state["begun"]:
            parts = zip(heads.to(device), images, rewards, ratios, strict=True)
            self._begun[group, i] = deque(
                _PendingTransition(head, image, list(own), list(more)) for head, image, own, more in parts
            )

    def _ended(self, begun: _PendingTransition, environment: int, discount: float) -> _CompletedTransition:
        missing = self._n - len(begun.rewards)
        total = sum(self._discount**k * reward for k, reward in enumerate(begun.rewards))
        after = discount * self._discount**-missing if discount else 0.0
        return _CompletedTransition(begun.head, begun.image, environment, total, after, math.prod(begun.ratios))


class _ManySteps(Intake):
    """An intake of transitions that end several steps after they have begun."""

    _under_way: _UnderWay

    def forget(self, group: int) -> None:
        """Drops the transitions of a group that are under way."""
        self._under_way.forget(group)

    @property
    def ready(self) -> bool:
        """Whether n steps of any episode have been made."""
        return len(self.replay) > 0

    def state_dict(self) -> dict[str, Any]:
        """The transitions that are under way."""
        return self._under_way.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores the state that :meth:`state_dict` returned."""
        self._under_way.load_state_dict(state, self.device)


@final
class NStepIntake(_ManySteps):
    """States, in transitions of n steps: (observation, action, observation n steps later, rewards, discount).

    Sums of rewards and discounts are rounded once to the format, as all that comes from outside; see ``_UnderWay``.
    With n = 1 these are the steps themselves. If the replay buffer keeps weights, theirs come last.

    Args:
        replay: takes the transitions.
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
        self._under_way = _UnderWay(n, discount)

    def perceive(self, observations: NDArray[Any]) -> torch.Tensor:
        """(n, observation)."""
        return self.to_format(observations)

    def begin(self, observation: NDArray[Any], environment: int = 0) -> None:
        """Every row has its observation."""

    def rows(self, observations: torch.Tensor, sample: Sample) -> list[torch.Tensor]:
        """The transitions that a sample has completed, (k, 2 observation + action + 2) for each environment."""
        arrived = self.to_format(np.column_stack((sample.actions, sample.steps.next_observations)))
        action_size = sample.actions.shape[1]
        actions, following = arrived[:, :action_size], arrived[:, action_size:]
        heads = torch.cat((observations, actions), dim=1)
        whole, counts = self._under_way.step(sample, heads, [0] * len(heads))
        count = self.rows_kept.outcome_size
        if not whole:
            return [heads.new_empty(0, 2 * observations.shape[1] + action_size + count)] * len(counts)
        outcomes = self.to_format(np.array([(one.rewards, one.discount, one.weight)[:count] for one in whole]))
        where = torch.tensor([one.environment for one in whole], device=self.device)
        rows = torch.cat((torch.stack([one.head for one in whole]), following[where], outcomes), dim=1)
        return list(torch.split(rows, counts))

    def remember(self, row: torch.Tensor, sample: Sample, i: int) -> None:  # noqa: ARG002
        """Adds the transitions of one environment."""
        for one in row:
            self.rows_kept.add(one)


@final
class NStepPixelIntake(_ManySteps, PixelIntake):
    """Stacks of images, in transitions of n steps; each image is kept once.

    Args:
        replay: takes the images and the transitions.
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
        self._under_way = _UnderWay(n, discount)

    def rows(self, observations: torch.Tensor, sample: Sample) -> list[list[tuple[torch.Tensor, int]]]:  # noqa: ARG002
        """Returns the transitions that a sample completed, by environment: rows, (action + 2,), and image numbers."""
        actions = self.to_format(sample.actions)
        images = [self.frames.newest(sample.first + i) for i in range(len(actions))]
        whole, counts = self._under_way.step(sample, actions, images)
        if not whole:
            return [[]] * len(counts)
        outcomes = self.to_format(np.array([(one.rewards, one.discount) for one in whole]))
        rows = torch.cat((torch.stack([one.head for one in whole]), outcomes), dim=1)
        completed = iter(zip(rows, (one.image for one in whole), strict=True))
        return [[next(completed) for _ in range(count)] for count in counts]

    def add(self, row: list[tuple[torch.Tensor, int]], image: torch.Tensor, environment: int) -> None:
        """Adds the newest image of an environment, and the transitions that end there."""
        self.frames.show(image, environment)
        for numbers, begun in row:
            self.frames.keep(numbers, begun, environment)
