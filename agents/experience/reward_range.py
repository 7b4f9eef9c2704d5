"""Checks that scaled rewards do not vanish in the format of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self, final

import numpy as np
import torch

from ...formats import Format, round
from ..errors import RunError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..config.learning_keys import OptimizerKeys


@final
class RewardRange:
    """The largest of all scaled rewards so far.

    Args:
        format: the format of the run.
        scale: the factor of rewards.
    """

    def __init__(self, format: Format, scale: float) -> None:
        self._format, self._scale = format, scale
        self._largest = 0.0
        self._survives = False

    @classmethod
    def of(cls, config: OptimizerKeys) -> Self | None:
        """Returns the range of a run; None where rewards are not scaled."""
        return None if config.scale_of_rewards == 1 else cls(Format.parse(config.format), config.scale_of_rewards)

    def see(self, rewards: NDArray[np.floating[Any]]) -> None:
        """Takes scaled rewards into account, except NaN and infinities."""
        if not self._survives:
            finite = np.abs(rewards[np.isfinite(rewards)])
            self._largest = max(self._largest, float(finite.max(initial=0.0)))

    def check(self) -> None:
        """Checks the rewards so far, before the agent learns from them.

        Raises:
            RunError: some rewards are not 0, but all of them round to 0 when scaled.
        """
        if self._survives or not self._largest:
            return
        if not float(round(torch.tensor([self._largest], dtype=torch.float64), self._format)):
            raise RunError(
                f"reward_scale {self._scale:g} makes 0 of every reward so far in {self._format}: the largest,"
                f" {self._largest / self._scale:g}, becomes {self._largest:g}, and the smallest number there is"
                f" {self._format.smallest:g}; give a larger reward_scale"
            )
        self._survives = True
