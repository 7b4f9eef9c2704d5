"""Two critics that are moved towards one target: what soft actor-critic, DrQ and TD3 share."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from .learner import Learner
    from .part import Metrics


def step_critics(learner: Learner, q: torch.Tensor, target: torch.Tensor, count: int) -> Metrics:
    """Moves both critics by a step of their optimizer to lower their mean squared errors.

    Args:
        learner: whose network and optimizer ``critic`` it is about.
        q: what they give, (2, n, 1), with its graph.
        target: what they are moved towards, (n, 1).
        count: by which the sum of squares is divided.

    Returns:
        ``td_error``, (2, n, 1), and ``q``: the target.
    """
    error = q.detach() - target
    optimizer = learner.optimizers["critic"]
    # The derivative of each critic's mean squared error by its outputs.
    learner.networks["critic"].compute_gradients(q, error * optimizer.mean_weight(2, count))
    learner.next_draws()
    optimizer.step()
    return {"td_error": error, "q": target}
