"""The layers of a policy for acting, and the map from their outputs to actions. Nothing here concerns learning."""

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
    """Outputs are a number for each action; a one in the place of the largest, the first of several, and else zeros."""
    LARGEST_MEAN = "largest_mean"
    """Outputs are logits of a distribution over the atoms for each action; the same of their means."""
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
    """activation(weight x + bias), of vectors; of planes, flattened by channel, row and column."""

    weight: torch.Tensor
    """(out, in)."""
    bias: torch.Tensor
    """(out,)."""
    activation: Activation

    def of_normalized(self, mean: NDArray[np.float64], deviation: NDArray[np.float64]) -> LinearLayer:
        """The layer that maps x, (in,), to this one's output for (x - mean) / deviation, computed in float64."""
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
        decision: how the outputs become actions.
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
        """All layers in order: the shared ones, then each head's."""
        yield from self.shared
        for head in self.heads:
            yield from head


def perceptron(layers: Sequence[torch.Tensor], hidden: Activation, last: Activation) -> tuple[LinearLayer, ...]:
    """The first of an ensemble of perceptrons as layers, in float32.

    Args:
        layers: weights (ensemble, in, out) and biases (ensemble, 1, out), as :class:`~.networks.MLP` has them.
        hidden: the activation of all but the last.
        last: the activation of the last one.
    """
    pairs = list(zip(layers[0::2], layers[1::2], strict=True))
    return tuple(
        linear(weight[0], bias[0, 0], hidden if i < len(pairs) - 1 else last) for i, (weight, bias) in enumerate(pairs)
    )


def linear(weight: torch.Tensor, bias: torch.Tensor, activation: Activation) -> LinearLayer:
    """A layer of a weight (in, out) and a bias (out,), copied, in float32."""
    return LinearLayer(plain(weight.T), plain(bias), activation)


def combined(outputs: Sequence[torch.Tensor], action_size: int) -> torch.Tensor:
    """Returns the combined outputs of the heads, (n, outputs): of one its outputs, of two value + (advantage - mean).

    The mean is a sum from the first action to the last, in the tensors' own dtype, divided by their number.

    Args:
        outputs: the outputs of each head, (n, outputs).
        action_size: the number of actions.
    """
    if len(outputs) == 1:
        return outputs[0]
    value, flat = outputs
    advantages = flat.reshape(len(flat), action_size, -1)
    total = advantages[:, 0].clone()
    for i in range(1, action_size):
        total += advantages[:, i]
    return (value.unsqueeze(1) + (advantages - (total / action_size).unsqueeze(1))).flatten(1)


def plain(x: torch.Tensor) -> torch.Tensor:
    """A copy that nothing else holds: float32, on the CPU, without gradient."""
    return x.detach().to("cpu", torch.float32, copy=True).contiguous()
