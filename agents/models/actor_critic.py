"""A policy network and a value network as one, for policy gradients on vectors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import final

import torch

from .networks import FlatNetwork, hidden_of, initialize_perceptrons, perceptron_shapes
from .policy_layers import Activation, LinearLayer, linear, perceptron
from .scaled_head import head

_GAIN = math.sqrt(2)
POLICY_GAIN = 0.01
"""The gain of the policy's output: it begins almost uniform."""


@final
class ActorCritic(FlatNetwork):
    """Two perceptrons with tanh between their layers; their hidden layers are computed together.

    ``layers`` are the parameters of the hidden layers, weights (2, in, out) and biases (2, 1, out), the policy's first;
    the weights (in, out) and bias (out) of the policy's output and of the value; and log sigma, (actions), if the
    policy has one. Weights begin orthogonal, with gain sqrt(2), of the policy's output 0.01 and of the value 1; all
    else as 0. For the other arguments see :class:`~roundoff.agents.models.networks.FlatNetwork`.

    Args:
        observation_size: the number of elements in an observation.
        hidden: widths of the hidden layers, one or more.
        outputs: the number of outputs of the policy.
        log_sigma: whether there is a log sigma for each output, which does not depend on observations.

    Source:
        Schulman et al., "Proximal Policy Optimization Algorithms", Section 6.1; the gains are OpenAI's Baselines'.
    """

    def __init__(
        self,
        observation_size: int,
        hidden: Sequence[int],
        outputs: int,
        *,
        log_sigma: bool,
        dtype: torch.dtype,
        device: torch.device,
        generator: torch.Generator,
    ) -> None:
        shapes = perceptron_shapes([observation_size, *hidden], 2)
        self._hidden = len(shapes)
        self.log_sigma = log_sigma
        width = hidden[-1]
        shapes += [(width, outputs), (outputs,), (width, 1), (1,), *([(outputs,)] if log_sigma else [])]
        super().__init__(shapes, dtype=dtype, device=device, generator=generator)

    def _initialize(self, generator: torch.Generator) -> None:
        initialize_perceptrons(self.layers[: self._hidden], generator, gain=_GAIN)
        policy, _, value = self.layers[self._hidden : self._hidden + 3]
        initialize_perceptrons([policy[None]], generator, gain=POLICY_GAIN)
        initialize_perceptrons([value[None]], generator)

    def both(
        self, layers: Sequence[torch.Tensor], x: torch.Tensor, scale: float = 1.0, *, exact: bool = False
    ) -> tuple[tuple[torch.Tensor, ...], torch.Tensor]:
        """Returns the policy's outputs for observations (n, observation), and their values.

        Args:
            layers: ``self.layers`` or ``self.trainable``.
            x: the observations.
            scale: the factor of values, but not of their gradients.
            exact: Leaves values unrounded, in float64.

        Returns:
            The policy's output (n, outputs), with log sigma after it if there is one; and values (n, 1).
        """
        policy, value = hidden_of(layers[: self._hidden], x.expand(2, *x.shape), torch.tanh_).unbind()
        return self._policy(layers, policy), self._value(layers, value, scale, exact=exact)

    def policy(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Returns the policy's outputs only."""
        return self._policy(self.layers, self._hidden_of(0, x))

    def value(self, x: torch.Tensor, scale: float = 1.0, *, exact: bool = False) -> torch.Tensor:
        """Only the values."""
        return self._value(self.layers, self._hidden_of(1, x), scale, exact=exact)

    def as_layers(self) -> tuple[LinearLayer, ...]:
        """Returns the layers of the policy as plain data."""
        hidden = perceptron(self.layers[: self._hidden], Activation.TANH, Activation.TANH)
        weight, bias = self.layers[self._hidden : self._hidden + 2]
        return (*hidden, linear(weight, bias, Activation.NONE))

    def _hidden_of(self, member: int, x: torch.Tensor) -> torch.Tensor:
        layers = [layer[member : member + 1] for layer in self.layers[: self._hidden]]
        return hidden_of(layers, x[None], torch.tanh_)[0]

    def _policy(self, layers: Sequence[torch.Tensor], h: torch.Tensor) -> tuple[torch.Tensor, ...]:
        weight, bias = layers[self._hidden : self._hidden + 2]
        return (torch.addmm(bias, h, weight), *layers[self._hidden + 4 :])

    def _value(self, layers: Sequence[torch.Tensor], h: torch.Tensor, scale: float, *, exact: bool) -> torch.Tensor:
        weight, bias = layers[self._hidden + 2 : self._hidden + 4]
        return head(bias, h, weight, scale, exact=exact)
