"""Policies that learn by log-probabilities: of one of several actions, and of unbounded numbers."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import TypeAlias, final

import torch
from torch import Tensor

from ...formats import unsimulated
from .normal_fix import normal_log_prob, normal_log_prob_naive

_ENTROPY = 0.5 + 0.5 * math.log(2 * math.pi)

Outputs: TypeAlias = "tuple[Tensor, ...]"


class PolicyHead(ABC):
    """The distribution of actions that is given by a policy network's outputs; see ``ActorCritic.both``."""

    @abstractmethod
    def best(self, outputs: Outputs) -> Tensor:
        """The most likely actions, (n, action)."""

    @abstractmethod
    def sample(self, outputs: Outputs, noise: Tensor) -> Tensor:
        """Actions, (n, action), made of noise of that shape."""

    @abstractmethod
    def log_prob(self, outputs: Outputs, actions: Tensor) -> Tensor:
        """The logarithms of the actions' probabilities or densities, (n, 1)."""

    @abstractmethod
    def entropy(self, outputs: Outputs) -> Tensor:
        """The entropy of the policy in nats, (n, 1)."""


@final
class Categorical(PolicyHead):
    """One of several actions, each a row of zeros with a one in its place, with probability softmax(logits).

    Probabilities are not formed where logarithms are wanted: log softmax subtracts the largest logit and never takes
    the logarithm of an underflowed value.

    Source:
        Gumbel's trick: Maddison et al., "A* Sampling", Section 2.
    """

    def best(self, outputs: Outputs) -> Tensor:
        """The action with the largest logit, the first of several; NaN if a logit is NaN or infinite."""
        return _one_hot(outputs[0])

    def sample(self, outputs: Outputs, noise: Tensor) -> Tensor:
        """The action with the largest sum of logit and Gumbel noise, as :func:`gumbel` draws it.

        In few bits sums of two actions may be the same; the first is taken then. NaN as in :meth:`best`.
        """
        return _one_hot(outputs[0] + noise)

    def log_prob(self, outputs: Outputs, actions: Tensor) -> Tensor:
        """NaN where a logit is NaN or infinity, or so far below the largest that the difference overflows."""
        return (torch.log_softmax(outputs[0], dim=1) * actions).sum(1, keepdim=True)

    def entropy(self, outputs: Outputs) -> Tensor:
        """-sum of p log p, where a probability that underflows counts as 0."""
        log_p = torch.log_softmax(outputs[0], dim=1)
        return -(log_p.exp() * log_p).sum(1, keepdim=True)


@final
class DiagonalNormal(PolicyHead):
    """Independent normal numbers; their mean depends on the observation, log sigma does not.

    Args:
        normal_fix: whether log-densities are computed without sigma^2.

    Source:
        Schulman et al., "Proximal PolicyHead Optimization Algorithms", Section 6.1.
    """

    def __init__(self, *, normal_fix: bool) -> None:
        self._log_prob = normal_log_prob if normal_fix else normal_log_prob_naive

    def best(self, outputs: Outputs) -> Tensor:
        """The mean."""
        return outputs[0]

    def sample(self, outputs: Outputs, noise: Tensor) -> Tensor:
        """Mean + sigma * noise, standard normal; without bounds."""
        mean, log_sigma = outputs
        return torch.addcmul(mean, log_sigma.exp(), noise)

    def log_prob(self, outputs: Outputs, actions: Tensor) -> Tensor:
        """The sum of the numbers' log-probabilities."""
        mean, log_sigma = outputs
        return self._log_prob(actions, mean, log_sigma.exp(), log_sigma).sum(1, keepdim=True)

    def entropy(self, outputs: Outputs) -> Tensor:
        """The sum of log sigma + 1/2 + log sqrt(2 pi), the same for all observations."""
        mean, log_sigma = outputs
        return (log_sigma + _ENTROPY).sum().expand(len(mean), 1)


@unsimulated
def gumbel(shape: tuple[int, int], generator: torch.Generator, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Standard Gumbel noise, -log(exponential noise), computed in ``dtype``, whatever is simulated."""
    return torch.empty(shape, dtype=dtype, device=device).exponential_(generator=generator).log_().neg_()


def _one_hot(x: Tensor) -> Tensor:
    largest, place = x.max(1, keepdim=True)
    # The difference is 0, or NaN: the place of NaN would be an action like any other.
    return torch.zeros_like(x).scatter_(1, place, 1.0).add_(largest - largest)
