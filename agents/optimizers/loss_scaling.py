"""Loss scaling as usual: gradients are divided by the scale again before the optimizer sees them."""

from __future__ import annotations

from typing import Any, final

import torch
from torch import Tensor

from ...formats import unsimulated
from .decisions import multiply_, number_or_tensor
from .dynamic_loss_scale import DynamicLossScale


@final
class LossScaler(DynamicLossScale):
    """Steps an optimizer with unscaled gradients: g <- g * (1 / scale), the scale adapting itself.

    The backward pass computes with gradients large enough not to underflow. Unscaled they do underflow, if they are
    not of a wider format by then (``MasterWeights``): in e5m10 those below 3e-8. A step with a gradient
    that is not finite is skipped, and halves the scale; ``growth_interval`` consecutive finite steps double it.
    What ``torch.amp.GradScaler`` does, but with a scale for each optimizer, and in any format.

    The gradients are changed in place. For the arguments and attributes see
    :class:`~roundoff.agents.optimizers.dynamic_loss_scale.DynamicLossScale`.

    Source:
        Micikevicius et al., "Mixed Precision Training", Section 3.2; Low-precision SAC, Section 4.3.
    """

    def _may_double(self) -> bool:
        return True  # too large a scale shows in the gradients

    def _step_optimizer(self, finite: Tensor) -> None:
        for gradient in self._gradients():
            # Not the foreach version, whose CPU kernels round the number to half precision first.
            multiply_(gradient, self._unscaling(gradient.dtype))
        self.optimizer.step(where=finite)

    @unsimulated
    def _unscaling(self, dtype: torch.dtype) -> Any:
        return number_or_tensor(self.tensors["scale"].reciprocal(), dtype)
