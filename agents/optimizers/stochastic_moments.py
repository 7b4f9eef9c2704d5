"""Moments of an optimizer that follow gradients even with few bits (stochastic moments)."""

from __future__ import annotations

import math

import torch

from ...formats import unsimulated
from ..stochastic import rounded_stochastically

_mean = unsimulated(lambda moment, values, beta: moment.double() * beta + values.double() * (1 - beta))
_root = unsimulated(lambda w, x, beta: torch.hypot(w.double() * math.sqrt(beta), x.double() * math.sqrt(1 - beta)))


@torch.no_grad()
def stochastic_mean_(moment: torch.Tensor, values: torch.Tensor, beta: float) -> torch.Tensor:
    """Moves a mean: m <- b m + (1 - b) x, as one operation, rounded once, stochastically.

    Rounded to the nearest with few significand bits, m stops where (1 - b) |x - m| is below half an ulp of it: with
    b = 0.999 and seven bits or fewer it never falls. Rounded stochastically it is right on average. In exact arithmetic
    it is the usual mean.

    The surrounding simulation determines the format and the random bits; see
    :func:`~roundoff.agents.stochastic.rounded_stochastically`.

    Args:
        moment: m; any floating-point type, any shape; changed in place.
        values: x, like ``moment``; NaN and infinities spread into it.
        beta: b, in [0, 1).

    Returns:
        ``moment``.
    """
    return moment.copy_(rounded_stochastically(_mean(moment, values, beta), moment.dtype, "add"))


@torch.no_grad()
def stochastic_mean_square_(moment: torch.Tensor, values: torch.Tensor, beta: float) -> torch.Tensor:
    """Moves a mean square: v <- b v + (1 - b) x^2; otherwise as :func:`stochastic_mean_`."""
    return moment.copy_(rounded_stochastically(_mean_square(moment, values, beta), moment.dtype, "addcmul"))


@torch.no_grad()
def stochastic_root_(moment: torch.Tensor, values: torch.Tensor, beta: float) -> torch.Tensor:
    """Moves the root of a mean square: w <- sqrt(b w^2 + (1 - b) x^2); otherwise as :func:`stochastic_mean_`.

    The root is right on average, given w; its square is larger by the variance of its rounding.
    """
    return moment.copy_(rounded_stochastically(_root(moment, values, beta), moment.dtype, "hypot"))


@unsimulated
def _mean_square(moment: torch.Tensor, values: torch.Tensor, beta: float) -> torch.Tensor:
    wide = values.double()
    exact: torch.Tensor = moment.double() * beta + wide * wide * (1 - beta)
    return exact
