"""A target network that is copied from time to time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, final

import torch

from ...simulate import Role, in_role
from ..optimizers.kahan_momentum import TraceableAverage


@final
class TargetCopy(TraceableAverage):
    """An average with tau = 1: each update makes it the source, exactly, whatever the format.

    Args:
        average: the tensor that becomes the source; changed in place.

    Source:
        Mnih et al., "Human-level control through deep reinforcement learning", Algorithm 1: every C steps.
    """

    def __init__(self, average: torch.Tensor) -> None:
        self.average = average

    @torch.no_grad()
    @in_role(Role.AVERAGES)
    def update_(self, source: torch.Tensor) -> None:
        """Copies ``source``."""
        self.average.copy_(source)

    def state_dict(self) -> dict[str, Any]:
        """Nothing: the copy is all its state."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes nothing over."""
