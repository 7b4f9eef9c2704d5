"""PPO: several epochs of clipped policy gradients over each rollout; from states."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

import torch

from ...experience.on_policy import record_rollouts
from ..policy_gradient import PolicyGradient

if TYPE_CHECKING:
    from ...experience.on_policy import RolloutRecorder
    from ...sizes import Sizes
    from ..part import Metrics
    from .settings import PPOConfig


@final
class PPO(PolicyGradient):
    """The clipped surrogate min(rho A, clip(rho, 1 - eps, 1 + eps) A), rho = exp(log pi - log pi_old).

    Source:
        Schulman et al., "Proximal Policy Optimization Algorithms", equation (7).
    """

    config: PPOConfig

    def surrogate(
        self, log_prob: torch.Tensor, old_log_prob: torch.Tensor, advantage: torch.Tensor
    ) -> tuple[torch.Tensor, Metrics]:
        """Rho A, which is its own derivative; 0 where the clipped product is the smaller one.

        An infinite ratio is clipped where the advantage is positive; where it is not, the gradient is not finite.
        """
        ratio = torch.exp(log_prob - old_log_prob)
        product = ratio * advantage
        clipped = product > ratio.clamp(1 - self.config.clip, 1 + self.config.clip).mul_(advantage)
        return product.masked_fill_(clipped, 0.0), {"clipped": clipped}


def make(config: PPOConfig, sizes: Sizes, device: torch.device) -> tuple[PPO, RolloutRecorder]:
    """The learner with its initial weights, and what keeps its experience."""
    learner = PPO(sizes, config, device)
    return learner, record_rollouts(config, sizes, learner.dtype, device, learner.judge)
