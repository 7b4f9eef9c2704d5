"""Exponential moving averages of parameters: plain, and by compensated summation (Kahan-momentum)."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any, final

import torch

from ..errors import RunError
from .kahan_gradients import kahan_add_


class MovingAverage(ABC):
    """An average that follows a tensor: average <- average + tau (source - average)."""

    average: torch.Tensor

    @abstractmethod
    def update_(self, source: torch.Tensor) -> None:
        """Moves the average towards ``source`` by one step, in place."""

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """What is needed, beside the average itself, to continue identically."""

    @abstractmethod
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes over what :meth:`state_dict` returned."""


@final
class PlainEMA(MovingAverage):
    """The average as usually written: average <- (1 - tau) average + tau source.

    In low precision it stops: once tau * |source - average| is below half an ulp of the average (for tau = 0.005 in
    e5m10 that is a difference of ten percent), nothing changes any more.

    Args:
        average: the tensor kept up to date; any floating-point type; changed in place.
        tau: the step, in (0, 1].

    Source:
        Low-precision SAC, Section 3, "Stability of Soft-Updates", with beta = 1 - tau.
    """

    def __init__(self, average: torch.Tensor, tau: float) -> None:
        self.average = average
        self.kept: float | torch.Tensor = 1 - tau
        self.taken: float | torch.Tensor = tau

    @torch.no_grad()
    def update_(self, source: torch.Tensor) -> None:
        """Moves the average towards ``source``; NaN and infinity spread into it."""
        self.average.mul_(self.kept).add_(source * self.taken)

    def state_dict(self) -> dict[str, Any]:
        """Nothing: the average is all its state."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes nothing over."""


class KahanEMA(MovingAverage):
    """The average kept C times as large in a buffer, to which the steps are added by Kahan summation.

    buffer <-(Kahan)- buffer + tau (C source - buffer), and average = buffer / C, rounded. The scale C keeps
    the steps from underflowing, the compensation keeps them from being absorbed. Where C source would come near
    the largest number (C = 1e4 in e5m10: sources above 6.55), C and the buffers are halved, which is exact.

    Args:
        average: the tensor kept up to date; any floating-point type; changed in place; its value is where it starts.
        tau: the step, in (0, 1].
        scale: C >= 1.
        largest: the largest finite number of the format.

    Raises:
        RunError: an argument is out of range.

    Source:
        Low-precision SAC, Section 3, Kahan-momentum.
    """

    def __init__(self, average: torch.Tensor, tau: float, *, scale: float = 1e4, largest: float = math.inf) -> None:
        if not (0 < tau <= 1 and scale >= 1 and largest > 0):
            raise RunError(f"KahanEMA needs 0 < tau <= 1, scale >= 1 and largest > 0; got {tau=}, {scale=}, {largest=}")
        self.average = average
        self.minus_tau: float | torch.Tensor = -tau
        self.scale = self.largest_scale = scale
        self.largest = largest
        self._make_room(average)
        self.buffer = torch.mul(average.detach(), self.scale)
        self.compensation = torch.zeros_like(self.buffer)

    @torch.no_grad()
    def update_(self, source: torch.Tensor) -> None:
        """Moves the average towards ``source``; NaN and infinity spread into it."""
        factor = self._make_room(source)
        # Also by 1: every update is the same operations, and draws as many random bits.
        self.buffer.mul_(factor)
        self.compensation.mul_(factor)
        change = self._difference(source).mul_(self.minus_tau)
        kahan_add_(self.buffer, self.compensation, change)
        torch.div(self.buffer, self.scale, out=self.average)

    def state_dict(self) -> dict[str, Any]:
        """The scale C, the buffer and its compensation."""
        return {"scale": self.scale, "buffer": self.buffer, "compensation": self.compensation}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes them over."""
        self.scale = state["scale"]
        self.buffer.copy_(state["buffer"])
        self.compensation.copy_(state["compensation"])

    def _difference(self, source: torch.Tensor) -> torch.Tensor:
        """Buffer - C source, as one operation."""
        return torch.sub(self.buffer, source, alpha=self.scale)

    def _make_room(self, source: torch.Tensor) -> float:
        """Halves C until C |source| has a factor of 2 to spare; returns by what C changed.

        The buffer lies between itself and C * source at every step, so it cannot overflow if that cannot. The factor
        of 2 is for the compensation and the rounding of sums.
        """
        if not source.numel():
            return 1.0
        low, high = torch.aminmax(source)
        magnitude = max(-low.item(), high.item())
        factor = 1.0
        while math.isfinite(magnitude) and self.scale > 1 and 2 * self.scale * magnitude > self.largest:
            self.scale /= 2
            factor /= 2
        return factor
