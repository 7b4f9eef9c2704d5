"""Log-probability of a normal variable, by the usual formula, and without sigma^2 (normal-fix)."""

from __future__ import annotations

import math

import torch

_LOG_SQRT_2PI = 0.5 * math.log(2 * math.pi)


def normal_log_prob_naive(
    x: torch.Tensor, mean: torch.Tensor, sigma: torch.Tensor, log_sigma: torch.Tensor
) -> torch.Tensor:
    """Computes the log-density of a normal variable, -(x - mean)^2 / (2 sigma^2) - log sigma - log sqrt(2 pi).

    sigma^2 underflows to 0 for small sigma (below 2^-12.5 = 1.7e-4 in e5m10): the value is then NaN (0 / 0) or
    -infinity. For much larger sigma, sigma^2 and (x - mean)^2 are already subnormal and lose digits.

    Args:
        x: the points; any floating-point type, broadcast against the others.
        mean: the mean of the distribution.
        sigma: the standard deviation, > 0.
        log_sigma: the logarithm of ``sigma`` (an argument, since a policy network computes it first).

    Returns:
        The log-density of each element, in nats. NaN in any argument gives NaN.

    Source:
        ``torch.distributions.Normal.log_prob``; Low-precision SAC, Section 3, "Secondly".
    """
    return -(torch.square(x - mean) / (2 * torch.square(sigma))) - log_sigma - _LOG_SQRT_2PI


def normal_log_prob(x: torch.Tensor, mean: torch.Tensor, sigma: torch.Tensor, log_sigma: torch.Tensor) -> torch.Tensor:
    """Computes the log-density as -((x - mean) / sigma)^2 / 2 - log sigma - log sqrt(2 pi) (normal-fix).

    The quotient is of the order of 1 for samples of the distribution, also for small sigma. The division comes before
    the square, so that no divisor underflows.

    Args:
        x: the points; any floating-point type, broadcast against the others.
        mean: the mean of the distribution.
        sigma: the standard deviation, > 0.
        log_sigma: the logarithm of ``sigma``.

    Returns:
        The log-density of each element, in nats. NaN in any argument gives NaN; infinite x gives -infinity.

    Source:
        Low-precision SAC, Section 3, normal-fix.
    """
    return torch.square((x - mean) / sigma).mul(-0.5) - log_sigma - _LOG_SQRT_2PI
