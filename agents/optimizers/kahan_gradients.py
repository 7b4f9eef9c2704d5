"""Kahan's compensated summation, and parameter updates through it (Kahan-gradients)."""

from __future__ import annotations

from collections.abc import Callable

import torch

from .decisions import copy_


@torch.no_grad()
def kahan_add_(
    total: torch.Tensor,
    compensation: torch.Tensor,
    values: torch.Tensor,
    keep: Callable[[torch.Tensor], torch.Tensor] | None = None,
) -> torch.Tensor:
    """Adds ``values`` to ``total`` in place, and keeps the rounding error for the next call.

    y = values - c;  t = total + y;  c = (t - total) - y;  total = t. Many additions, each far below half an ulp of
    the total and without effect in a plain sum, then have their full effect: with m significand bits those down to
    2^-(2 m + 2) of the total or so; smaller ones the compensation absorbs (but not with ``stochastic_kahan_add_``).
    As the parameter update of an optimizer (``HAdam(..., kahan=True)``) this is the paper's Kahan-gradients.

    Args:
        total: the sum so far; any floating-point type, any shape; changed in place.
        compensation: like ``total``; zero before the first call; changed in place.
        values: the values to add; like ``total``; unchanged.
        keep: rounds a sum for memory, to fewer bits than it is computed in; None: keeps all bits. The rounding error is
            also compensated.

    Returns:
        ``total``. Once the total overflows to infinity, the compensation becomes NaN, and the total at the next call.

    Source:
        Low-precision SAC, Algorithm 2 (Kahan, 1965).
    """
    return add_compensated_(total, compensation, values - compensation, keep)


@torch.no_grad()
def add_compensated_(
    total: torch.Tensor,
    compensation: torch.Tensor,
    y: torch.Tensor,
    keep: Callable[[torch.Tensor], torch.Tensor] | None = None,
) -> torch.Tensor:
    """Adds the y of :func:`kahan_add_` to ``total``, and keeps the rounding error in ``compensation``.

    t - c is total + y exactly, as long as |y| is at most |total| and nothing overflows.
    """
    new_total = total + y if keep is None else keep(total + y)
    torch.sub(new_total, total, out=compensation)
    compensation.sub_(y)
    return total.copy_(new_total) if keep is None else copy_(total, new_total)
