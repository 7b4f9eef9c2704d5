"""The errors of values as one operation each, rounded once (exact errors)."""

from __future__ import annotations

import torch

from ...formats import unsimulated
from ..stochastic import exactly, rounded_once


@torch.no_grad()
def exact_target(
    rewards: torch.Tensor,
    discounts: torch.Tensor,
    following: torch.Tensor,
    discount: float | torch.Tensor,
    temperature: torch.Tensor | None = None,
    log_prob: torch.Tensor | None = None,
    reward_scale: float = 1.0,
    copies: int = 1,
) -> torch.Tensor:
    """Computes the target of :func:`stochastic_target` without rounding it; float64.

    It is the first half of the operation that :func:`exact_error` completes. The arguments are the same as in
    :func:`stochastic_target`.
    """
    exact = unrounded_target(rewards, discounts, following, discount, temperature, log_prob, reward_scale)
    return exact if copies == 1 else mean_of_copies(exact, copies).repeat(copies, *[1] * (exact.ndim - 1))


@torch.no_grad()
def exact_error(values: torch.Tensor, target: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Computes values - target from unrounded operands and rounds the result once, to the nearest.

    The difference of two separately rounded results has a dead zone: errors below half an ulp of the values become 0,
    and larger ones become multiples of that ulp. As one operation, the error itself has m significand bits. In exact
    arithmetic it is the usual error.

    Args:
        values: Outputs of critics, unrounded, any shape; float64.
        target: Target values, unrounded, broadcast against ``values``; float64.
        dtype: Type of the result.

    Returns:
        A tensor of ``dtype`` without a graph. NaN and opposite infinities give NaN; an error below half of the
        smallest value of the format becomes 0.
    """
    return rounded_once(difference(values, target), dtype, "sub")


@unsimulated
def unrounded_target(
    rewards: torch.Tensor,
    discounts: torch.Tensor,
    following: torch.Tensor,
    discount: float | torch.Tensor,
    temperature: torch.Tensor | None,
    log_prob: torch.Tensor | None,
    reward_scale: float,
) -> torch.Tensor:
    """Computes r + g d (V - alpha log pi) in float64, outside of any simulation."""
    value = following.double()
    if temperature is not None and log_prob is not None:
        value = value - reward_scale * temperature.double() * log_prob.double()
    exact: torch.Tensor = rewards.double() + discounts.double() * exactly(discount, rewards.dtype) * value
    return exact


@unsimulated
def mean_of_copies(exact: torch.Tensor, copies: int) -> torch.Tensor:
    """Computes the mean over copies of all transitions, one after the other along the first axis; float64."""
    return exact.view(copies, -1, *exact.shape[1:]).mean(0)


@unsimulated
def difference(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Computes x - y in float64, outside of any simulation."""
    return x - y.double()
