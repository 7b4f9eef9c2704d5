"""The encoder of images: four convolutions, and a linear layer with layer normalization and tanh."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Self, final

import torch
from torch.nn import functional

from ...models.networks import FlatNetwork, initialize_perceptrons, perceptron_shapes
from ...models.planes import Convolution, convolution_shapes, convolved_shape, initialize_convolutions
from ...models.planes import convolve as convolve_all
from ...models.weight_standardization import scale_down, standardize_matrix, standardize_units

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .settings import DrQConfig

_STRIDES = (2, 1, 1, 1)
_CONVOLUTIONS = 2 * len(_STRIDES)  # tensors: weights and biases
_WINDOW = 3
_HEAD = 4  # tensors: weights and bias of the linear layer, gain and bias of the normalization


class Parts(NamedTuple):
    """The layers of a :class:`PixelNetwork` by what they do."""

    convolutions: Sequence[torch.Tensor]
    """Weights (filters, channels, 3, 3) and biases; empty for a network that gets what another's convolutions gave."""
    head: Sequence[torch.Tensor]
    """Weights (features, inputs) and bias of the linear layer, gain and bias of the layer normalization."""
    perceptrons: Sequence[torch.Tensor]
    """The perceptrons' tensors, as :class:`~roundoff.agents.models.networks.MLP` has them."""

    @classmethod
    def of(cls, layers: Sequence[torch.Tensor], *, convolutional: bool) -> Self:
        """Splits the layers of a network with or without convolutions."""
        n = _CONVOLUTIONS if convolutional else 0
        return cls(layers[:n], layers[n : n + _HEAD], layers[n + _HEAD :])


@final
class PixelNetwork(FlatNetwork):
    """Perceptrons on features of images, with the layers that make the features; :class:`Parts` names them.

    All weights begin orthogonal, those of convolutions with gain sqrt(2), all biases as 0.

    Args:
        config: sizes of images and layers.
        extra: numbers the perceptrons get beside the features.
        outputs: numbers they give.
        ensemble: how many perceptrons there are.
        convolutional: whether the network has convolutions of its own.
        dtype: see ``FlatNetwork``, also for the other arguments.
    """

    def __init__(
        self,
        config: DrQConfig,
        *,
        extra: int,
        outputs: int,
        ensemble: int,
        convolutional: bool,
        dtype: torch.dtype,
        device: torch.device,
        generator: torch.Generator,
    ) -> None:
        self._convolutional = convolutional
        filters, features = config.filters, config.feature_size
        convolutions = [Convolution(filters, _WINDOW, stride) for stride in _STRIDES]
        planes = 3 * config.frames
        inputs = torch.Size(convolved_shape(convolutions, (planes, config.image_size, config.image_size))).numel()
        shapes = convolution_shapes(convolutions, planes) if convolutional else []
        shapes += [(features, inputs), (features,), (features,), (features,)]
        shapes += perceptron_shapes([features + extra, *config.hidden_widths, outputs], ensemble)
        super().__init__(shapes, dtype=dtype, device=device, generator=generator)

    def _initialize(self, generator: torch.Generator) -> None:
        parts = Parts.of(self.layers, convolutional=self._convolutional)
        weight, _, gain, _ = parts.head
        initialize_convolutions(parts.convolutions, generator)
        drawn = torch.empty(weight.shape, dtype=torch.float32)
        weight.copy_(torch.nn.init.orthogonal_(drawn, generator=generator))
        gain.fill_(1)
        initialize_perceptrons(parts.perceptrons, generator)


def convolve(convolutions: Sequence[torch.Tensor], images: torch.Tensor) -> torch.Tensor:
    """Four 3x3 convolutions with ReLU, the first with stride 2.

    Args:
        convolutions: as :class:`Parts` has them.
        images: (n, 3 frames, size, size), in [0, 1].

    Returns:
        (n, filters * side * side), not negative.

    Source:
        Low-precision SAC, Appendix G.
    """
    filters = len(convolutions[0])
    return convolve_all(convolutions, [Convolution(filters, _WINDOW, stride) for stride in _STRIDES], images)


def features(
    head: Sequence[torch.Tensor], convolved: torch.Tensor, *, standardization: str, limit: float | None
) -> torch.Tensor:
    """A linear layer, layer normalization and tanh.

    Args:
        head: as :class:`Parts` has it.
        convolved: what :func:`convolve` gave.
        standardization: of the linear layer's weights: ``units``, ``matrix`` or ``none``.
        limit: to which the linear layer's outputs are scaled down; None: they are not.

    Returns:
        (n, features), in [-1, 1].

    Source:
        Low-precision SAC, Appendix G; the tanh is DrQ's.
    """
    weight, bias, gain, offset = head
    if standardization == "units":
        weight = standardize_units(weight)
    elif standardization == "matrix":
        weight, bias = standardize_matrix(weight, bias)
    projected = functional.linear(convolved, weight, bias)
    if limit is not None:
        projected = scale_down(projected, limit)
    return torch.tanh(functional.layer_norm(projected, gain.shape, gain, offset))
