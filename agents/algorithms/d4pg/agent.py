"""D4PG: a deterministic actor, a critic of distributions of values, and slow copies of both; from states."""

from __future__ import annotations

from typing import final

import torch

from ....formats import round
from ...experience.off_policy import OffPolicyRecorder, record_steps
from ...experience.replay import Batch
from ...models.networks import forward
from ...optimizers.decisions import filled_like
from ...sizes import Sizes
from ..categorical import divergence, expected, slope_of_expected
from ..deterministic_actor import DeterministicActor
from ..explorer import GaussianExplorer, deviations_of
from ..part import Metrics, Part
from ..stochastic_targets import least_of
from ..twin_critics import differentiate
from ..value_learner import ValueLearner
from .settings import D4PGConfig


@final
class D4PG(DeterministicActor, ValueLearner):
    """A critic of continuous actions: probabilities of ``atoms`` values, or one value (one atom: DDPG).

    The critic moves towards the distribution of r_1 + ... + g^(n-1) r_n + g^n Z'(s_n, mu'(s_n)), projected onto the
    atoms, by cross entropy; or towards the same with a number Q' by squared error. The actor mu follows the gradient of
    the mean of Z by the action. Z' and mu' are the target networks.

    The actor follows the critic after its step, as in Lillicrap et al.; Barth-Maron et al. compute both gradients
    before either step. With priorities, the weights of transitions are from :class:`PrioritizedReplay`; Barth-Maron et
    al. divide by R p_i.

    Args:
        observation_size: the number of elements in an observation.
        action_size: the number of elements in an action.
        config: the hyper-parameters, the format, and the fixes or the baseline.
        device: where all tensors live.

    Source:
        Barth-Maron et al., "Distributed Distributional Deterministic Policy Gradients", Algorithm 1; Lillicrap et al.,
        "Continuous control with deep reinforcement learning", Algorithm 1.
    """

    config: D4PGConfig

    def __init__(self, observation_size: int, action_size: int, config: D4PGConfig, device: torch.device) -> None:
        widths, outputs = config.actor_widths, config.atoms
        super().__init__(observation_size, action_size, config, device, actor_widths=widths, critics=1, outputs=outputs)
        self._sigmas: torch.Tensor | None = None  # (environments, 1), evenly spaced; None if all are equal.
        if config.exploration_noise_min is not None:
            self._sigmas = round(_deviations(config), self.format).to(device=device, dtype=self.dtype)
        self.parts = (
            Part("critic", D4PG.update_critic),
            Part("actor", D4PG.update_actor),
            Part("targets", D4PG.update_targets, every=config.target_every, batch=False),
        )

    def sample_actions(self, observations: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
        """Returns the best actions with noise, clipped to [-1, 1]."""
        return (self.best_actions(observations) + noise).clamp(-1, 1)

    def action_noise(self, count: int, first: int = 0) -> torch.Tensor:
        """Draws normal noise with the standard deviation of each environment."""
        sigmas = self.config.exploration_noise if self._sigmas is None else self._sigmas[first : first + count]
        return super().action_noise(count, first) * sigmas

    def update_critic(self, batch: Batch) -> Metrics:
        """Moves the critic towards its targets."""
        with torch.no_grad():
            actions = self.target_actions(batch.next_observations)
            following = self.target_outputs(batch.next_observations, actions)
        following = least_of(following) if self.values_are_exact else following[0]
        critic, scale = self.networks["critic"], self.scale_of_outputs
        outputs = forward(critic.trainable, batch.observations_and_actions, scale=scale, exact=self.exact_errors)
        differentiate_errors = self._update_values if self.config.atoms == 1 else self._update_distributions
        metrics = differentiate_errors(outputs, following, batch)
        self.step("critic")
        return metrics

    def actor_objective(self, outputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns the outputs of the critic, and the derivative of its negative mean value."""
        if self.config.atoms == 1:
            return outputs, filled_like(outputs, self.optimizers["actor"].mean_weight(-1, len(outputs)))
        # The atoms are scaled, and so the derivative of the mean by the logits.
        slope = slope_of_expected(outputs, self.atoms)
        return outputs, slope * self.optimizers["actor"].mean_weight(-1 / self.reward_scale, len(outputs))

    def _update_values(self, q: torch.Tensor, following: torch.Tensor, batch: Batch) -> Metrics:
        """Computes the gradient of the mean squared error by Q values, (1, n, 1)."""
        target = self.targets_of(batch.rewards, batch.discounts, following)
        weights = batch.weights if self.config.weighs else None
        metrics = differentiate(self, q, target, len(batch.rows), weights)
        return {**metrics, **self.priorities(self.without_scale(metrics["td_error"][0].abs()))}

    def _update_distributions(self, outputs: torch.Tensor, following: torch.Tensor, batch: Batch) -> Metrics:
        """Computes the gradient of the mean cross entropy by logits, (1, n, atoms)."""
        probabilities = torch.softmax(following, dim=1)
        target = self.projected_target(probabilities, batch)
        logits = outputs.detach()[0]
        weights = self.cross_entropy_weights(logits, target, batch)
        self.networks["critic"].compute_gradients(outputs, weights.unsqueeze(0))
        priorities = self.priorities(divergence(target, logits)) if self.config.prioritized else {}
        return {"q": expected(target, self.atoms), **priorities}


def make(config: D4PGConfig, sizes: Sizes, device: torch.device) -> tuple[D4PG, OffPolicyRecorder]:
    """Makes the learner with its initial weights, and the recorder of its experience."""
    learner = D4PG(sizes.observation_size, sizes.action_size, config, device)
    return learner, record_steps(config, sizes, learner.dtype, device)


def make_explorer(config: D4PGConfig, rank: int, steps: int, stream_key: tuple[int, ...]) -> GaussianExplorer:  # noqa: ARG001
    """Makes the explorer of actor ``rank``, which has taken ``steps``; see ``explorer_of``."""
    return GaussianExplorer(deviations_of(config, rank, _deviations(config)), config.seed, stream_key)


def _deviations(config: D4PGConfig) -> torch.Tensor:
    """Returns the deviations of exploration noise, (environments, 1), float64: evenly spaced, or all equal."""
    largest, least = config.exploration_noise, config.exploration_noise_min
    ends = (largest if least is None else least, largest)
    return torch.linspace(*ends, config.environments, dtype=torch.float64).unsqueeze(1)
