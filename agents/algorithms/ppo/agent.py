"""PPO: several epochs of clipped policy gradients over each rollout; from states."""

from __future__ import annotations

from typing import Any, final

import torch

from ...experience.on_policy import Minibatch, RolloutRecorder, record_rollouts
from ...sizes import Sizes
from ..part import Metrics
from ..policy_gradient import PolicyGradient
from .settings import PPOConfig

_FACTOR = 1.5


@final
class PPO(PolicyGradient):
    """The clipped surrogate min(rho A, clip(rho, 1 - eps, 1 + eps) A), rho = exp(log pi - log pi_old).

    Source:
        Schulman et al., "Proximal Policy Optimization Algorithms", equation (7).
    """

    config: PPOConfig

    def value_slope(self, values: torch.Tensor, error: torch.Tensor, batch: Minibatch) -> torch.Tensor:
        """Returns the error, or 0 where the value has moved by more than ``value_clip`` towards its target.

        The loss of a value is the larger one of two squared errors: of the value, and of the value clipped to
        ``value_clip`` around its value in the rollout. A clipped value does not depend on the network.

        Source:
            OpenAI's Baselines; Engstrom et al., "Implementation Matters in Deep Policy Gradients", Section 2.
        """
        if not self.config.value_clip:
            return error
        most = self.config.value_clip * self.reward_scale
        moved = values - batch.values
        clipped = (batch.values + moved.clamp(-most, most)) - batch.returns
        return error.masked_fill((moved.abs() > most) & (clipped.abs() > error.abs()), 0.0)

    @torch.no_grad()
    def has_moved_enough(self, batch: Minibatch) -> bool:
        """Whether the policy is farther from the rollout's policy than 1.5 ``target_kl``, over a minibatch.

        The divergence is estimated by the mean of rho - 1 - log rho, rho = pi / pi_old, in float64.

        Source:
            Schulman, "Approximating KL Divergence" (2020), k3; the factor is from OpenAI's Spinning Up.
        """
        assert self.config.target_kl is not None
        with self.before_update():
            log_ratio = self.policy.log_prob(self.outputs(batch.observations), batch.actions) - batch.log_probs
        log_ratio = log_ratio.double()
        return float((log_ratio.expm1() - log_ratio).mean()) > _FACTOR * self.config.target_kl

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
    """The learner with its initial weights, and the recorder of its experience."""
    learner = PPO(sizes, config, device)
    enough = learner.has_moved_enough if config.target_kl is not None else None
    options: dict[str, Any] = {"normalizer": learner.normalizer, "enough": enough}
    return learner, record_rollouts(config, sizes, learner.dtype, device, learner.judge, **options)
