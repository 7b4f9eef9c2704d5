"""The layers of a policy for acting, without learning, and the map from their outputs to actions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, TypeAlias, final

import numpy as np
import torch

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Activation(StrEnum):
    """The activation function after a layer."""

    NONE = "none"
    RELU = "relu"
    TANH = "tanh"
    ELU = "elu"


class Decision(StrEnum):
    """The rule that turns outputs into actions."""

    LARGEST = "largest"
    """A one in the place of the largest output, the first of several, and else zeros; an output for each action."""
    LARGEST_MEAN = "largest_mean"
    """A one in the place of the largest mean over the atoms; outputs are logits of a distribution for each action."""
    TANH = "tanh"
    """The tanh of the outputs."""
    CLIP = "clip"
    """The outputs, clipped to [-1, 1]."""
    OUTPUTS = "outputs"
    """The outputs themselves."""

    @property
    def discrete(self) -> bool:
        """Whether the action is one of several."""
        return self in (Decision.LARGEST, Decision.LARGEST_MEAN)


@final
@dataclass(frozen=True, eq=False)
class LinearLayer:
    """activation(weight x + bias); planes are flattened by channel, row and column."""

    weight: torch.Tensor
    """(out, in)."""
    bias: torch.Tensor
    """(out,)."""
    activation: Activation

    def of_normalized(self, mean: NDArray[np.float64], deviation: NDArray[np.float64]) -> LinearLayer:
        """Returns the layer that maps x, (in,), to this layer's output for (x - mean) / deviation; from float64."""
        # W (x - mean) / deviation + b = (W / deviation) x + (b - (W / deviation) mean).
        weight = self.weight.double() / torch.from_numpy(deviation)
        bias = self.bias.double() - weight @ torch.from_numpy(mean)
        return LinearLayer(weight.float(), bias.float(), self.activation)


@final
@dataclass(frozen=True, eq=False)
class ConvolutionLayer:
    """activation(convolution of planes with the weight + bias), with zeros around the planes."""

    weight: torch.Tensor
    """(filters, planes, height, width) of a window."""
    bias: torch.Tensor
    """(filters,)."""
    activation: Activation
    stride: int
    padding: int
    """Zeros on each side."""


Layer: TypeAlias = LinearLayer | ConvolutionLayer


@final
@dataclass(frozen=True, eq=False)
class PolicyLayers:
    """A policy that acts deterministically; :func:`combined` and the decision define the meaning of its heads' outputs.

    Args:
        observation_shape: (n,), or (planes, height, width).
        shared: the layers that all heads follow.
        heads: the layers of the only head; or of two, for values and advantages (dueling), with combined outputs
            value + (advantage - mean advantage over the actions).
        decision: the rule from outputs to actions.
        action_size: the number of elements in an action.
        atoms: the support of distributions, (atoms,); only with ``Decision.LARGEST_MEAN``. The outputs are then
            (action, atoms), flattened.
    """

    observation_shape: tuple[int, ...]
    shared: tuple[Layer, ...]
    heads: tuple[tuple[Layer, ...], ...]
    decision: Decision
    action_size: int
    atoms: torch.Tensor | None = None

    def __iter__(self) -> Iterator[Layer]:
        """Yields all layers in order: the shared ones, then each head's."""
        yield from self.shared
        for head in self.heads:
            yield from head


def perceptron(layers: Sequence[torch.Tensor], hidden: Activation, last: Activation) -> tuple[LinearLayer, ...]:
    """Returns the first of an ensemble of perceptrons as layers, in float32.

    Args:
        layers: weights (ensemble, in, out) and biases (ensemble, 1, out), in the form of :class:`~.networks.MLP`.
        hidden: the activation of all layers but the last.
        last: the activation of the last layer.
    """
    pairs = list(zip(layers[0::2], layers[1::2], strict=True))  # Weight and bias.
    return tuple(
        linear(weight[0], bias[0, 0], hidden if i < len(pairs) - 1 else last) for i, (weight, bias) in enumerate(pairs)
    )


def linear(weight: torch.Tensor, bias: torch.Tensor, activation: Activation) -> LinearLayer:
    """Returns a layer with copies of a weight (in, out) and a bias (out,), in float32."""
    return LinearLayer(plain(weight.T), plain(bias), activation)


def combined(outputs: Sequence[torch.Tensor], action_size: int) -> torch.Tensor:
    """Returns the combined outputs of the heads, (n, outputs): value + (advantage - mean) for two heads.

    The mean is a sum from the first action to the last, in the tensors' own dtype, divided by their number.

    Args:
        outputs: the outputs of each head, (n, outputs).
        action_size: the number of actions.
    """
    if len(outputs) == 1:  # Without dueling.
        return outputs[0]
    value, flat = outputs
    advantages = flat.reshape(len(flat), action_size, -1)  # (n, action, atoms).
    total = advantages[:, 0].clone()
    # In a defined order, the same as in C headers; the order of ``mean`` depends on the processor.
    for i in range(1, action_size):
        total += advantages[:, i]
    return (value.unsqueeze(1) + (advantages - (total / action_size).unsqueeze(1))).flatten(1)


def plain(x: torch.Tensor) -> torch.Tensor:
    """Returns an independent copy: float32, on the CPU, without gradient."""
    return x.detach().to("cpu", torch.float32, copy=True).contiguous()
