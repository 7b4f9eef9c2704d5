"""Compensated sums with a compensation that is exact on average (stochastic compensation)."""

from __future__ import annotations

from collections.abc import Callable

import torch

from ...formats import unsimulated
from ..stochastic import exactly, rounded_stochastically
from .kahan_gradients import add_compensated_

_less_product = unsimulated(lambda a, b, c: a.double() - b.double() * c)
_product_less = unsimulated(lambda a, b, c: a.double() * b - c.double())


@torch.no_grad()
def stochastic_kahan_add_(
    total: torch.Tensor,
    compensation: torch.Tensor,
    values: torch.Tensor,
    factor: float | torch.Tensor = 1.0,
    keep: Callable[[torch.Tensor], torch.Tensor] | None = None,
) -> torch.Tensor:
    """Adds ``factor * values`` to ``total`` in place, by Kahan's sum, with an increment that is rounded stochastically.

    y = factor values - c, computed as one operation and rounded once, stochastically; t = total + y;
    c = (t - total) - y; total = t. In exact arithmetic it is :func:`~.kahan_gradients.kahan_add_`, and c is 0.

    Kahan's sum in m significand bits has about 2 m + 2 bits: c is at most half an ulp of the total, and a change
    below half an ulp of c is absorbed there, as it would be in the total. Here it is not: the expectation of total - c
    grows by exactly factor * values, as t - c is total + y, and y is right on average. The noise of one step is at most
    an ulp of y, some 2^-(m + 1) ulp of the total.

    Random bits are from the surrounding simulation; see :func:`~roundoff.agents.stochastic.rounded_stochastically`.

    Args:
        total: the sum so far; any floating-point type, any shape; changed in place.
        compensation: like ``total``; zero before the first call; changed in place.
        values: the values to add; like ``total``; unchanged.
        factor: the factor of ``values``; a number, or a tensor without dimensions.
        keep: see ``kahan_add_``.

    Returns:
        ``total``. NaN and infinities of values spread into it; once it overflows to infinity, the compensation becomes
        NaN, and the total at the next call.
    """
    exact = _product_less(values, exactly(factor, values.dtype), compensation)
    return add_compensated_(total, compensation, rounded_stochastically(exact, total.dtype, "sub"), keep)


@torch.no_grad()
def step_towards(
    average: torch.Tensor,
    compensation: torch.Tensor,
    source: torch.Tensor,
    scale: float | torch.Tensor,
    minus_tau: float | torch.Tensor,
) -> torch.Tensor:
    """Computes the increment tau (scale * source - average) - compensation, rounded once, stochastically.

    Args:
        average: any floating-point type.
        compensation: like ``average``.
        source: like ``average``.
        scale: the ratio of ``average`` to the average of ``source``.
        minus_tau: minus the step of the average.
    """
    dtype = average.dtype
    away = _less_product(average, source, exactly(scale, dtype))
    return rounded_stochastically(_product_less(away, exactly(minus_tau, dtype), compensation), dtype, "sub")
