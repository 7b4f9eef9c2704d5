"""Exponential, tanh and ELU of only basic operations, so that Python and C compute the same bits."""

from __future__ import annotations

import torch

from ..models.policy_layers import Activation

HALVINGS = 12
"""Number of times that an argument of the exponential is halved before its series, and the result squared after it."""
TERMS = 10
"""The number of terms of the series after the first."""
SMALLEST_EXPONENT = -700.0
"""Smaller exponents count as this one; its exponential is still a normal number of float64."""
SMALL = 2.0**-6
"""Smaller magnitudes have a series: the differences 1 - e^(-2|x|) and e^x - 1 lose digits there."""
LARGE = 20.0
"""Larger magnitudes count as this one; its tanh is 1 in float32."""
TANH_SERIES = (-17.0 / 315.0, 2.0 / 15.0, -1.0 / 3.0, 1.0)
"""Coefficients of x^7, x^5, x^3 and x."""
ELU_SERIES = (1.0 / 24.0, 1.0 / 6.0, 1.0 / 2.0, 1.0)
"""Coefficients of x^4, x^3, x^2 and x of e^x - 1."""


def exponential(x: torch.Tensor) -> torch.Tensor:
    """Computes e^x for x <= 0, by the series at x / 2^12, squared 12 times; relative error below 1e-12.

    Args:
        x: float64, not positive; less than -700 counts as -700.

    Returns:
        float64; NaN for NaN.
    """
    x = x.clamp(min=SMALLEST_EXPONENT) * 2.0**-HALVINGS
    result = torch.ones_like(x)
    for i in range(TERMS, 0, -1):  # Horner's scheme
        result = 1.0 + x / i * result
    for _ in range(HALVINGS):
        result = result * result
    return result


def tanh(x: torch.Tensor) -> torch.Tensor:
    """The hyperbolic tangent, (1 - e^(-2|x|)) / (1 + e^(-2|x|)) with the sign of x, computed in float64.

    Args:
        x: float32.

    Returns:
        float32, rounded once from a relative error below 1e-9; NaN for NaN, and -0 for -0.
    """
    wide = x.to(torch.float64)  # A NaN stays: comparisons with it are false, and it spreads.
    magnitude = wide.abs()
    e = exponential(-2.0 * magnitude.clamp(max=LARGE))
    by_exponential = (1.0 - e) / (1.0 + e)
    square = wide * wide
    series = torch.full_like(wide, TANH_SERIES[0])
    for coefficient in TANH_SERIES[1:]:
        series = series * square + coefficient
    result = torch.where(magnitude < SMALL, wide * series, torch.copysign(by_exponential, wide))
    return result.to(torch.float32)


def elu(x: torch.Tensor) -> torch.Tensor:
    """The exponential linear unit: x above zero, and e^x - 1 below, computed in float64.

    Args:
        x: float32.

    Returns:
        float32, rounded once from a relative error below 1e-8; NaN for NaN, -0 for -0, and -1 for -infinity.
    """
    wide = x.to(torch.float64)
    series = torch.full_like(wide, ELU_SERIES[0])
    for coefficient in ELU_SERIES[1:]:
        series = series * wide + coefficient
    below = torch.where(wide > -SMALL, wide * series, exponential(wide.clamp(max=0.0)) - 1.0)
    return torch.where(wide > 0, wide, below).to(torch.float32)


FUNCTIONS = {Activation.RELU: torch.relu, Activation.TANH: tanh, Activation.ELU: elu}
"""The activation functions of layers."""
