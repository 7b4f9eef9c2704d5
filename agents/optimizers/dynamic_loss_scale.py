"""A loss scale that adapts itself: halved by gradients that are not finite, doubled after a while without."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

import torch

from ..errors import RunError
from .adam import AdamBase

if TYPE_CHECKING:
    from torch import Tensor

# Gradients that are NaN whatever the scale must not drive the scale to 0, where everything would be NaN.
SMALLEST_SCALE = 2.0**-64
"""Below it the scale is not halved."""


class DynamicLossScale(ABC):
    """Steps an optimizer whose gradients come multiplied by a scale; what that means to it, the subclass says.

    Args:
        optimizer: an ``Adam`` or ``HAdam`` that has not stepped yet.
        initial_scale: where the scale begins.
        growth_interval: finite steps in a row before it doubles.
        largest: the largest finite number of the format; a gradient that large counts as not finite.

    Attributes:
        scale: by what the gradients must be multiplied.
        finite_steps: how many there were since the scale changed.

    Raises:
        RunError: the optimizer is another one, or a number is out of range.

    Source:
        Low-precision SAC, Appendix B, after PyTorch's amp; the checks are the published program's.
    """

    def __init__(
        self,
        optimizer: AdamBase,
        *,
        initial_scale: float = 1e4,
        growth_interval: int = 10_000,
        largest: float = math.inf,
    ) -> None:
        if not isinstance(optimizer, AdamBase):
            raise RunError(
                f"{type(self).__name__} scales the buffers of roundoff's Adam and HAdam, got a"
                f" {type(optimizer).__module__}.{type(optimizer).__name__}; use roundoff.agents.HAdam"
            )
        if not (0 < initial_scale < math.inf and growth_interval >= 1 and largest > 0):
            raise RunError(
                f"{type(self).__name__} needs a finite initial_scale > 0, growth_interval >= 1 and largest > 0;"
                f" got {initial_scale=}, {growth_interval=}, {largest=}"
            )
        self.optimizer = optimizer
        self.scale = 1.0
        self.growth_interval = growth_interval
        self.largest = largest
        self.finite_steps = 0
        self._rescale(initial_scale)

    def step(self) -> bool:
        """Steps the optimizer with the gradients its parameters hold, unless one of them is NaN or infinite.

        Returns:
            Whether the step was taken.
        """
        if not self._gradients_are_finite():
            if self.scale > SMALLEST_SCALE:
                self._rescale(0.5)
            self.finite_steps = 0
            return False
        self._step_optimizer()
        self.finite_steps += 1
        if self.finite_steps >= self.growth_interval:
            self.finite_steps = 0
            if self._may_double():
                self._rescale(2.0)
        return True

    def state_dict(self) -> dict[str, Any]:
        """Scale and counter; the optimizer's state is its own."""
        return {"scale": self.scale, "finite_steps": self.finite_steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes them over; the optimizer's state must be loaded too."""
        self.scale = state["scale"]
        self.finite_steps = state["finite_steps"]

    @abstractmethod
    def _rescale(self, factor: float) -> None:
        """Multiplies the scale by ``factor``."""

    @abstractmethod
    def _may_double(self) -> bool:
        """Whether the scale may grow."""

    @abstractmethod
    def _step_optimizer(self) -> None:
        """Steps with gradients that are finite."""

    def _gradients(self) -> list[Tensor]:
        gradients = [p.grad for group in self.optimizer.param_groups for p in group["params"]]
        return [gradient for gradient in gradients if gradient is not None and gradient.numel()]

    def _gradients_are_finite(self) -> bool:
        # One pass that gives NaN for NaN; isfinite().all() would take five.
        extremes = [value for gradient in self._gradients() for value in torch.aminmax(gradient)]
        # Strictly below: a format without infinities saturates, and the largest number stands for what is beyond.
        return all(abs(value.item()) < self.largest for value in extremes)
