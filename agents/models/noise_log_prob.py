"""Log-probability of a normal sample, from the noise that it was made of (a fix beyond the paper's six)."""

from __future__ import annotations

import math

import torch

_LOG_SQRT_2PI = 0.5 * math.log(2 * math.pi)


def noise_log_prob(noise: torch.Tensor, log_sigma: torch.Tensor) -> torch.Tensor:
    """Log-density of a normal variable at its own sample mean + sigma noise: -noise^2 / 2 - log sigma - log sqrt(2 pi).

    In exact arithmetic ``normal_log_prob(mean + sigma * noise, mean, sigma, log_sigma)``, in value and in gradient.
    That one subtracts the mean from the rounded sample: the difference is off by half an ulp of the mean, and divided
    by sigma that can be more than the noise itself. In the backward pass the mean receives two gradients of the order
    of 1 / sigma that cancel, and any other term added to one of them (the squashing by tanh) is absorbed. Here there is
    neither subtraction nor division, and mean and sigma do not receive a gradient: the exact one is 0.
    It cannot give the density at a point that is not a sample of this very call: an action replayed, for example.

    Args:
        noise: standard normal, as drawn; any floating-point type, broadcast against ``log_sigma``.
        log_sigma: logarithm of the standard deviation.

    Returns:
        The log-density of each element, in nats. NaN in any argument gives NaN, infinite noise gives -infinity; so does
        noise with a square that overflows (|noise| > 256 in e5m10). The gradient by ``log_sigma`` is exactly -1.

    Source:
        Low-precision SAC, Section 2, u = mu + noise sigma, put into the density of Section 3, "2 & 3. Numerical Issues
        in the Policy".
    """
    return torch.square(noise).mul(-0.5) - log_sigma - _LOG_SQRT_2PI
