"""The policy's distribution: a normal variable squashed by tanh, with its log-probability."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

import torch

from .noise_log_prob import noise_log_prob
from .normal_fix import normal_log_prob, normal_log_prob_naive
from .softplus_fix import softplus, softplus_naive


@final
@dataclass(frozen=True)
class SquashedNormal:
    """The distribution of actions tanh(u), u normal, for the outputs of a policy network.

    A separate tanh keeps log sigma between two bounds: log sigma = center + half_width tanh(output).

    Args:
        log_sigma_min: smallest logarithm of the standard deviation.
        log_sigma_max: largest logarithm of the standard deviation.
        normal_fix: whether the normal log-probability is computed without sigma^2.
        softplus_fix: whether softplus is linear above the threshold.
        softplus_threshold: K.
        from_noise: whether the normal log-probability is computed from the noise; it overrides ``normal_fix``.
        sigma_eps: added to sigma, which otherwise underflows if log_sigma_min is low; log sigma is then the log of
            the sum (Low-precision SAC, Appendix G: 1e-4, for learning from pixels).

    Source:
        Low-precision SAC, Section 2, equation (1), and Section 3, "2 & 3. Numerical Issues in the Policy".
    """

    log_sigma_min: float
    log_sigma_max: float
    normal_fix: bool
    softplus_fix: bool
    softplus_threshold: float
    from_noise: bool = False
    sigma_eps: float = 0.0

    def mode(self, outputs: torch.Tensor) -> torch.Tensor:
        """Returns the deterministic action, tanh(mu).

        Args:
            outputs: the outputs of the network, (..., 2 actions): mu, and the input of log sigma.

        Returns:
            (..., actions), in [-1, 1]; NaN where an output is NaN.
        """
        return torch.tanh(outputs.chunk(2, dim=-1)[0])

    def sample(self, outputs: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
        """Returns the action tanh(mu + sigma noise), without its log-probability.

        Args:
            outputs: the outputs of the network, (..., 2 actions).
            noise: standard normal, (..., actions).

        Returns:
            (..., actions), in [-1, 1]; NaN where an output is NaN.
        """
        mean, _, sigma = self._parameters(outputs)
        return torch.tanh(mean + sigma * noise)

    def sample_with_log_prob(self, outputs: torch.Tensor, noise: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns the action tanh(u), u = mu + sigma noise, and log pi(action); both differentiable in ``outputs``.

        log pi = sum over the action's elements of log P(u) - 2 [log 2 - u - softplus(-2 u)].

        Args:
            outputs: the outputs of the network, (..., 2 actions).
            noise: standard normal, (..., actions).

        Returns:
            Actions (..., actions) in [-1, 1], and log-probabilities (..., 1) in nats.
        """
        mean, log_sigma, sigma = self._parameters(outputs)
        u = mean + sigma * noise
        if self.from_noise:
            log_prob = noise_log_prob(noise, log_sigma)
        else:
            log_prob = (normal_log_prob if self.normal_fix else normal_log_prob_naive)(u, mean, sigma, log_sigma)
        minus_2u = u * -2
        squash = softplus(minus_2u, self.softplus_threshold) if self.softplus_fix else softplus_naive(minus_2u)
        log_prob = torch.add(log_prob, u + squash, alpha=2) - 2 * math.log(2)
        return torch.tanh(u), log_prob.sum(-1, keepdim=True)

    def _parameters(self, outputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Returns the mean, log sigma and sigma."""
        mean, raw = outputs.chunk(2, dim=-1)
        half_width = (self.log_sigma_max - self.log_sigma_min) / 2
        log_sigma = torch.tanh(raw) * half_width + (self.log_sigma_min + half_width)
        sigma = torch.exp(log_sigma)
        if self.sigma_eps:
            sigma = sigma + self.sigma_eps
            log_sigma = torch.log(sigma)
        return mean, log_sigma, sigma
