"""TD3: a deterministic actor, twin critics, and slow copies of both; from states."""

from __future__ import annotations

from typing import final

import torch

from ...experience.off_policy import OffPolicyRecorder, record_states
from ...experience.replay import Batch
from ...models.networks import forward
from ...optimizers.decisions import filled_like
from ...sizes import Sizes
from ..deterministic_actor import DeterministicActor
from ..explorer import GaussianExplorer, deviations_of
from ..part import Metrics, Part
from ..stochastic_targets import least_of
from ..twin_critics import step_critics
from .settings import TD3Config


@final
class TD3(DeterministicActor):
    """Twin critics, and an actor that moves less often; targets have clipped noise on the target actor's actions.

    Args:
        observation_size: the number of elements in an observation.
        action_size: the number of elements in an action.
        config: the hyper-parameters, the format, and the fixes or the baseline.
        device: where all tensors live.

    Source:
        Fujimoto, van Hoof & Meger, "Addressing Function Approximation Error in Actor-Critic Methods", Algorithm 1.
    """

    config: TD3Config

    def __init__(self, observation_size: int, action_size: int, config: TD3Config, device: torch.device) -> None:
        super().__init__(
            observation_size, action_size, config, device, actor_widths=config.hidden_widths, critics=2, outputs=1
        )
        delay = config.policy_delay
        self.parts = (
            Part("critic", TD3.update_critic, noise=0),
            Part("actor", TD3.update_actor, every=delay),
            Part("targets", TD3.update_targets, every=delay, batch=False),
        )

    def sample_actions(self, observations: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
        """Returns the best actions with noise, clipped to [-1, 1]."""
        return (self.best_actions(observations) + noise * self.config.exploration_noise).clamp(-1, 1)

    def noise_sizes(self, batch_size: int) -> tuple[int, ...]:
        """Returns one noise vector for the next action of each transition."""
        return (batch_size,)

    def update_critic(self, batch: Batch, noise: torch.Tensor) -> Metrics:
        """Moves both critics towards r + discount * (min of the target critics at the target actor's noisy action)."""
        config = self.config
        with torch.no_grad():
            smoothing = (noise * config.policy_noise).clamp(-config.noise_clip, config.noise_clip)
            actions = (self.target_actions(batch.next_observations) + smoothing).clamp(-1, 1)
            outputs = self.target_outputs(batch.next_observations, actions)
            next_q = least_of(outputs) if self.values_are_exact else outputs.amin(0)
            target = self.targets_of(batch.rewards, batch.discounts, next_q)
        critic, pairs = self.networks["critic"].trainable, batch.observations_and_actions
        q = forward(critic, pairs, scale=self.reward_scale, exact=self.exact_errors)
        return step_critics(self, q, target, len(batch.rows))

    def actor_objective(self, outputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns the negative values, and equal weights."""
        objective = -outputs
        return objective, filled_like(objective, self.optimizers["actor"].mean_weight(1, len(objective)))


def make(config: TD3Config, sizes: Sizes, device: torch.device) -> tuple[TD3, OffPolicyRecorder]:
    """Makes the learner with its initial weights, and the recorder of its experience."""
    learner = TD3(sizes.observation_size, sizes.action_size, config, device)
    return learner, record_states(config, sizes, learner.dtype, device)


def make_explorer(config: TD3Config, rank: int, steps: int, stream_key: tuple[int, ...]) -> GaussianExplorer:  # noqa: ARG001
    """Makes the explorer of actor ``rank``, which has taken ``steps``; see ``explorer_of``."""
    deviations = torch.full((config.environments, 1), config.exploration_noise)
    return GaussianExplorer(deviations_of(config, rank, deviations), config.seed, stream_key)
