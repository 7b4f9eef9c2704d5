"""The encoder of images: four convolutions, and a linear layer with layer normalization and tanh."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Self, final

import torch
from torch.nn import functional

from ...models.networks import FlatNetwork, initialize_perceptrons, perceptron_shapes
from ...models.planes import Convolution, convolution_shapes, convolved_shape, initialize_convolutions
from ...models.planes import convolve as convolve_all
from .settings import DrQConfig

_STRIDES = (2, 1, 1, 1)
_CONVOLUTIONS = 2 * len(_STRIDES)  # Tensors: weights and biases.
_WINDOW = 3
_HEAD = 4  # Tensors: weights and bias of the linear layer, gain and bias of the normalization.
_EPS = 1e-5  # From the reference implementation of weight standardization: no unit is divided by 0.


class Parts(NamedTuple):
    """The layers of a :class:`PixelNetwork` by purpose."""

    convolutions: Sequence[torch.Tensor]
    """Weights (filters, channels, 3, 3) and biases; empty for a network on the results of another's convolutions."""
    head: Sequence[torch.Tensor]
    """Weights (features, inputs) and bias of the linear layer, gain and bias of the layer normalization."""
    perceptrons: Sequence[torch.Tensor]
    """The perceptrons' tensors, in the form of :class:`~roundoff.agents.models.networks.MLP`."""

    @classmethod
    def of(cls, layers: Sequence[torch.Tensor], *, convolutional: bool) -> Self:
        """Splits the layers of a network with or without convolutions."""
        n = _CONVOLUTIONS if convolutional else 0
        return cls(layers[:n], layers[n : n + _HEAD], layers[n + _HEAD :])


@final
class PixelNetwork(FlatNetwork):
    """Perceptrons on features of images, with the layers that compute the features; :class:`Parts` names them.

    All weights begin orthogonal, with gain sqrt(2) in convolutions, all biases as 0.

    Args:
        config: sizes of images and layers.
        extra: the number of further inputs of the perceptrons, after the features.
        outputs: the number of outputs of each perceptron.
        ensemble: the number of perceptrons.
        convolutional: whether the network has its own convolutions.
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
        planes = 3 * config.frames  # Red, green and blue.
        inputs = torch.Size(convolved_shape(convolutions, (planes, config.image_size, config.image_size))).numel()
        shapes = convolution_shapes(convolutions, planes) if convolutional else []
        shapes += [(features, inputs), (features,), (features,), (features,)]
        shapes += perceptron_shapes([features + extra, *config.hidden_widths, outputs], ensemble)
        super().__init__(shapes, dtype=dtype, device=device, generator=generator)

    def _initialize(self, generator: torch.Generator) -> None:
        parts = Parts.of(self.layers, convolutional=self._convolutional)
        weight, _, gain, _ = parts.head
        # Biases remain 0; the network's weights are drawn in order.
        initialize_convolutions(parts.convolutions, generator)
        drawn = torch.empty(weight.shape, dtype=torch.float32)
        weight.copy_(torch.nn.init.orthogonal_(drawn, generator=generator))
        gain.fill_(1)  # Of the layer normalization.
        initialize_perceptrons(parts.perceptrons, generator)


def convolve(convolutions: Sequence[torch.Tensor], images: torch.Tensor) -> torch.Tensor:
    """Computes four 3x3 convolutions with ReLU, the first with stride 2.

    Args:
        convolutions: see :class:`Parts`.
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
    """Computes a linear layer, layer normalization and tanh.

    Args:
        head: see :class:`Parts`.
        convolved: the result of :func:`convolve`.
        standardization: the standardization of the linear layer's weights: ``units``, ``matrix`` or ``none``.
        limit: the limit that the linear layer's outputs are scaled down to; None: they are not.

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


def standardize_units(weight: torch.Tensor) -> torch.Tensor:
    """Standardizes every unit's weights: minus their mean, divided by their standard deviation.

    w_ij <- (w_ij - mean_j w_ij) / (std_j w_ij + 1e-5). The units' scales become equal, which layer normalization does
    not undo: this is another parametrization, which can represent fewer functions.

    Args:
        weight: (out, in), any floating-point type, in >= 2.

    Returns:
        The same shape and dtype; a unit with equal weights becomes 0. NaN spreads over its unit.

    Source:
        Qiao et al., "Weight Standardization", equations 2 to 4; Low-precision SAC, Section 4.6 and Appendix G.
    """
    std, mean = torch.std_mean(weight, dim=1, keepdim=True)
    return (weight - mean) / (std + _EPS)


def standardize_matrix(weight: torch.Tensor, bias: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Standardizes all weights of a layer together, and its bias with them.

    W <- (W - mean(W)) / s, b <- b / s, s = std(W) + 1e-5. All outputs are divided by s, and the same number is
    subtracted from each: in exact arithmetic, layer normalization has the same result, except for its eps.

    Args:
        weight: (out, in), any floating-point type.
        bias: (out,).

    Returns:
        Weight and bias in the same shapes. NaN spreads over both.

    Source:
        Low-precision SAC, Appendix G: "since layer-norm is invariant under rescaling the input and adding a constant
        term, these modifications will not change layernorm in infinite precision", which holds for this form.
    """
    std, mean = torch.std_mean(weight)
    scale = std + _EPS
    return (weight - mean) / scale, bias / scale


def scale_down(x: torch.Tensor, limit: float) -> torch.Tensor:
    """Scales rows with a largest magnitude above a limit down to it.

    x_i <- x_i min(1, limit / max_j |x_ij|). The factor counts as a constant in the gradient: layer normalization, which
    takes the results as input, has zero slope along it. Squares of the results stay below limit^2.

    Args:
        x: (rows, n), any floating-point type.
        limit: > 0.

    Returns:
        The same shape and dtype. A row with NaN becomes NaN; infinity becomes NaN, and the rest of its row 0.

    Source:
        Low-precision SAC, Appendix G: "further down-scale output larger than 10 to 10".
    """
    with torch.no_grad():
        # The divisor is at least the limit: no quotient overflows, and the factor of rows below the limit is exactly 1.
        factor = limit / x.abs().amax(dim=1, keepdim=True).clamp(min=limit)
    return x * factor
