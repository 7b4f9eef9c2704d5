"""Networks with parameters in one flat tensor, such as multi-layer perceptrons.

The last layer can compute values of scaled rewards, with gradients without that scale (:func:`head`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from copy import copy
from itertools import pairwise
from typing import Any, Self, final

import torch

from ...formats import unsimulated
from .stored_layers import StoredLayers


@final
class _ScaledLayer(torch.autograd.Function):
    """Computes scale (x W + b), with the derivative of x W + b."""

    @staticmethod
    def forward(
        ctx: Any, bias: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, scale: float, exact: bool
    ) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        return (_unrounded_layer if exact else _layer)(bias, x, weight, scale)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[Any, ...]:
        x, weight = ctx.saved_tensors
        # The gradients are already in the format; only their dtype is float64, like the unrounded outputs.
        gradient = _convert(gradients[0], x.dtype)
        needs_bias, needs_x, needs_weight, *_ = ctx.needs_input_grad
        batch = gradient.ndim - 2  # The axis of the batch.
        return (
            gradient.sum(batch, keepdim=gradient.ndim > 2) if needs_bias else None,
            torch.matmul(gradient, weight.mT) if needs_x else None,
            torch.matmul(x.mT, gradient) if needs_weight else None,
            None,
            None,
        )


def _layer(bias: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, scale: float) -> torch.Tensor:
    return (torch.addmm if x.ndim == 2 else torch.baddbmm)(bias, x, weight, beta=scale, alpha=scale)


_unrounded_layer = unsimulated(lambda bias, x, weight, scale: _layer(bias.double(), x.double(), weight.double(), scale))
_convert = unsimulated(torch.Tensor.to)


def head(
    bias: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, scale: float = 1.0, *, exact: bool = False
) -> torch.Tensor:
    """Computes scale (x W + b), a layer without an activation function, with gradients that ignore the scale.

    The layer is one operation and rounds scale (x W + b) once. Its operands are as large as without a scale, and its
    results are not larger than necessary. Autograd expects the derivative by x W + b for the result, so all
    gradients have the magnitude that they have without a scale.

    Args:
        bias: (out,) or (members, 1, out).
        x: (n, in) or (members, n, in).
        weight: (in, out) or (members, in, out).
        scale: A power of two. With 1 this is ``torch.addmm`` or ``torch.baddbmm``.
        exact: Whether the results are unrounded, in float64, outside of any simulation. Sums of products of values with
            at most 11 significant bits are then exact in any order. Gradients are always in the simulated arithmetic.

    Returns:
        (n, out) or (members, n, out). NaN and infinities propagate as in ``torch.addmm``.
    """
    if scale == 1 and not exact:
        return (torch.addmm if x.ndim == 2 else torch.baddbmm)(bias, x, weight)
    result: torch.Tensor = _ScaledLayer.apply(bias, x, weight, scale, exact)  # type: ignore[no-untyped-call]
    return result


class FlatNetwork(ABC):
    """A network with its weights and biases as views into one tensor, for optimizers, averages and checkpoints.

    ``flat.grad`` holds the gradients, in the same order.

    Args:
        shapes: the shape of every parameter, in order.
        dtype: any floating-point type; the initial weights are rounded to it.
        device: the device of the parameters.
        generator: a CPU generator for the initial weights. They are drawn in float32 for any ``dtype``, so that runs
            with the same seed start from the same weights in every format.

    Attributes:
        flat: every parameter; 1-D.
        layers: the views of ``flat``.
        trainable: views of ``flat`` as leaves of autograd.
    """

    def __init__(
        self, shapes: Sequence[tuple[int, ...]], *, dtype: torch.dtype, device: torch.device, generator: torch.Generator
    ) -> None:
        self._shapes = shapes
        self._counts = [torch.Size(shape).numel() for shape in shapes]  # Elements of each parameter in ``flat``.
        self.flat = torch.zeros(sum(self._counts), dtype=dtype, device=device)
        self.flat.grad = torch.zeros_like(self.flat)  # The target of ``compute_gradients``.
        self.layers = self.views(self.flat)
        self._initialize(generator)
        self.trainable = [layer.detach().requires_grad_() for layer in self.layers]
        self._makes_gradients = False  # Else overwrites ``flat.grad``.

    @abstractmethod
    def _initialize(self, generator: torch.Generator) -> None:
        """Writes the initial values to ``layers``, which are 0."""

    def views(self, flat: torch.Tensor) -> list[torch.Tensor]:
        """Returns layers of this network's shapes as views into ``flat``, which is like ``self.flat``."""
        return [part.view(shape) for part, shape in zip(torch.split(flat, self._counts), self._shapes, strict=True)]

    def compute_gradients(
        self, outputs: torch.Tensor | Sequence[torch.Tensor], weights: torch.Tensor | Sequence[torch.Tensor]
    ) -> None:
        """Differentiates sum(weights * outputs) by every parameter; the result is in ``flat.grad``.

        Args:
            outputs: a tensor computed from ``trainable``, or several.
            weights: the derivative of the loss by ``outputs``, times any loss scale; for each tensor the same shape.
        """
        gradients = torch.autograd.grad(outputs, self.trainable, grad_outputs=weights)
        # One operation, also in programs: random bits of later operations depend on the number of earlier ones.
        parts = [gradient.reshape(-1) for gradient in gradients]
        if self._makes_gradients:
            self.flat.grad = torch.cat(parts)
        else:
            torch.cat(parts, out=self.flat.grad)

    def bound_to(self, flat: torch.Tensor) -> Self:
        """Returns this network with its parameters in ``flat``, for traced programs, which create new gradients."""
        bound = copy(self)
        bound.flat = flat
        bound._makes_gradients = True  # noqa: SLF001  it is a network
        bound.layers = bound.views(flat)
        bound.trainable = [layer.detach().requires_grad_() for layer in bound.layers]
        return bound


@final
class MLP(FlatNetwork):
    """An ensemble of perceptrons with ReLU between their layers, computed together.

    ``layers`` are, layer by layer, weights (ensemble, in, out) and biases (ensemble, 1, out). Initial weights are
    orthogonal with gain 1, and biases 0; or both are uniform within 1 / sqrt(inputs). For the other arguments see
    :class:`FlatNetwork`.

    Args:
        sizes: widths of the layers: inputs, hidden ..., outputs.
        ensemble: the number of perceptrons (2 for twin critics).
        uniform: whether initial weights and biases are uniform.
    """

    def __init__(
        self,
        sizes: Sequence[int],
        *,
        ensemble: int,
        uniform: bool = False,
        dtype: torch.dtype,
        device: torch.device,
        generator: torch.Generator,
    ) -> None:
        self._uniform = uniform
        super().__init__(perceptron_shapes(sizes, ensemble), dtype=dtype, device=device, generator=generator)

    def _initialize(self, generator: torch.Generator) -> None:
        (initialize_uniformly if self._uniform else initialize_perceptrons)(self.layers, generator)


def perceptron_shapes(sizes: Sequence[int], ensemble: int) -> list[tuple[int, ...]]:
    """Returns the shapes of perceptrons of these widths: weights (ensemble, in, out), biases (ensemble, 1, out)."""
    return [shape for n_in, n_out in pairwise(sizes) for shape in ((ensemble, n_in, n_out), (ensemble, 1, n_out))]


def initialize_perceptrons(layers: Sequence[torch.Tensor], generator: torch.Generator, *, gain: float = 1.0) -> None:
    """Draws orthogonal weights for perceptrons, in place; biases do not change."""
    for weight in layers[0::2]:
        for member in weight:
            # Orthogonal in PyTorch's layout (out, in): of a matrix that is not square, only the rows or columns are.
            transposed = torch.empty(member.mT.shape, dtype=torch.float32)
            member.copy_(torch.nn.init.orthogonal_(transposed, gain, generator=generator).mT)


def initialize_uniformly(layers: Sequence[torch.Tensor], generator: torch.Generator) -> None:
    """Draws weights and biases of perceptrons or convolutions uniformly within 1 / sqrt(inputs of an output), in place.

    PyTorch's own layers have the same initial distribution.
    """
    for weight, bias in zip(layers[0::2], layers[1::2], strict=True):
        inputs = weight.shape[-2] if bias.ndim > 1 else weight[0].numel()  # (members, in, out), or (filters, ...)
        bound = inputs**-0.5
        for layer in (weight, bias):
            drawn = torch.empty(layer.shape, dtype=torch.float32)
            layer.copy_(drawn.uniform_(-bound, bound, generator=generator))


def forward(
    layers: Sequence[torch.Tensor],
    x: torch.Tensor,
    stored: StoredLayers | None = None,
    scale: float = 1.0,
    *,
    exact: bool = False,
) -> torch.Tensor:
    """Computes an ensemble of perceptrons.

    Args:
        layers: weights and biases, in the form of :class:`MLP`.
        x: inputs (batch, in), the same for all members.
        stored: the formats of inputs, results and their gradients in memory; None: the format of the arithmetic.
        scale: the factor of outputs, but not of their gradients; see :func:`head`.
        exact: Whether the results of the last layer are unrounded.

    Returns:
        (ensemble, batch, out); float64 if ``exact``.
    """
    x = x if stored is None else stored.multiplied(x)  # An observation is also an operand of a product.
    activation = torch.relu_ if stored is None else lambda result: stored.multiplied(torch.relu_(result))
    h = hidden_of(layers[:-2], x.expand(layers[0].shape[0], *x.shape), activation)
    outputs = head(layers[-1], h, layers[-2], scale, exact=exact)
    return outputs if stored is None else stored.result(outputs)


def hidden_of(
    layers: Sequence[torch.Tensor], x: torch.Tensor, activation_: Callable[[torch.Tensor], torch.Tensor]
) -> torch.Tensor:
    """Computes the hidden layers of an ensemble of perceptrons.

    Args:
        layers: weights and biases, in the form of :class:`MLP`.
        x: inputs (ensemble, batch, in).
        activation_: maps the output of each layer, perhaps in place, to the input of the next one.

    Returns:
        (ensemble, batch, out).
    """
    for weight, bias in zip(layers[0::2], layers[1::2], strict=True):
        x = activation_(torch.baddbmm(bias, x, weight))
    return x
