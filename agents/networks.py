"""Multi-layer perceptrons whose parameters are one flat tensor."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, final

import torch
from torch import _foreach_copy_

if TYPE_CHECKING:
    from collections.abc import Sequence


@final
class MLP:
    """An ensemble of perceptrons with ReLU between their layers, computed together.

    All weights and biases are views into ``flat``; an optimizer, a moving average and a checkpoint then
    work on one tensor. ``flat.grad`` holds the gradients, in the same order.

    Args:
        sizes: widths of the layers: inputs, hidden ..., outputs.
        ensemble: how many perceptrons there are (2 for twin critics).
        dtype: any floating-point type; the initial weights are rounded to it.
        device: where the parameters live.
        generator: a CPU generator for the initial weights: orthogonal, gain 1; biases are 0. They are drawn in
            float32 whatever the dtype, so that runs of one seed in any format start alike.

    Attributes:
        flat: every parameter, layer by layer, weights before biases; 1-D.
        layers: the views of ``flat`` by layer: weights (ensemble, in, out) and biases (ensemble, 1, out).
    """

    def __init__(
        self,
        sizes: Sequence[int],
        *,
        ensemble: int,
        dtype: torch.dtype,
        device: torch.device,
        generator: torch.Generator,
    ) -> None:
        shapes = [shape for n_in, n_out in pairwise(sizes) for shape in ((ensemble, n_in, n_out), (ensemble, 1, n_out))]
        counts = [a * b * c for a, b, c in shapes]
        self.flat = torch.zeros(sum(counts), dtype=dtype, device=device)
        self.flat.grad = torch.zeros_like(self.flat)
        self._shapes = shapes
        self._counts = counts
        self.layers = self.views(self.flat)
        for weight in self.layers[0::2]:
            for member in weight:
                # Orthogonal in the layout (out, in), as is usual.
                drawn = torch.empty(member.mT.shape, dtype=torch.float32)
                member.copy_(torch.nn.init.orthogonal_(drawn, generator=generator).mT)
        self.trainable = [layer.detach().requires_grad_() for layer in self.layers]
        self._gradients = self.views(self.flat.grad)

    def views(self, flat: torch.Tensor) -> list[torch.Tensor]:
        """Layers of this network's shapes as views into ``flat``, which is like ``self.flat``."""
        return [part.view(shape) for part, shape in zip(torch.split(flat, self._counts), self._shapes, strict=True)]

    def compute_gradients(self, outputs: torch.Tensor, weights: torch.Tensor) -> None:
        """Differentiates sum(weights * outputs) by every parameter; the result lies in ``flat.grad``.

        Args:
            outputs: something computed from ``trainable``.
            weights: as ``outputs``, or a number for all of them; a loss scale belongs here.
        """
        gradients = torch.autograd.grad(outputs, self.trainable, grad_outputs=weights)
        _foreach_copy_(self._gradients, gradients)


def forward(layers: Sequence[torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    """Computes an ensemble of perceptrons.

    Args:
        layers: weights and biases as :class:`MLP` has them.
        x: inputs (batch, in), the same for all members.

    Returns:
        (ensemble, batch, out).
    """
    h = x.expand(layers[0].shape[0], *x.shape)
    for i in range(0, len(layers) - 2, 2):
        h = torch.baddbmm(layers[i + 1], h, layers[i]).relu_()
    return torch.baddbmm(layers[-1], h, layers[-2])
