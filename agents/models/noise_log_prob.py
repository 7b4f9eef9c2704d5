"""Log-probability of a normal sample, from its noise (a fix beyond the paper's six)."""

from __future__ import annotations

import math

import torch

_LOG_SQRT_2PI = 0.5 * math.log(2 * math.pi)


def noise_log_prob(noise: torch.Tensor, log_sigma: torch.Tensor) -> torch.Tensor:
    """Computes the log-density at the sample mean + sigma noise: -noise^2 / 2 - log sigma - log sqrt(2 pi).

    In exact arithmetic it is ``normal_log_prob(mean + sigma * noise, mean, sigma, log_sigma)``, in value and gradient.
    That function subtracts the mean from the rounded sample: the difference has an error of half an ulp of the mean,
    which, divided by sigma, can be more than the noise itself. In the backward pass the mean receives two gradients of
    the order of 1 / sigma that cancel, and any other term added to one of them (the squashing by tanh) is absorbed.
    Here there is neither subtraction nor division, and mean and sigma do not receive a gradient: the exact one is 0.
    The density at other points, such as a replayed action, needs the other functions.

    Args:
        noise: standard normal; any floating-point type, broadcast against ``log_sigma``.
        log_sigma: logarithm of the standard deviation.

    Returns:
        The log-density of each element, in nats. NaN in any argument gives NaN, infinite noise gives -infinity; so does
        noise with a square that overflows (|noise| > 256 in e5m10). The gradient by ``log_sigma`` is exactly -1.

    Source:
        Low-precision SAC, Section 3, "2 & 3. Numerical Issues in the Policy", with u = mu + noise sigma of Section 2.
    """
    return torch.square(noise).mul(-0.5) - log_sigma - _LOG_SQRT_2PI
