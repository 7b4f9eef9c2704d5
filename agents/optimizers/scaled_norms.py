"""Norms and standard deviations, by the usual formulas, and of numbers that are first divided by the largest.

A fix beyond the paper's six, for gradients that are clipped by their norm and numbers that are standardized.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .decisions import with_number

_EPS = 1e-8


def norm_over_naive(x: Tensor, unit: float | Tensor) -> Tensor:
    """Computes the Euclidean norm, sqrt(sum of x^2), over ``unit``.

    The squares overflow and underflow: in e5m10 the norm is infinite once the squares sum to 65520 (one number of 256,
    or 10 000 of 2.6), and the square of a number below 1.7e-4 is 0.

    Args:
        x: any floating-point type and shape.
        unit: > 0; a number, or a tensor without dimensions.

    Returns:
        A tensor without dimensions, like ``x``. NaN if there is one in ``x``, else infinity if there is one.

    Source:
        ``torch.nn.utils.clip_grad_norm_``; Pascanu et al., "On the difficulty of training recurrent neural networks",
        Algorithm 1.
    """
    return with_number(torch.div, torch.square(x).sum().sqrt_(), unit)


def norm_over(x: Tensor, unit: float | Tensor) -> Tensor:
    """Computes the norm over ``unit`` as (m / unit) * sqrt(mean of (x / m)^2) * sqrt(count), m the largest magnitude.

    No square is above 1, and the largest is 1, so that nothing overflows and underflow is negligible. The norm
    itself, which may be above the largest number of a format, is never computed.

    Args:
        x: any floating-point type and shape.
        unit: > 0; a number, or a tensor without dimensions.

    Returns:
        A tensor without dimensions, like ``x``; 0 if all are 0. NaN if ``x`` holds NaN or an infinity.

    Source:
        Blue, "A Portable Fortran Program to Find the Euclidean Norm of a Vector", ACM TOMS 4, 1978: the scaling.
    """
    largest, _ = _largest(x)
    root = torch.square(x / largest).mean().sqrt_().mul_(math.sqrt(x.numel()))
    return with_number(torch.div, largest, unit).mul_(root)


def standardized_naive(x: Tensor, unit: float = 1.0) -> Tensor:
    """Computes (x - mean) / (s + 1e-8 unit), with the standard deviation s = sqrt(sum of (x - mean)^2 / (count - 1)).

    In e5m10 the squares overflow if numbers are 256 and more from their mean: s is infinite, and all results are 0.
    1e-8 is 0, so that equal numbers give NaN.

    Args:
        x: two numbers or more, of any floating-point type.
        unit: the factor that ``x`` contains.

    Returns:
        Like ``x``. NaN if there is one in ``x``, or an infinity.

    Source:
        Stable-Baselines3 and OpenAI's Baselines, of advantages in PPO; the paper does not mention it.
    """
    centered = x - x.mean()
    deviation = torch.square(centered).mean().sqrt_().mul_(_correction(x))
    return centered.div_(deviation.add_(_EPS * unit))


def standardized(x: Tensor, unit: float = 1.0) -> Tensor:
    """Computes (x - mean) / (s + 1e-8 unit) as z / (s / m + 1e-8 unit / m), z = (x - mean) / m.

    m is the largest |x - mean|.

    Args:
        x: two numbers or more, of any floating-point type.
        unit: the factor that ``x`` contains.

    Returns:
        Like ``x``; 0 where all numbers are the same. NaN if there is one in ``x``, or an infinity.

    Source:
        As :func:`norm_over`.
    """
    centered = x - x.mean()
    largest, none = _largest(centered)
    scaled = centered.div_(largest)
    deviation = torch.square(scaled).mean().sqrt_().mul_(_correction(x))
    # Only the quotient may underflow, since s / m is at least 1 / sqrt(count); if m is 0, ``none`` is 1.
    return scaled.div_(deviation + torch.full_like(largest, _EPS * unit).div_(largest) + none)


def _correction(x: Tensor) -> float:
    """Returns the factor from a root mean square to a sample's standard deviation."""
    return math.sqrt(x.numel() / (x.numel() - 1))


def _largest(x: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the largest magnitude, or 1 if all numbers are 0; and whether all are 0."""
    largest = torch.linalg.vector_norm(x, math.inf)
    none = largest == 0
    return largest + none, none
