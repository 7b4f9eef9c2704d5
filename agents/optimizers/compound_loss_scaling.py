"""Loss scaling that scales the optimizer with the loss (compound loss scaling)."""

from __future__ import annotations

from operator import truediv
from typing import final

from torch import Tensor

from ...formats import unsimulated
from .dynamic_loss_scale import DynamicLossScale

# The ratio of the largest number to the largest element of doubled buffers, at least.
HEADROOM = 1.1
_quotient = unsimulated(truediv)


@final
class CompoundLossScaler(DynamicLossScale):
    """Steps an optimizer with gradients multiplied by an adaptive scale.

    The gradients are of scale * loss; buffers and eps of the optimizer are larger by the same factor, so that its
    quotient is the same. No gradient is ever divided by the scale again, where small gradients would underflow.
    A step with a gradient that is not finite is skipped, and halves the scale. After ``growth_interval`` consecutive
    finite steps the scale doubles, if the buffers, doubled, stay finite with some headroom.

    Use: ``gradients = torch.autograd.grad(loss, params, grad_outputs=torch.tensor(scaler.scale))``, or
    ``loss.backward(gradient=...)``; the loss itself is never multiplied, so it cannot overflow. Then
    ``scaler.step()``. Each optimizer has a separate scaler.

    Args:
        optimizer: an ``Adam`` or ``HAdam`` that has not stepped yet.
        initial_scale: the first scale.
        growth_interval: the number of consecutive finite steps after which the scale doubles.
        largest: the largest finite number of the format; a gradient of this magnitude counts as not finite.

    Source:
        Low-precision SAC, Section 3, "Compound Loss Scaling", and Appendix B; the checks are the published program's.
    """

    def _rescale(self, factor: float | Tensor) -> None:
        super()._rescale(factor)
        self.optimizer.rescale_(factor)

    def _may_double(self) -> Tensor:
        return self.optimizer.has_room(2.0, _quotient(self.largest, HEADROOM))

    def _step_optimizer(self, finite: Tensor) -> None:
        self.optimizer.step(where=finite)
