"""The replay buffer: transitions as rows of one tensor."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

import torch


@final
@dataclass(frozen=True)
class Batch:
    """Transitions; every tensor is a view of ``rows``, (batch, ...).

    Attributes:
        rows: the whole rows; the other attributes are their columns.
        observations: (batch, observation).
        observations_and_actions: (batch, observation + action), the input of critics.
        actions: (batch, action).
        next_observations: (batch, observation).
        rewards: (batch, 1).
        discounts: (batch, 1), the environment's: 0 at a terminal state, else 1.
        weights: (batch, 1), the weight of each transition in the loss; (batch, 0) if all weights are 1.
    """

    rows: torch.Tensor
    observations: torch.Tensor
    observations_and_actions: torch.Tensor
    actions: torch.Tensor
    next_observations: torch.Tensor
    rewards: torch.Tensor
    discounts: torch.Tensor
    weights: torch.Tensor

    def weighed(self, weights: torch.Tensor) -> Batch:
        """Returns the transitions with other weights, (n, 1)."""
        sizes = self.observations.shape[1], self.actions.shape[1]
        unweighed = self.rows[:, : self.rows.shape[1] - self.weights.shape[1]]  # Without old weights.
        return batch_of(torch.cat((unweighed, weights), dim=1), *sizes)


@final
class Replay:
    """The last ``capacity`` transitions, sampled uniformly with replacement.

    A transition is one row (observation, action, next observation, reward, discount), so that a batch is gathered by
    one operation and its parts are views.

    Args:
        capacity: the number of rows; the oldest is overwritten.
        observation_size: the number of elements in an observation.
        action_size: the number of elements in an action.
        dtype: any floating-point type.
        device: the device of the rows. On a CPU memory is used only as the buffer fills.
        weighed: whether a row ends with the weight of the transition in the loss.
        planes: whether observations contain only 0 and 1, and are stored as bytes, in ``planes``; ``rows`` has the
            rest. Arguments and results of the methods do not change.

    Attributes:
        outcome_size: the number of elements after the next observation: reward, discount, and the weight if any.
        on_change: called with the index of a transition and True when it has been added.
    """

    def __init__(
        self,
        capacity: int,
        observation_size: int,
        action_size: int,
        *,
        dtype: torch.dtype,
        device: torch.device,
        weighed: bool = False,
        planes: bool = False,
    ) -> None:
        self.observation_size = observation_size
        self.action_size = action_size
        self.outcome_size = 2 + weighed
        row_size = (0 if planes else 2 * observation_size) + action_size + self.outcome_size
        # Not initialized, so that the system provides memory only for rows that are written.
        self.rows = torch.empty(capacity, row_size, dtype=dtype, device=device)
        self.on_change: Callable[[int, bool], None] | None = None
        self.planes = torch.empty(capacity, 2 * observation_size, dtype=torch.uint8, device=device) if planes else None
        self.added = 0

    def __len__(self) -> int:
        return min(self.added, len(self.rows))

    def add(self, row: torch.Tensor) -> None:
        """Adds one transition: a 1-D row as described above."""
        place = self.added % len(self.rows)  # The oldest row, once the buffer is full.
        if self.planes is not None:
            observation, action, next_observation, outcome = torch.split(row, self._widths)
            self.planes[place].copy_(torch.cat((observation, next_observation)))
            row = torch.cat((action, outcome))
        self.rows[place].copy_(row)
        self.added += 1
        if self.on_change:
            self.on_change(place, True)

    def sample(self, batch_size: int, generator: torch.Generator) -> Batch:
        """Draws ``batch_size`` transitions; ``generator`` is of this buffer's device."""
        index = torch.randint(len(self), (batch_size,), generator=generator, device=self.rows.device)
        return self.take(index)

    def take(self, index: torch.Tensor) -> Batch:
        """Returns the transitions at some indices: int64, (n,), on this buffer's device."""
        rows = self.rows.index_select(0, index)
        if self.planes is not None:  # Reassembles the rows; 0 and 1 are exact in every format.
            planes = self.planes.index_select(0, index).to(rows.dtype)
            observations, next_observations = torch.split(planes, self.observation_size, dim=1)
            actions, outcomes = torch.split(rows, [self.action_size, self.outcome_size], dim=1)
            rows = torch.cat((observations, actions, next_observations, outcomes), dim=1)
        return self.as_batch(rows)

    def as_batch(self, rows: torch.Tensor) -> Batch:
        """Returns the parts of rows, as views."""
        return batch_of(rows, self.observation_size, self.action_size)

    def state_dict(self) -> dict[str, Any]:
        """Returns the rows filled so far, and the number of transitions ever added."""
        planes = {} if self.planes is None else {"planes": filled_part(self.planes, len(self))}
        return {"rows": filled_part(self.rows, len(self)), **planes, "added": self.added}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores the state that :meth:`state_dict` returned."""
        self.added = state["added"]
        self.rows[: len(self)].copy_(state["rows"])
        if self.planes is not None:
            self.planes[: len(self)].copy_(state["planes"])

    @property
    def _widths(self) -> list[int]:
        """The widths of the parts of a row."""
        return [self.observation_size, self.action_size, self.observation_size, self.outcome_size]


def batch_of(rows: torch.Tensor, observation_size: int, action_size: int) -> Batch:
    """Returns the parts of rows with transitions of these sizes, as views."""
    o, a = observation_size, action_size
    return Batch(
        rows=rows,
        observations=rows[:, :o],
        observations_and_actions=rows[:, : o + a],
        actions=rows[:, o : o + a],
        next_observations=rows[:, o + a : 2 * o + a],
        rewards=rows[:, 2 * o + a : 2 * o + a + 1],
        discounts=rows[:, 2 * o + a + 1 : 2 * o + a + 2],
        weights=rows[:, 2 * o + a + 2 :],
    )


def filled_part(tensor: torch.Tensor, length: int) -> torch.Tensor:
    """Returns the first ``length`` rows, on the CPU, without the rest of the memory, which PyTorch saves with a view.

    Args:
        tensor: contiguous, any type; shared, not copied, if it is on the CPU.
        length: at most the length of the tensor.
    """
    part = tensor[:length].cpu()
    if not length:
        return torch.empty_like(part)
    # From a NumPy view, PyTorch makes a storage of only this part. As bytes, since NumPy has no bfloat16.
    return torch.from_numpy(part.view(torch.uint8).numpy()).view(part.dtype)
