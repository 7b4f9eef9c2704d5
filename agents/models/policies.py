"""Policies that learn by log-probabilities: the networks of policy and value as one, and distributions of actions.

Actions are discrete, or unbounded numbers.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TypeAlias, final

import torch
from torch import Tensor

from ...formats import unsimulated
from .networks import FlatNetwork, head, hidden_of, initialize_perceptrons, perceptron_shapes
from .normal_fix import normal_log_prob, normal_log_prob_naive
from .policy_layers import Activation, LinearLayer, linear, perceptron

_GAIN = math.sqrt(2)
POLICY_GAIN = 0.01
"""The gain of the policy's output: the initial policy is almost uniform."""


@final
class ActorCritic(FlatNetwork):
    """Two perceptrons with tanh between their layers; their hidden layers are computed together.

    ``layers`` are the parameters of the hidden layers, weights (2, in, out) and biases (2, 1, out), the policy's first;
    the weights (in, out) and bias (out) of the policy's output and of the value; and log sigma, (actions), if the
    policy has one. Initial weights are orthogonal: with gain sqrt(2), 0.01 for the policy's output, 1 for the value.
    All else is 0. For the other arguments see :class:`~roundoff.agents.models.networks.FlatNetwork`.

    Args:
        observation_size: the number of elements in an observation.
        hidden: widths of the hidden layers, one or more.
        outputs: the number of outputs of the policy.
        log_sigma: whether there is a log sigma for each output, which does not depend on observations.

    Source:
        Schulman et al., "Proximal Policy Optimization Algorithms", Section 6.1; the gains are from OpenAI's Baselines.
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
        self._hidden = len(shapes)  # The number of tensors of hidden layers.
        self.log_sigma = log_sigma
        width = hidden[-1]
        shapes += [(width, outputs), (outputs,), (width, 1), (1,), *([(outputs,)] if log_sigma else [])]
        super().__init__(shapes, dtype=dtype, device=device, generator=generator)

    def _initialize(self, generator: torch.Generator) -> None:
        initialize_perceptrons(self.layers[: self._hidden], generator, gain=_GAIN)
        policy, _, value = self.layers[self._hidden : self._hidden + 3]  # The weights of both outputs.
        # As ensembles of one, which ``initialize_perceptrons`` takes.
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
            exact: Whether values are unrounded, in float64.

        Returns:
            The policy's output (n, outputs), with log sigma after it if there is one; and values (n, 1).
        """
        policy, value = hidden_of(layers[: self._hidden], x.expand(2, *x.shape), torch.tanh_).unbind()
        return self._policy(layers, policy), self._value(layers, value, scale, exact=exact)

    def policy(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Returns the policy's outputs only."""
        return self._policy(self.layers, self._hidden_of(0, x))

    def value(self, x: torch.Tensor, scale: float = 1.0, *, exact: bool = False) -> torch.Tensor:
        """Returns the values only."""
        return self._value(self.layers, self._hidden_of(1, x), scale, exact=exact)

    def as_layers(self) -> tuple[LinearLayer, ...]:
        """Returns the layers of the policy as plain data."""
        hidden = perceptron(self.layers[: self._hidden], Activation.TANH, Activation.TANH)
        weight, bias = self.layers[self._hidden : self._hidden + 2]
        return (*hidden, linear(weight, bias, Activation.NONE))

    def _hidden_of(self, member: int, x: torch.Tensor) -> torch.Tensor:
        layers = [layer[member : member + 1] for layer in self.layers[: self._hidden]]  # An ensemble of one.
        return hidden_of(layers, x[None], torch.tanh_)[0]

    def _policy(self, layers: Sequence[torch.Tensor], h: torch.Tensor) -> tuple[torch.Tensor, ...]:
        weight, bias = layers[self._hidden : self._hidden + 2]
        return (torch.addmm(bias, h, weight), *layers[self._hidden + 4 :])  # Log sigma is last, if there is one.

    def _value(self, layers: Sequence[torch.Tensor], h: torch.Tensor, scale: float, *, exact: bool) -> torch.Tensor:
        weight, bias = layers[self._hidden + 2 : self._hidden + 4]
        return head(bias, h, weight, scale, exact=exact)


_ENTROPY = 0.5 + 0.5 * math.log(2 * math.pi)  # Of a standard normal number, in nats.

Outputs: TypeAlias = "tuple[Tensor, ...]"


class PolicyHead(ABC):
    """The distribution of actions for the outputs of a policy network; see ``ActorCritic.both``."""

    @abstractmethod
    def best(self, outputs: Outputs) -> Tensor:
        """Returns the most likely actions, (n, action)."""

    @abstractmethod
    def sample(self, outputs: Outputs, noise: Tensor) -> Tensor:
        """Returns actions, (n, action), from noise of that shape."""

    @abstractmethod
    def log_prob(self, outputs: Outputs, actions: Tensor) -> Tensor:
        """Returns the logarithms of the actions' probabilities or densities, (n, 1)."""

    @abstractmethod
    def entropy(self, outputs: Outputs) -> Tensor:
        """Returns the entropy of the policy in nats, (n, 1)."""


@final
class Categorical(PolicyHead):
    """Discrete actions, each a row of zeros with a one in its place, with probability softmax(logits).

    Logarithms are not computed from probabilities: log softmax subtracts the largest logit and never takes the
    logarithm of an underflowed value.

    Source:
        Gumbel's trick: Maddison et al., "A* Sampling", Section 2.
    """

    def best(self, outputs: Outputs) -> Tensor:
        """Returns the action with the largest logit, the first of several; NaN if a logit is NaN or infinite."""
        return _one_hot(outputs[0])

    def sample(self, outputs: Outputs, noise: Tensor) -> Tensor:
        """Returns the action with the largest sum of logit and Gumbel noise (:func:`gumbel`), the first of several.

        Equal sums are frequent in low precision. For NaN see :meth:`best`.
        """
        return _one_hot(outputs[0] + noise)  # Gumbel's trick.

    def log_prob(self, outputs: Outputs, actions: Tensor) -> Tensor:
        """Returns log-probabilities; NaN for NaN or infinite logits, or if a difference from the largest overflows."""
        return (torch.log_softmax(outputs[0], dim=1) * actions).sum(1, keepdim=True)

    def entropy(self, outputs: Outputs) -> Tensor:
        """Returns -sum of p log p, where a probability that underflows counts as 0."""
        log_p = torch.log_softmax(outputs[0], dim=1)
        return -(log_p.exp() * log_p).sum(1, keepdim=True)


@final
class DiagonalNormal(PolicyHead):
    """Independent normal numbers; the mean depends on the observation, log sigma does not.

    Args:
        normal_fix: whether log-densities are computed without sigma^2.

    Source:
        Schulman et al., "Proximal Policy Optimization Algorithms", Section 6.1.
    """

    def __init__(self, *, normal_fix: bool) -> None:
        self._log_prob = normal_log_prob if normal_fix else normal_log_prob_naive

    def best(self, outputs: Outputs) -> Tensor:
        """Returns the mean."""
        return outputs[0]

    def sample(self, outputs: Outputs, noise: Tensor) -> Tensor:
        """Returns mean + sigma * noise, for standard normal noise; without bounds."""
        mean, log_sigma = outputs
        return torch.addcmul(mean, log_sigma.exp(), noise)  # One operation, rounded once.

    def log_prob(self, outputs: Outputs, actions: Tensor) -> Tensor:
        """Returns the sum of the numbers' log-densities."""
        mean, log_sigma = outputs
        return self._log_prob(actions, mean, log_sigma.exp(), log_sigma).sum(1, keepdim=True)

    def entropy(self, outputs: Outputs) -> Tensor:
        """Returns the sum of log sigma + 1/2 + log sqrt(2 pi), the same for all observations."""
        mean, log_sigma = outputs
        return (log_sigma + _ENTROPY).sum().expand(len(mean), 1)


@unsimulated
def gumbel(shape: tuple[int, int], generator: torch.Generator, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Draws standard Gumbel noise, -log(exponential noise), in ``dtype``, outside of any simulation."""
    return torch.empty(shape, dtype=dtype, device=device).exponential_(generator=generator).log_().neg_()


def _one_hot(x: Tensor) -> Tensor:
    largest, place = x.max(1, keepdim=True)
    # The difference is 0, or NaN, which marks the row: otherwise the place of NaN would be chosen like any action.
    return torch.zeros_like(x).scatter_(1, place, 1.0).add_(largest - largest)
