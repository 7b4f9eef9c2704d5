"""Layers that store their operands and gradients in separate formats."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self, final

import torch

from ..stored import Kept

if TYPE_CHECKING:
    from ..config.storage import Storage


class _Passing(torch.autograd.Function):
    """Keeps forward values in one format, and backward values in another."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, forward: Kept | None, backward: Kept | None) -> Any:
        ctx.kept = backward
        return x.view_as(x) if forward is None else forward(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        (gradient,) = gradients
        return gradient if ctx.kept is None else ctx.kept(gradient), None, None


@final
@dataclass(frozen=True)
class StoredLayers:
    """The storage between the layers of a network: operands of its products, forward and backward, as memory has them.

    Gradients pass straight through the rounding of the values they belong to. Biases are added, and results rounded
    by the activation function, before anything is stored.

    Attributes:
        activations: for inputs of the network and results of hidden layers; None: as computed.
        gradients: for the gradients by these, and by results of the last layer; None: as computed.
    """

    activations: Kept | None
    gradients: Kept | None

    @classmethod
    def of(cls, storage: Storage | None) -> Self | None:
        """Returns the storage that a config asks for; None where it asks for nothing."""
        if storage is None or not (storage.activations or storage.gradients):
            return None
        return cls(*(one and Kept.of(one) for one in (storage.activations, storage.gradients)))

    def multiplied(self, x: torch.Tensor) -> torch.Tensor:
        """Returns the operand of the next layer's product."""
        kept: torch.Tensor = _Passing.apply(x, self.activations, self.gradients)  # type: ignore[no-untyped-call]
        return kept

    def result(self, x: torch.Tensor) -> torch.Tensor:
        """Returns the last layer's result, which is not multiplied here; its gradient is."""
        if self.gradients is None:
            return x
        result: torch.Tensor = _Passing.apply(x, None, self.gradients)  # type: ignore[no-untyped-call]
        return result
