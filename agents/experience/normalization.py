"""Running means and deviations of observations, and of discounted returns, to scale the inputs of a learner."""

from __future__ import annotations

from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray

from ..config.on_policy_keys import NORMALIZED_LIMIT

_EPS = 1e-8  # added to variances
_FIRST_COUNT = 1e-4  # the weight of the initial moments, mean 0 and variance 1, in rows


@final
class RunningMoments:
    """Mean and variance of each element of all rows so far, in float64; NaN and infinities stay in them.

    Args:
        size: the number of elements in a row.

    Attributes:
        state: mean, variance and count, (3, size), float64 on the CPU: the complete state for checkpoints.

    Source:
        Chan, Golub & LeVeque, "Updating Formulae and a Pairwise Algorithm for Computing Sample Variances"; the
        initial moments, with the weight of 1e-4 rows, are as in OpenAI's Baselines.
    """

    def __init__(self, size: int) -> None:
        self.state = torch.stack([torch.full((size,), x, dtype=torch.float64) for x in (0.0, 1.0, _FIRST_COUNT)])

    @property
    def mean(self) -> NDArray[np.float64]:
        """The mean of each element, (size,)."""
        mean: NDArray[np.float64] = self._numbers[0]
        return mean

    @property
    def deviation(self) -> NDArray[np.float64]:
        """The square root of variance + ``1e-8`` of each element, (size,)."""
        deviation: NDArray[np.float64] = np.sqrt(self._numbers[1] + _EPS)
        return deviation

    def see(self, rows: NDArray[Any]) -> None:
        """Updates the moments with rows, (n, size)."""
        rows = rows.astype(np.float64)
        mean, variance, count = self._numbers
        new_count, difference = len(rows), rows.mean(axis=0) - mean
        total = count + new_count
        squares = variance * count + rows.var(axis=0) * new_count + difference**2 * count * new_count / total
        mean += difference * new_count / total
        variance[:] = squares / total
        count += new_count

    @property
    def _numbers(self) -> NDArray[np.float64]:
        moments: NDArray[np.float64] = self.state.numpy()
        return moments


@final
class ObservationNormalizer:
    """Subtracts the running mean of observations, divides by their deviation, and clips to +-``NORMALIZED_LIMIT``.

    It computes in float64, before observations are rounded to the format of a run.

    Args:
        size: the number of elements in an observation.

    Attributes:
        moments: the moments of all observations in training.
    """

    def __init__(self, size: int) -> None:
        self.moments = RunningMoments(size)

    def __call__(self, observations: NDArray[Any]) -> NDArray[np.float64]:
        """Normalizes observations, (n, size), without updating the moments."""
        numbers = (observations.astype(np.float64) - self.moments.mean) / self.moments.deviation
        return numbers.clip(-NORMALIZED_LIMIT, NORMALIZED_LIMIT)


@final
class RewardNormalizer:
    """Divides rewards by the running deviation of discounted returns, and clips them to +-``NORMALIZED_LIMIT``.

    Args:
        discount: the discount of a step.
        groups: the number of environments in each group.
    """

    def __init__(self, discount: float, groups: list[int]) -> None:
        self._discount = discount
        self._moments = RunningMoments(1)
        self._returns = [np.zeros(n) for n in groups]

    def __call__(self, group: int, rewards: NDArray[np.floating[Any]], last: NDArray[np.bool_]) -> NDArray[np.float64]:
        """Normalizes the rewards of a step of a group, (n,), after updating the moments with them.

        Args:
            group: the number of the group.
            rewards: the original rewards, (n,).
            last: whether an episode ended, (n,).
        """
        self._returns[group] = self._returns[group] * self._discount + rewards
        self._moments.see(self._returns[group][:, None])
        self._returns[group][last] = 0.0
        return (rewards.astype(np.float64) / self._moments.deviation).clip(-NORMALIZED_LIMIT, NORMALIZED_LIMIT)

    def state_dict(self) -> dict[str, Any]:
        """Returns the state that is needed to continue identically."""
        return {
            "moments": self._moments.state.clone(),
            "returns": [torch.from_numpy(returns.copy()) for returns in self._returns],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores the state that :meth:`state_dict` returned."""
        self._moments.state.copy_(state["moments"])
        for returns, saved_returns in zip(self._returns, state["returns"], strict=True):
            returns[:] = saved_returns.numpy()
