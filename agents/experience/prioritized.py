"""A replay buffer that samples transitions by priority."""

from __future__ import annotations

from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray

from ...formats import Format, round
from .frame_replay import FrameBatch, FrameReplay
from .replay import Batch, Replay


@final
class SumTree:
    """A binary tree of sums for drawing indices in proportion to weights, in O(log n), for many at once.

    Sums are in float64. Each node is always the rounded sum of its two children, so that the weights determine the
    tree to the bit, independent of the order of changes.

    Args:
        capacity: the number of weights; initially all are 0.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._leaves = 1 << (capacity - 1).bit_length()
        self._nodes = np.zeros(2 * self._leaves)  # As a heap: 1 is the root, i has the children 2 i and 2 i + 1.

    @property
    def total(self) -> float:
        """The sum of all weights."""
        return float(self._nodes[1])

    def __getitem__(self, places: Any) -> NDArray[np.float64]:
        weights: NDArray[np.float64] = self._nodes[self._leaves : self._leaves + self._capacity][places]
        return weights

    def set(self, places: NDArray[np.int64], weights: NDArray[np.float64]) -> None:
        """Changes weights; the new ones are finite and not negative. For repeated places the last weight counts."""
        nodes = places + self._leaves
        self._nodes[nodes] = weights
        while nodes[0] > 1:  # All leaves have the same depth.
            nodes = nodes >> 1
            self._nodes[nodes] = self._nodes[2 * nodes] + self._nodes[2 * nodes + 1]

    def find(self, parts: NDArray[np.float64]) -> NDArray[np.int64]:
        """Returns the places where the cumulative sum first exceeds each value in [0, total); never one of weight 0.

        The total must not be 0.
        """
        nodes = np.ones(len(parts), dtype=np.int64)
        remainders = parts.copy()
        while nodes[0] < self._leaves:
            nodes *= 2
            left_sums = self._nodes[nodes]
            # Sums are rounded, so that a remainder may exceed the sum of a branch: it never goes to one with sum 0.
            goes_right = ((remainders >= left_sums) & (self._nodes[nodes + 1] > 0)) | (left_sums == 0)
            remainders -= np.where(goes_right, left_sums, 0)
            nodes += goes_right
        return nodes - self._leaves


@final
class PrioritizedReplay:
    """A buffer that draws transition i with probability P(i) = p_i / sum of p, with weight (n P(i))^-b in the loss.

    A new transition has the largest priority so far, so that it is drawn soon; the learner sets its priority after
    each update with it. For a batch the sum is divided into equal intervals, and one transition is drawn from each.
    Weights are divided by the largest weight of the batch. b rises linearly to 1 during the run.

    Weights that transitions already have (``Replay``) are multiplied by these weights.

    Priorities are numbers of the format; the learner has already raised them to the exponent. Their sums,
    probabilities and weights are computed in float64, and the weights rounded to the format once: sums over a buffer
    exceed the largest number of small formats, and so does 1 / P(i).

    Args:
        replay: the buffer of the transitions, which is empty.
        importance_exponent: the initial b.
        additions: the number of transitions of the whole run.
        fmt: the format of the run.

    Source:
        Schaul et al., "Prioritized Experience Replay", Algorithm 1 and Section 3.3.
    """

    def __init__(
        self, replay: Replay | FrameReplay, importance_exponent: float, *, additions: int, fmt: Format
    ) -> None:
        self.replay = replay
        replay.on_change = self._set_initial_priority
        self._exponent, self._additions = importance_exponent, additions
        assert fmt.max is not None
        assert fmt.smallest is not None
        self._format, self._bounds = fmt, (fmt.smallest, fmt.max)
        self._tree = SumTree(len(replay.rows))
        self._highest = 1.0
        self._last_places = np.zeros(0, dtype=np.int64)  # Of the transitions in the last batch.

    def __len__(self) -> int:
        return len(self.replay)

    def sample(self, batch_size: int, generator: torch.Generator) -> Batch | FrameBatch:
        """Draws ``batch_size`` transitions, with their weights; ``generator`` is of this buffer's device."""
        uniform = torch.rand(batch_size, generator=generator, dtype=torch.float64, device=generator.device)
        total = self._tree.total
        parts = (np.arange(batch_size) + uniform.cpu().numpy()) / batch_size * total  # One in each equal interval.
        self._last_places = places = self._tree.find(parts)
        progress = min(self.replay.added / self._additions, 1.0)
        exponent = self._exponent + (1 - self._exponent) * progress
        weights = (len(self) * self._tree[places] / total) ** -exponent  # (n P(i))^-b
        batch = self.replay.take(torch.from_numpy(places).to(self.replay.rows.device))
        # Times the weights that transitions already have, in float64; rounded to the format once.
        products = torch.from_numpy(weights / weights.max())
        if isinstance(batch, Batch) and batch.weights.shape[1]:
            products = products * batch.weights[:, 0].to("cpu", torch.float64)
        rounded = round(products, self._format).to(batch.rows)
        return batch.weighed(rounded.unsqueeze(1))

    def prioritize(self, priorities: torch.Tensor) -> None:
        """Changes the priorities of the transitions in the last batch; waits for the device.

        Args:
            priorities: one value for each. NaN counts as the largest priority so far, infinity as the largest number of
                the format, and 0 as its smallest positive one: a transition with priority 0 would never be drawn again.
        """
        values = priorities.detach().flatten().to(device="cpu", dtype=torch.float64).numpy()
        values = np.where(np.isnan(values), self._highest, values).clip(*self._bounds)
        self._highest = max(self._highest, float(values.max()))
        self._tree.set(self._last_places, values)

    def state_dict(self) -> dict[str, Any]:
        """Returns the transitions and their priorities."""
        priorities = torch.from_numpy(self._tree[: self._filled].copy())
        return {**self.replay.state_dict(), "priorities": priorities, "highest": self._highest}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores the state that :meth:`state_dict` returned."""
        self.replay.load_state_dict(state)
        if self._filled:
            self._tree.set(np.arange(self._filled), state["priorities"].numpy())
        self._highest = state["highest"]

    @property
    def _filled(self) -> int:
        """The number of leading places that can contain transitions."""
        return len(self) if isinstance(self.replay, Replay) else len(self.replay.rows)

    def _set_initial_priority(self, place: int, is_stored: bool) -> None:
        """Gives a new transition the largest priority so far, and a removed one priority 0."""
        self._tree.set(np.array([place]), np.array([self._highest if is_stored else 0.0]))
