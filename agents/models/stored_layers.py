"""Layers that store their operands and gradients in separate formats."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self, final

import torch

from ..stored import Kept

if TYPE_CHECKING:
    from ..config.storage import Storage


class _StoreBothWays(torch.autograd.Function):
    """Keeps forward values in one format, and backward values in another."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, forward: Kept | None, backward: Kept | None) -> Any:
        ctx.storage = backward
        return x.view_as(x) if forward is None else forward(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        (gradient,) = gradients
        return gradient if ctx.storage is None else ctx.storage(gradient), None, None


@final
@dataclass(frozen=True)
class StoredLayers:
    """Rounds the operands of a network's products, and their gradients, to storage formats between layers.

    Gradients pass straight through the rounding. Values are stored after the bias and the activation function.

    Attributes:
        activations: format of the network's inputs and the results of hidden layers; None leaves them unrounded.
        gradients: format of gradients with respect to these and to the network's output; None leaves them unrounded.
    """

    activations: Kept | None
    gradients: Kept | None

    @classmethod
    def of(cls, storage: Storage | None) -> Self | None:
        """Makes the formats that a config gives to layers; returns None if it gives none."""
        if storage is None or not (storage.activations or storage.gradients):
            return None
        return cls(*(stored and Kept.of(stored) for stored in (storage.activations, storage.gradients)))

    def multiplied(self, x: torch.Tensor) -> torch.Tensor:
        """Stores ``x``, the input of a layer, in the forward format; its gradient is stored in the backward format."""
        operand: torch.Tensor = _StoreBothWays.apply(x, self.activations, self.gradients)  # type: ignore[no-untyped-call]
        return operand

    def result(self, x: torch.Tensor) -> torch.Tensor:
        """Returns the network's output unrounded, since no layer multiplies it; its gradient is stored."""
        if self.gradients is None:
            return x
        result: torch.Tensor = _StoreBothWays.apply(x, None, self.gradients)  # type: ignore[no-untyped-call]
        return result
