"""Networks for images and other planes of numbers: convolutions, then perceptrons, perhaps with several heads."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any, NamedTuple, final

import torch
from torch.nn import functional

from .networks import FlatNetwork, forward, initialize_perceptrons, initialize_uniformly, perceptron_shapes
from .policy_layers import Activation, ConvolutionLayer, Layer, perceptron, plain


class Convolution(NamedTuple):
    """A convolution with ReLU; its windows are square."""

    filters: int
    size: int
    """Height and width of a window."""
    stride: int = 1
    padding: int = 0
    """Zeros on each side."""


SMALL_NET = (Convolution(16, 3),)
"""The layers for planes of 10 x 10; Young & Tian, "MinAtar", Appendix A."""
DQN_NET = (Convolution(32, 8, 4), Convolution(64, 4, 2, 1), Convolution(64, 3, 1, 1))
"""Mnih et al., 2015; with the paddings of Stooke & Abbeel, Appendix A.1: 104 x 80 becomes 12 x 9."""
A3C_NET = (Convolution(16, 8, 4), Convolution(32, 4, 2, 1))
"""Mnih et al., 2016; with the paddings of Stooke & Abbeel, Appendix A.1: 104 x 80 becomes 12 x 9."""

_SMALL = 32  # Pixels; between MinAtar's 10 and Atari's 80.


def convolutions_for(shape: Sequence[int], large: Sequence[Convolution] = DQN_NET) -> tuple[Convolution, ...]:
    """Returns the convolutions for observations of a shape.

    Args:
        shape: (n,) for vectors, or (planes, height, width).
        large: the convolutions for images.

    Returns:
        Nothing for vectors, :data:`SMALL_NET` for planes of less than 32 x 32, else ``large``.
    """
    if len(shape) == 1:
        return ()
    return SMALL_NET if max(shape[1:]) < _SMALL else tuple(large)


def convolved_shape(convolutions: Sequence[Convolution], shape: Sequence[int]) -> tuple[int, int, int]:
    """Returns the shape of the results of convolutions of (planes, height, width): (filters, height, width).

    Raises:
        ValueError: the planes are too small for the convolutions.
    """
    planes, *sides = shape
    for filters, size, stride, padding in convolutions:
        if min(sides) + 2 * padding < size:
            raise ValueError(
                f"planes of {' x '.join(map(str, shape[1:]))} are too small for convolutions of windows"
                f" {', '.join(f'{c.size} x {c.size}' for c in convolutions)}"
            )
        planes = filters  # The input of the next convolution.
        sides = [(side + 2 * padding - size) // stride + 1 for side in sides]  # As in ``torch.nn.Conv2d``.
    return planes, sides[0], sides[1]


def convolution_shapes(convolutions: Sequence[Convolution], planes: int) -> list[tuple[int, ...]]:
    """Returns the shapes of the weights, (filters, planes, size, size), and biases, (filters,), of convolutions."""
    channels = [planes, *(c.filters for c in convolutions)]
    sizes = [c.size for c in convolutions]
    return [
        shape
        for (n_in, n_out), size in zip(pairwise(channels), sizes, strict=True)
        for shape in ((n_out, n_in, size, size), (n_out,))
    ]


def initialize_convolutions(layers: Sequence[torch.Tensor], generator: torch.Generator) -> None:
    """Draws orthogonal weights with gain sqrt(2) for convolutions, in place; biases do not change."""
    for weight in layers[0::2]:
        drawn = torch.empty(weight.shape, dtype=torch.float32)  # In any format the same draws; see ``FlatNetwork``.
        weight.copy_(torch.nn.init.orthogonal_(drawn, 2**0.5, generator=generator))


def convolve(layers: Sequence[torch.Tensor], convolutions: Sequence[Convolution], x: torch.Tensor) -> torch.Tensor:
    """Computes convolutions, each with ReLU.

    Args:
        layers: weights and biases of the shapes of :func:`convolution_shapes`.
        convolutions: the convolutions.
        x: (n, planes, height, width).

    Returns:
        (n, filters * height * width), not negative; see :func:`convolved_shape`.
    """
    for weight, bias, convolution in zip(layers[0::2], layers[1::2], convolutions, strict=True):
        x = functional.conv2d(x, weight, bias, stride=convolution.stride, padding=convolution.padding).relu_()
    return x.flatten(1)  # By filter, row and column.


@final
class PlanesNetwork(FlatNetwork):
    """Convolutions and perceptrons that all heads share, then the perceptrons of each head, with ReLU between layers.

    Without convolutions, it is a network for vectors. ``layers`` are the weights and biases of the convolutions,
    (filters, planes, size, size) and (filters,), then of the shared perceptrons, then of each head, (1, in, out) and
    (1, 1, out). Initial weights are orthogonal, with gain sqrt(2) in convolutions, and biases 0; or all are uniform
    within 1 / sqrt(inputs).

    Args:
        shape: the shape of observations, (planes, height, width), or (n,) without convolutions.
        convolutions: see :func:`convolutions_for`.
        shared: widths of the shared perceptrons, from the first to the last; empty: the heads follow the convolutions.
        heads: for each head the widths of its perceptrons; the last width is its number of outputs.
        uniform: whether initial weights and biases are uniform.
        dtype: see :class:`FlatNetwork`, also for the other arguments.

    Raises:
        ValueError: the planes are too small for the convolutions.
    """

    def __init__(
        self,
        shape: Sequence[int],
        convolutions: Sequence[Convolution],
        shared: Sequence[int],
        heads: Sequence[Sequence[int]],
        *,
        uniform: bool = False,
        dtype: torch.dtype,
        device: torch.device,
        generator: torch.Generator,
    ) -> None:
        self.shape = tuple(shape)
        self.convolutions = tuple(convolutions)
        self._uniform = uniform
        inputs = torch.Size(convolved_shape(convolutions, shape) if convolutions else shape).numel()
        head_shapes = [perceptron_shapes([(inputs, *shared)[-1], *widths], 1) for widths in heads]
        parts = [convolution_shapes(convolutions, shape[0]), perceptron_shapes([inputs, *shared], 1), *head_shapes]
        self._ends = list(accumulate(map(len, parts)))  # Of the parts, in ``layers``.
        super().__init__([layer for part in parts for layer in part], dtype=dtype, device=device, generator=generator)

    def _initialize(self, generator: torch.Generator) -> None:
        convolutions, shared, heads = self._parts(self.layers)
        (initialize_uniformly if self._uniform else initialize_convolutions)(convolutions, generator)
        for perceptrons in (shared, *heads):
            (initialize_uniformly if self._uniform else initialize_perceptrons)(perceptrons, generator)

    def outputs(
        self, layers: Sequence[torch.Tensor], x: torch.Tensor, scales: Sequence[float] = (), exact: Sequence[bool] = ()
    ) -> list[torch.Tensor]:
        """Returns the outputs of each head, (n, outputs).

        Args:
            layers: ``layers``, ``trainable``, or views of another tensor of this network's shapes.
            x: observations (n, ...) of any shape with the same number of elements.
            scales: factors of each head's outputs, but not of their gradients; none: 1.
            exact: Whether the results of each head are unrounded, in float64; empty: all are rounded.
        """
        convolutions, shared, heads = self._parts(layers)
        if self.convolutions:
            x = convolve(convolutions, self.convolutions, x.reshape(-1, *self.shape))
        options: list[dict[str, Any]] = [
            {"scale": scale, "exact": unrounded}
            for scale, unrounded in zip(scales or [1.0] * len(heads), exact or [False] * len(heads), strict=True)
        ]
        if len(heads) == 1:  # The shared perceptrons and the head are one.
            return [forward([*shared, *heads[0]], x, **options[0])[0]]
        if shared:
            x = forward(shared, x)[0].relu()
        return [forward(head, x, **choice)[0] for head, choice in zip(heads, options, strict=True)]

    def as_layers(self) -> tuple[tuple[Layer, ...], tuple[tuple[Layer, ...], ...]]:
        """Returns the layers that all heads share, and the layers of each head, as plain tensors."""
        convolutions, shared, heads = self._parts(self.layers)
        convolved = tuple(
            ConvolutionLayer(plain(weight), plain(bias), Activation.RELU, convolution.stride, convolution.padding)
            for weight, bias, convolution in zip(convolutions[0::2], convolutions[1::2], self.convolutions, strict=True)
        )
        return (
            (*convolved, *perceptron(shared, Activation.RELU, Activation.RELU)),
            tuple(perceptron(head, Activation.RELU, Activation.NONE) for head in heads),
        )

    def _parts(
        self, layers: Sequence[torch.Tensor]
    ) -> tuple[Sequence[torch.Tensor], Sequence[torch.Tensor], list[Sequence[torch.Tensor]]]:
        """Splits layers into the layers of the convolutions, of the shared perceptrons, and of each head."""
        convolutions, shared, *heads = (layers[a:b] for a, b in pairwise((0, *self._ends)))
        return convolutions, shared, heads
