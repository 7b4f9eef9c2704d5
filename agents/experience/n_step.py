"""Transitions over several steps: the rewards between, and the observation after them."""

from __future__ import annotations

from collections import defaultdict, deque
from typing import TYPE_CHECKING, Any, NamedTuple, final

import numpy as np
import torch

from .intake import Intake

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ...formats import Format
    from .prioritized import PrioritizedReplay
    from .replay import Replay
    from .sampling import Sample


class _Begun(NamedTuple):
    """A transition that is under way: its first observation and action, and the rewards since."""

    head: torch.Tensor
    rewards: list[float]


class _Whole(NamedTuple):
    """One that has ended."""

    head: torch.Tensor
    environment: int
    rewards: float
    discount: float


@final
class NStepIntake(Intake):
    """States, in transitions of n steps: (observation, action, observation n steps later, rewards, discount).

    The rewards are r_1 + g r_2 + ... + g^(n-1) r_n, summed in float64 and rounded once to the format, as all that comes
    from outside. The learner multiplies what follows by g^n. Where an episode ends after m < n of the steps, its last
    observation takes the place of the later one; the discount is then 0 at a terminal state (or the loss of a life of
    Atari), and g^(m - n) where time was up, so that what follows counts g^m. Everywhere else it is 1. With n = 1 these
    are the steps themselves.

    Args:
        replay: takes the transitions.
        n: steps of a transition.
        discount: g, per step.
        fmt: of the run.
        dtype: of the agent.
        device: likewise.

    Source:
        Sutton, "Learning to Predict by the Methods of Temporal Differences"; Hessel et al., "Rainbow", Section 2.
    """

    replay: Replay | PrioritizedReplay

    def __init__(
        self,
        replay: Replay | PrioritizedReplay,
        n: int,
        discount: float,
        *,
        fmt: Format,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        super().__init__(fmt, dtype, device)
        self.replay = replay
        self._n, self._discount = n, discount
        # Of every environment, by the number of its group and its own there: old to new.
        self._begun: defaultdict[tuple[int, int], deque[_Begun]] = defaultdict(deque)

    def perceive(self, observations: NDArray[Any]) -> torch.Tensor:
        """(n, observation)."""
        return self.to_format(observations)

    def begin(self, observation: NDArray[Any], environment: int = 0) -> None:
        """Every row has its observation."""

    def rows(self, observations: torch.Tensor, sample: Sample) -> list[torch.Tensor]:
        """The transitions that a sample has completed, (k, 2 observation + action + 2) for each environment."""
        steps = sample.steps
        arrived = self.to_format(np.column_stack((sample.actions, steps.next_observations)))
        action_size = sample.actions.shape[1]
        actions, following = arrived[:, :action_size], arrived[:, action_size:]
        heads = torch.cat((observations, actions), dim=1)
        whole: list[_Whole] = []
        counts = []
        for i, over in enumerate((steps.last | (steps.discounts == 0)).tolist()):
            begun = self._begun[sample.group, i]
            begun.append(_Begun(heads[i], []))
            for one in begun:
                one.rewards.append(float(steps.rewards[i]))
            count = len(begun) if over else int(len(begun) == self._n)
            whole += [self._ended(begun.popleft(), i, float(steps.discounts[i])) for _ in range(count)]
            counts.append(count)
        if not whole:
            return [heads.new_empty(0, 2 * observations.shape[1] + action_size + 2)] * len(counts)
        outcomes = self.to_format(np.array([(one.rewards, one.discount) for one in whole]))
        where = torch.tensor([one.environment for one in whole], device=self.device)
        rows = torch.cat((torch.stack([one.head for one in whole]), following[where], outcomes), dim=1)
        return list(torch.split(rows, counts))

    def remember(self, row: torch.Tensor, sample: Sample, i: int) -> None:  # noqa: ARG002
        """Adds those of one environment."""
        for one in row:
            self.replay.add(one)

    @property
    def ready(self) -> bool:
        """Whether n steps of any episode have been made."""
        return len(self.replay) > 0

    def state_dict(self) -> dict[str, Any]:
        """The transitions that are under way."""
        return {
            "begun": [
                [group, i, torch.stack([one.head for one in begun]).cpu(), [list(one.rewards) for one in begun]]
                for (group, i), begun in sorted(self._begun.items())
                if begun
            ]
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes over what :meth:`state_dict` returned."""
        self._begun.clear()
        for group, i, heads, rewards in state["begun"]:
            pairs = zip(heads.to(self.device), rewards, strict=True)
            self._begun[group, i] = deque(_Begun(head, list(own)) for head, own in pairs)

    def _ended(self, begun: _Begun, environment: int, discount: float) -> _Whole:
        missing = self._n - len(begun.rewards)
        total = sum(self._discount**k * reward for k, reward in enumerate(begun.rewards))
        return _Whole(begun.head, environment, total, discount * self._discount**-missing if discount else 0.0)
