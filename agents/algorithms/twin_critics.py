"""Critics that are moved towards one target: the common part of soft actor-critic, DrQ, TD3 and DDPG."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from .learner import Learner
    from .part import Metrics


def step_critics(learner: Learner, q: torch.Tensor, target: torch.Tensor, count: int) -> Metrics:
    """Moves the critics by a step of their optimizer to lower their mean squared errors; see :func:`differentiate`."""
    metrics = differentiate(learner, q, target, count)
    learner.step("critic")
    return metrics


def differentiate(
    learner: Learner, q: torch.Tensor, target: torch.Tensor, count: int, weights: torch.Tensor | None = None
) -> Metrics:
    """Computes the gradients of critics' mean squared errors.

    Args:
        learner: the learner with the network and optimizer ``critic``.
        q: Outputs of k critics, (k, n, 1), with their graph; unrounded with the fix exact_errors.
        target: Target values, (n, 1); unrounded with the fix exact_errors.
        count: the divisor of the sum of squares.
        weights: the weight of each transition in that sum, (n, 1); None: all count alike.

    Returns:
        ``td_error``, (k, n, 1), and ``q``, the target values, for the log.
    """
    error = learner.errors_of(q, target)
    optimizer = learner.optimizers["critic"]
    # The derivative of each critic's mean squared error by its outputs.
    derivative = error if weights is None else error * weights
    learner.networks["critic"].compute_gradients(q, derivative * optimizer.mean_weight(2 / learner.reward_scale, count))
    return {"td_error": error, "q": target}
