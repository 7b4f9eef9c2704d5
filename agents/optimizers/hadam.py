"""hAdam: Adam that keeps the root of the second moment, by hypot; and its part shared with RMSProp."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, final

import torch
from torch import Tensor, _foreach_mul_

from .adam import AdamBase
from .decisions import with_number
from .stochastic_moments import stochastic_root_


class KeepingRoots(AdamBase):
    """Adam that keeps the root of the second moment, by hypot: w <- hypot(sqrt(b2) w, sqrt(1 - b2) g)."""

    def _update_second(self, seconds: list[Tensor], gradients: list[Tensor], beta2: float) -> None:
        _foreach_mul_(seconds, math.sqrt(beta2))
        for w, g in zip(seconds, gradients, strict=True):
            torch.hypot(w, g * math.sqrt(1 - beta2), out=w)

    def _move_second(self, second: Tensor, gradient: Tensor, beta2: float) -> None:
        stochastic_root_(second, gradient, beta2)

    @staticmethod
    def _divisor(correction: float) -> float:
        return math.sqrt(correction)

    def _denominators(self, seconds: list[Tensor], divisors: Sequence[float | Tensor]) -> list[Tensor]:
        return [with_number(torch.div, w, divisor) for w, divisor in zip(seconds, divisors, strict=True)]

    def second_factor(self, factor: Any) -> Any:
        """Returns ``factor``: w has the magnitude of a gradient."""
        return factor


@final
class HAdam(KeepingRoots):
    """Adam with w = sqrt(v) in place of v: w <- hypot(sqrt(b2) w, sqrt(1 - b2) g), and d = w / sqrt(1 - b2^t).

    In exact arithmetic it is the same algorithm. w has the magnitude of g, not of g^2, so it needs half of the range of
    exponents; hypot avoids squares that could overflow or underflow. It follows the paper's Algorithm 1 and not the
    published program, where the argument of hypot is (1 - b1) g, which changes the effective eps.

    See :class:`~roundoff.agents.optimizers.adam.AdamBase` for the arguments.

    Source:
        Low-precision SAC, Section 3, Algorithm 1.
    """
