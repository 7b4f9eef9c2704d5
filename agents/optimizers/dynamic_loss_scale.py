"""A loss scale that adapts itself: halved after gradients that are not finite, doubled after many finite steps.

:class:`LossScaler` is conventional loss scaling: gradients are divided by the scale before the optimizer uses them.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, final

import torch
from torch import Tensor

from ...formats import unsimulated, where
from ..errors import RunError
from .adam import AdamBase
from .decisions import known_false, known_true, magnitude, multiply_, number_or_tensor, number_tensor

# Gradients that are NaN with any scale must not reduce the scale to 0, which would make everything NaN.
SMALLEST_SCALE = 2.0**-64
"""The scale below which it is not halved."""

_equal = unsimulated(torch.eq)


class DynamicLossScale(ABC):
    """Steps an optimizer with gradients multiplied by a scale; the subclass defines how the optimizer handles it.

    Args:
        optimizer: an ``Adam`` or ``HAdam`` that has not stepped yet.
        initial_scale: the first scale.
        growth_interval: the number of consecutive finite steps after which the scale doubles.
        largest: the largest finite number of the format; a gradient of this magnitude counts as not finite.

    Attributes:
        scale: the factor to multiply gradients by.
        finite_steps: the number of finite steps since the last change of the scale.
        tensors: the scale and the number of finite steps, as tensors.

    Raises:
        RunError: the optimizer is of another kind, or a number is out of range.

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
                f" {type(optimizer).__module__}.{type(optimizer).__name__}; use roundoff.remedies.HAdam"
            )
        if not (0 < initial_scale < math.inf and growth_interval >= 1 and largest > 0):
            raise RunError(
                f"{type(self).__name__} needs a finite initial_scale > 0, growth_interval >= 1 and largest > 0;"
                f" got {initial_scale=}, {growth_interval=}, {largest=}"
            )
        self.optimizer = optimizer
        self.growth_interval = growth_interval
        self.largest: float | Tensor = largest
        device = optimizer.defaults["loss_scale"].device
        self.tensors = {"scale": number_tensor(1.0, device), "finite_steps": number_tensor(0, device)}
        self._rescale(initial_scale)

    @property
    def scale(self) -> float:
        """Returns the scale; waits for the device."""
        return float(self.tensors["scale"])

    @property
    def finite_steps(self) -> int:
        """Returns the number of finite steps; waits for the device."""
        return int(self.tensors["finite_steps"])

    def step(self) -> bool:
        """Steps the optimizer with the gradients its parameters hold, unless one of them is NaN or infinite.

        Returns:
            Whether the step was taken.
        """
        return bool(self.step_if_finite())

    @torch.no_grad()
    def step_if_finite(self) -> Tensor:
        """Steps in the same way as :meth:`step`, without waiting for the device."""
        finite = _are_below([magnitude(gradient) for gradient in self._gradients()], self.largest)
        if not known_false(finite):
            self._step_optimizer(finite)
        due = self._count(finite)
        # The scale changes after a step that was not finite, and when growth is due.
        if not (known_true(finite) and known_false(due)):
            may_double = not known_false(due) and self._may_double()
            factor = _halved_or_doubled(self.tensors["scale"], finite, due, may_double)
            if not known_true(_equal(factor, 1)):  # Else the buffers do not change.
                self._rescale(factor)
        return finite

    @unsimulated
    def _count(self, finite: Tensor) -> Tensor:
        """Counts a finite step, or restarts at 0; returns whether there were enough of them for the scale to grow."""
        steps = self.tensors["finite_steps"].add_(1)
        due = finite & (steps >= self.growth_interval)
        if not (known_true(finite) and known_false(due)):
            steps.mul_(finite & ~due)  # The count restarts, unless the condition is true.
        return due

    def state_dict(self) -> dict[str, Any]:
        """Returns the scale and the number of finite steps; the optimizer's state is separate."""
        return {"scale": self.scale, "finite_steps": self.finite_steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores the result of :meth:`state_dict`; the optimizer's state must also be loaded."""
        for name, tensor in self.tensors.items():
            tensor.fill_(state[name])

    @unsimulated
    def _rescale(self, factor: float | Tensor) -> None:
        """Multiplies the scale by ``factor``."""
        self.tensors["scale"].mul_(factor)

    @abstractmethod
    def _may_double(self) -> bool | Tensor:
        """Returns whether the scale may double."""

    @abstractmethod
    def _step_optimizer(self, finite: Tensor) -> None:
        """Steps the optimizer if ``finite`` is true."""

    def _gradients(self) -> list[Tensor]:
        gradients = [p.grad for group in self.optimizer.param_groups for p in group["params"]]
        return [gradient for gradient in gradients if gradient is not None and gradient.numel()]


@unsimulated
def _are_below(magnitudes: Sequence[Tensor], largest: float | Tensor) -> Tensor:
    # Not <=: a format without infinities saturates, so that its largest number also represents overflow.
    below = [value < largest for value in magnitudes] or [torch.full((), True)]  # False for NaN.
    return below[0] if len(below) == 1 else torch.stack(below).all()


@unsimulated
def _halved_or_doubled(scale: Tensor, finite: Tensor, due: Tensor, may_double: Any) -> Tensor:
    halved = ~finite & (scale > SMALLEST_SCALE)
    return where(halved, 0.5, where(due & may_double, 2.0, 1.0)).to(torch.float64)


@final
class LossScaler(DynamicLossScale):
    """Steps an optimizer with unscaled gradients: g <- g * (1 / scale), the scale adapting itself.

    The backward pass computes with gradients large enough not to underflow. Unscaled gradients do underflow, unless
    they are in a wider format (``MasterWeights``): in e5m10 below 3e-8. A step with a gradient that is not finite is
    skipped, and halves the scale; ``growth_interval`` consecutive finite steps double it.
    This is the method of ``torch.amp.GradScaler``, but with a scale for each optimizer, and in any format.

    The gradients are changed in place. For the arguments and attributes see :class:`DynamicLossScale`.

    Source:
        Micikevicius et al., "Mixed Precision Training", Section 3.2; Low-precision SAC, Section 4.3.
    """

    def _may_double(self) -> bool:
        return True  # If the scale becomes too large, gradients overflow, and it is halved again.

    def _step_optimizer(self, finite: Tensor) -> None:
        for gradient in self._gradients():
            # Not the foreach version, whose CPU kernels round the number to half precision first.
            multiply_(gradient, self._unscaling(gradient.dtype))
        self.optimizer.step(where=finite)

    @unsimulated
    def _unscaling(self, dtype: torch.dtype) -> Any:
        return number_or_tensor(self.tensors["scale"].reciprocal(), dtype)
