"""A few counted steps: the cost of one, and their outcome, compared with the same steps in other arithmetic."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, Self

import torch

from ..presence.entering import unsimulated


class CountedSteps(NamedTuple):
    """A few steps of a program, or updates of an agent, that were counted."""

    cost: dict[str, Any]
    """What ``Cost.as_json`` has, for one step."""
    begin: dict[str, torch.Tensor]
    """What is learned, by kind, as it was before the first step, in float64."""
    end: dict[str, torch.Tensor]
    """What is learned after the last step, by kind, in float64."""

    def led_astray(self, reference: Self) -> float:
        """Computes how far these steps deviate from a reference's, relative to its own; the worst kind counts.

        Both begin with the same values and learn from the same. The result is infinite where a value was lost.
        """
        shares = [0.0]
        for name, end in reference.end.items():
            own, far = self.end[name], float((end - reference.begin[name]).norm())
            astray = float((own - end).norm())
            if not math.isfinite(astray):
                return math.inf
            if astray > 0:
                shares.append(astray / far if far > 0 else math.inf)
        return max(shares)


def learned(tensors: Mapping[str, Iterable[torch.Tensor]]) -> dict[str, torch.Tensor]:
    """A copy of the learned values, a vector for each kind."""
    with unsimulated():
        flat = {name: [x.detach().double().cpu().flatten() for x in some] for name, some in tensors.items()}
        return {name: torch.cat(some) for name, some in flat.items() if some}
