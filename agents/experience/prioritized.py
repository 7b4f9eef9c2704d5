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
    """Weights, and which of them a part of their sum falls upon: both in O(log n), for many at once.

    A binary tree of sums in float64. Each node is the sum of its two children at any time, whatever the order of the
    changes, so that the tree follows from the weights, bit for bit.

    Args:
        capacity: the number of weights; they begin as 0.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._leaves = 1 << (capacity - 1).bit_length()
        self._nodes = np.zeros(2 * self._leaves)

    @property
    def total(self) -> float:
        """The sum of all weights."""
        return float(self._nodes[1])

    def __getitem__(self, places: Any) -> NDArray[np.float64]:
        weights: NDArray[np.float64] = self._nodes[self._leaves : self._leaves + self._capacity][places]
        return weights

    def set(self, places: NDArray[np.int64], weights: NDArray[np.float64]) -> None:
        """Changes weights: not negative, finite. Of a place that comes twice, the last one counts."""
        nodes = places + self._leaves
        self._nodes[nodes] = weights
        while nodes[0] > 1:
            nodes = nodes >> 1
            self._nodes[nodes] = self._nodes[2 * nodes] + self._nodes[2 * nodes + 1]

    def find(self, parts: NDArray[np.float64]) -> NDArray[np.int64]:
        """The places where the cumulative sums, in order, first exceed values in [0, total); never one of weight 0.

        The total must not be 0.
        """
        nodes = np.ones(len(parts), dtype=np.int64)
        rest = parts.copy()
        while nodes[0] < self._leaves:
            nodes *= 2
            left = self._nodes[nodes]
            # The sums are rounded, so that a part may lie beyond all weights of a branch.
            right = ((rest >= left) & (self._nodes[nodes + 1] > 0)) | (left == 0)
            rest -= np.where(right, left, 0)
            nodes += right
        return nodes - self._leaves


@final
class PrioritizedReplay:
    """Draws transition i with probability P(i) = p_i / sum of p, and weighs it by (n P(i))^-b in the loss.

    A new transition has the largest priority so far, so that it is drawn soon; then the learner sets its priority after
    each update. The sum is divided into equal parts, one for each transition of a batch, and one is drawn in each.
    Weights are divided by the largest one of the batch. b rises linearly to 1 in the course of the run.

    Transitions that have weights already (``Replay``) get the products of both.

    Priorities are numbers of the format, which the learner computes with the exponent in them. Their sums,
    probabilities and weights are computed in float64, outside of the format, and the weights rounded to it once: sums
    over a buffer are beyond the largest number of small formats, and so is 1 / P(i).

    Args:
        replay: keeps the transitions, none yet.
        importance_exponent: b at the beginning.
        additions: transitions of the whole run.
        fmt: the format of the run.

    Source:
        Schaul et al., "Prioritized Experience Replay", Algorithm 1 and Section 3.3.
    """

    def __init__(
        self, replay: Replay | FrameReplay, importance_exponent: float, *, additions: int, fmt: Format
    ) -> None:
        self.replay = replay
        replay.on_change = self._note
        self._exponent, self._additions = importance_exponent, additions
        assert fmt.max is not None
        assert fmt.smallest is not None
        self._format, self._bounds = fmt, (fmt.smallest, fmt.max)
        self._tree = SumTree(len(replay.rows))
        self._highest = 1.0
        self._drawn = np.zeros(0, dtype=np.int64)

    def __len__(self) -> int:
        return len(self.replay)

    def sample(self, batch_size: int, generator: torch.Generator) -> Batch | FrameBatch:
        """Draws ``batch_size`` transitions, with their weights; ``generator`` is of this buffer's device."""
        uniform = torch.rand(batch_size, generator=generator, dtype=torch.float64, device=generator.device)
        total = self._tree.total
        parts = (np.arange(batch_size) + uniform.cpu().numpy()) / batch_size * total
        self._drawn = self._tree.find(parts)
        progress = min(self.replay.added / self._additions, 1.0)
        exponent = self._exponent + (1 - self._exponent) * progress
        weights = (len(self) * self._tree[self._drawn] / total) ** -exponent
        drawn = self.replay.take(torch.from_numpy(self._drawn).to(self.replay.rows.device))
        products = torch.from_numpy(weights / weights.max())
        if isinstance(drawn, Batch) and drawn.weights.shape[1]:
            products = products * drawn.weights[:, 0].to("cpu", torch.float64)
        rounded = round(products, self._format).to(drawn.rows)
        return drawn.weighed(rounded.unsqueeze(1))

    def prioritize(self, priorities: torch.Tensor) -> None:
        """Changes the priorities of the transitions that were drawn last; waits for the device.

        Args:
            priorities: one value for each. NaN counts as the largest priority so far, infinity as the largest number of
                the format, and 0 as its smallest positive one: a transition with priority 0 would never be drawn again.
        """
        given = priorities.detach().flatten().to(device="cpu", dtype=torch.float64).numpy()
        given = np.where(np.isnan(given), self._highest, given).clip(*self._bounds)
        self._highest = max(self._highest, float(given.max()))
        self._tree.set(self._drawn, given)

    def state_dict(self) -> dict[str, Any]:
        """The transitions and their priorities."""
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
        """The number of places, from 0, that contain all transitions."""
        return len(self) if isinstance(self.replay, Replay) else len(self.replay.rows)

    def _note(self, place: int, there: bool) -> None:
        """Gives a new transition the largest priority so far, and removes the priority of a forgotten one."""
        self._tree.set(np.array([place]), np.array([self._highest if there else 0.0]))
