"""Loss scaling that scales the optimizer with the loss (compound loss scaling)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, final

import torch

if TYPE_CHECKING:
    from roundoff.agents.adam import AdamBase

# How much below the largest number buffers must stay when the scale grows.
_HEADROOM = 1.1

# Gradients that are NaN whatever the scale must not drive the scale to 0, where everything would be NaN.
_SMALLEST_SCALE = 2.0**-64


@final
class CompoundLossScaler:
    """Steps an optimizer whose gradients come multiplied by a scale that adapts itself.

    The gradients are those of scale * loss; buffers and eps of the optimizer are as much larger, so that its quotient
    is the same and no gradient is ever divided by the scale again, which is where small ones would underflow.
    A step with a gradient that is not finite is skipped, and halves the scale. After ``growth_interval``
    consecutive finite steps the scale doubles, if the buffers, doubled, stay finite with some headroom.

    Use: ``gradients = torch.autograd.grad(loss, params, grad_outputs=torch.tensor(scaler.scale))``, or
    ``loss.backward(gradient=...)``; the loss itself is never multiplied, so it cannot overflow. Then
    ``scaler.step()``. Each optimizer has its own scaler.

    Args:
        optimizer: an ``Adam`` or ``HAdam`` that has not stepped yet.
        initial_scale: where the scale begins.
        growth_interval: finite steps in a row before it doubles.
        largest: the largest finite number of the format; a gradient that large counts as not finite.

    Source:
        Low-precision SAC, Section 3, "Compound Loss Scaling", and Appendix B; the checks are the published program's.
    """

    def __init__(
        self,
        optimizer: AdamBase,
        *,
        initial_scale: float = 1e4,
        growth_interval: int = 10_000,
        largest: float = math.inf,
    ) -> None:
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
            if self.scale > _SMALLEST_SCALE:
                self._rescale(0.5)
            self.finite_steps = 0
            return False
        self.optimizer.step()
        self.finite_steps += 1
        if self.finite_steps >= self.growth_interval:
            self.finite_steps = 0
            if self.optimizer.can_rescale(2.0, self.largest / _HEADROOM):
                self._rescale(2.0)
        return True

    def state_dict(self) -> dict[str, Any]:
        """Scale and counter; the optimizer's state is its own."""
        return {"scale": self.scale, "finite_steps": self.finite_steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes them over; the optimizer's state must be loaded too."""
        self.scale = state["scale"]
        self.finite_steps = state["finite_steps"]

    def _rescale(self, factor: float) -> None:
        self.scale *= factor
        self.optimizer.rescale_(factor)

    def _gradients_are_finite(self) -> bool:
        gradients = [p.grad for group in self.optimizer.param_groups for p in group["params"] if p.grad is not None]
        # One pass that gives NaN for NaN; isfinite().all() would take five.
        extremes = [value for gradient in gradients for value in torch.aminmax(gradient)]
        # Strictly below: a format without infinities saturates, and the largest number stands for what is beyond.
        return all(abs(value.item()) < self.largest for value in extremes)
