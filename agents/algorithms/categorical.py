"""Values as probabilities of fixed numbers, the atoms: the computations of a categorical head; Bellemare et al., 2017.

Everything is computed operation by operation in the simulated format.
"""

from __future__ import annotations

import torch

from ..optimizers.decisions import add_product


def projected(
    probabilities: torch.Tensor,
    rewards: torch.Tensor,
    discounts: torch.Tensor,
    atoms: torch.Tensor,
    discount: float | torch.Tensor,
    limits: tuple[float, float],
) -> torch.Tensor:
    """Projects the distribution of reward + discount * (next value) onto the atoms around each value.

    T_j = r + g d z_j is at the position b_j = (T_j - v_min) / step along the atoms, clipped to the ends. With l the
    atom below, l gets p_j (1 - (b_j - l)), and the next one p_j (b_j - l). Both parts of a number add up to p_j, except
    for rounding, also if b_j is an integer.

    Args:
        probabilities: the distribution of the next value, (n, atoms).
        rewards: r, (n, 1).
        discounts: d, (n, 1), not negative.
        atoms: z, (atoms,), evenly spaced.
        discount: g.
        limits: the least and the largest atom, v_min < v_max.

    Returns:
        (n, atoms). NaN in r, d or p gives NaN in its row; an infinite T_j counts as an end.

    Source:
        Bellemare, Dabney & Munos, "A Distributional Perspective on Reinforcement Learning", Algorithm 1, which loses
        the part of a value exactly on an atom.
    """
    count = atoms.shape[0]
    least, largest = limits
    values = add_product(
        rewards.expand(-1, count), discounts.expand(-1, count), atoms.expand(len(rewards), -1), discount
    )
    along = values.sub_(least).mul_((count - 1) / (largest - least)).clamp_(0, count - 1)
    below = along.floor()
    above_part = probabilities * (along - below)
    parts = torch.cat((probabilities - above_part, above_part), dim=1)
    first = below.nan_to_num(0.0).to(torch.int64)  # The parts of such rows are NaN.
    places = torch.cat((first, (first + 1).clamp_(max=count - 1)), dim=1)
    return torch.zeros_like(probabilities).scatter_add(1, places, parts)


def expected(probabilities: torch.Tensor, atoms: torch.Tensor) -> torch.Tensor:
    """Computes the mean of distributions over the atoms, (...) for (..., atoms)."""
    return (probabilities * atoms).sum(-1)


def slope_of_expected(logits: torch.Tensor, atoms: torch.Tensor) -> torch.Tensor:
    """Computes the derivative of expected(softmax(logits)) by the logits, p (z - mean), (n, atoms), without a graph.

    It excludes the loss scale, with which products of the atoms would overflow in small formats.
    """
    with torch.enable_grad():
        leaf = logits.detach().requires_grad_()
        mean = expected(torch.softmax(leaf, dim=-1), atoms)
    (slope,) = torch.autograd.grad(mean, leaf, grad_outputs=torch.ones_like(mean))
    return slope


def divergence(target: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
    """Computes the Kullback-Leibler divergence of softmax(logits) from the target, (n, 1) for (n, atoms); at least 0.

    It is sum m log m - m log p, where 0 log 0 is 0. The logarithms are computed from the logits: they are finite, even
    if a probability is 0 in the format.
    """
    terms = torch.xlogy(target, target) - target * torch.log_softmax(logits, dim=-1)
    return terms.sum(-1, keepdim=True).clamp_(min=0)
