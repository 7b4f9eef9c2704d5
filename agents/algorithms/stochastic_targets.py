"""Target values, computed exactly and rounded once, stochastically (stochastic targets)."""

from __future__ import annotations

import torch

from ...formats import unsimulated
from ..stochastic import exactly, rounded_stochastically
from .categorical import projected
from .exact_errors import difference, mean_of_copies, unrounded_target

_add_product_ = unsimulated(lambda total, a, b: total.add_(a * b.double()))
_trace_weights = unsimulated(lambda d, discount, last, decay: (d.double() * discount).masked_fill(last, 0.0) * decay)


@torch.no_grad()
def stochastic_target(
    rewards: torch.Tensor,
    discounts: torch.Tensor,
    following: torch.Tensor,
    discount: float | torch.Tensor,
    temperature: torch.Tensor | None = None,
    log_prob: torch.Tensor | None = None,
    reward_scale: float = 1.0,
    copies: int = 1,
) -> torch.Tensor:
    """Computes the target r + g d (V - alpha log pi) as one operation, rounded once, stochastically.

    With targets rounded to the nearest, a critic stops where r - (1 - g) V is below half an ulp of V: with m
    significand bits it values at most 1 / ((1 - g) + 2^-(m + 2)) steps, of 1 / (1 - g). Rounded stochastically, the
    target is right on average, and the critic, which averages, reaches it. In exact arithmetic it is the usual target.

    The surrounding simulation determines the format and the random bits; see
    :func:`~roundoff.agents.stochastic.rounded_stochastically`.

    Args:
        rewards: r, any shape; any floating-point type.
        discounts: d: 0 where nothing follows, else 1; like ``rewards``.
        following: V, like ``rewards``; or unrounded, in float64. Rounding V to the nearest also stops the critic if
            V is nearly the same for all states.
        discount: g; a number, or a tensor without dimensions.
        temperature: alpha, one value; None: the value does not include entropy.
        log_prob: the log-probability of the next action, like ``rewards``; with ``temperature``.
        reward_scale: the factor of r and V, to apply also to the weight of the entropy.
        copies: the number of copies of all transitions, concatenated along the first axis; the target is the mean
            over them, for each.

    Returns:
        A new tensor like ``rewards``. NaN in r or V gives NaN, as does an infinite V where d is 0.
    """
    exact = unrounded_target(rewards, discounts, following, discount, temperature, log_prob, reward_scale)
    if copies > 1:
        exact = mean_of_copies(exact, copies)
    target = rounded_stochastically(exact, rewards.dtype, "addcmul")
    return target if copies == 1 else target.repeat(copies, *[1] * (target.ndim - 1))


@unsimulated
def least_of(values: torch.Tensor) -> torch.Tensor:
    """Returns the smallest of several unrounded values, along the first axis, with the graph of that one."""
    return values.min(dim=0).values


@unsimulated
def chosen(values: torch.Tensor, choice: torch.Tensor | None) -> torch.Tensor:
    """Returns the chosen one of unrounded values (n, actions), or the largest if ``choice`` is None; (n, 1)."""
    return values.amax(1, keepdim=True) if choice is None else values.gather(1, choice)


@torch.no_grad()
def stochastic_returns(
    rewards: torch.Tensor,
    discounts: torch.Tensor,
    values: torch.Tensor,
    following: torch.Tensor,
    last: torch.Tensor,
    discount: float,
    gae_lambda: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Computes advantages and returns of a rollout, each as one operation, rounded stochastically.

    R_t = r_t + g d_t V'_t + g lambda d_t A_(t+1) and A_t = R_t - V_t, each rounded once; A_(t+1) is 0 where an episode
    ended. Rounded to the nearest, A_t would stop where it moves by less than half an ulp a step.

    Args:
        rewards: r, (steps, n); any floating-point type.
        discounts: d, 0 at a terminal state, else 1; like ``rewards``.
        values: V, of the states; like ``rewards``, or unrounded, in float64.
        following: V', of the states that follow; like ``values``.
        last: whether an episode ended with the step; (steps, n), boolean.
        discount: g.
        gae_lambda: lambda.

    Returns:
        Both like ``rewards``.

    Source:
        Schulman et al., "High-Dimensional Continuous Control Using Generalized Advantage Estimation", (16).
    """
    dtype = rewards.dtype
    sums = unrounded_target(rewards, discounts, following, discount, None, None, 1.0)  # R_t without A_(t+1).
    weights = _trace_weights(discounts, exactly(discount, dtype), last, gae_lambda)
    advantages = torch.empty_like(rewards)
    for t in reversed(range(len(rewards))):
        if t + 1 < len(rewards):
            _add_product_(sums[t], weights[t], advantages[t + 1])
        advantages[t] = rounded_stochastically(difference(sums[t], values[t]), dtype, "addcmul")
    return advantages, rounded_stochastically(sums, dtype, "add")


@torch.no_grad()
def stochastic_projection(
    probabilities: torch.Tensor,
    rewards: torch.Tensor,
    discounts: torch.Tensor,
    atoms: torch.Tensor,
    discount: float | torch.Tensor,
    limits: tuple[float, float],
) -> torch.Tensor:
    """Projects the distribution of reward + discount * (next value) onto the atoms, with stochastic rounding.

    The arguments are the same as in :func:`~.categorical.projected`; the projection is exact, and each probability is
    rounded once. Rounded to the nearest, a value that moves along the atoms by less than half an ulp of its place would
    not move, and a part below half an ulp of another part would be lost. On average, the probabilities of a row have
    the same sum as the input's.
    """
    tensors = (probabilities, rewards, discounts, atoms)
    exact = _projected(*tensors, discount=exactly(discount, atoms.dtype), limits=limits)
    return rounded_stochastically(exact, probabilities.dtype, "scatter_add")


@unsimulated
def _projected(*tensors: torch.Tensor, discount: float | torch.Tensor, limits: tuple[float, float]) -> torch.Tensor:
    probabilities, rewards, discounts, atoms = (x.double() for x in tensors)
    return projected(probabilities, rewards, discounts, atoms, discount, limits)
