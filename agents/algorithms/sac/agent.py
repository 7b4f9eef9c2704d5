"""Soft actor-critic: the common part of learning from states and images, and the agent that learns from states."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar, final

import torch

from ....simulate import Role, in_role
from ...experience.off_policy import OffPolicyRecorder, record_states
from ...experience.replay import Batch
from ...models.networks import MLP, FlatNetwork, forward
from ...models.policy_layers import Activation, Decision, PolicyLayers, perceptron
from ...models.squashed_normal import SquashedNormal
from ...optimizers.decisions import filled_like
from ...sizes import Sizes
from ...streams import Stream, torch_generator
from ..exact_errors import exact_target
from ..learner import Learner
from ..part import Metrics, Part
from ..stochastic_targets import least_of, stochastic_target
from ..twin_critics import step_critics
from .settings import SACConfig


class SoftActorCritic(Learner):
    """Twin critics, their slow copies, a squashed normal policy, and a learned temperature.

    Args:
        networks: makes the networks of the actor and the critics from ``generator``, ``dtype`` and ``device``.
        observation_size: the number of elements in an observation; 0: it learns from images.
        action_size: the number of elements in an action.
        config: the hyper-parameters, the format, and the fixes or the baseline.
        device: the device of all tensors.

    Source:
        Haarnoja et al., "Soft Actor-Critic Algorithms and Applications"; Low-precision SAC, Section 2 and Table 4.
    """

    config: SACConfig
    draws: ClassVar[tuple[str, ...]] = ("critic", "critic_step", "actor", "actor_step", "temperature", "target")

    def __init__(
        self,
        networks: Callable[..., tuple[FlatNetwork, FlatNetwork]],
        observation_size: int,
        action_size: int,
        config: SACConfig,
        device: torch.device,
    ) -> None:
        super().__init__(observation_size, action_size, config, device)
        options: dict[str, Any] = {"dtype": self.dtype, "device": device}
        self.target_entropy = -float(action_size)  # Haarnoja et al.: minus the dimension of actions.
        self.policy = SquashedNormal(
            log_sigma_min=config.log_sigma_min,
            log_sigma_max=config.log_sigma_max,
            normal_fix="normal_fix" in config.fixes,
            softplus_fix="softplus_fix" in config.fixes,
            # exp(K) must be finite (Appendix B): a format with few exponent bits needs a smaller K than the config's.
            softplus_threshold=min(config.softplus_threshold, math.log(self.largest)),
            sigma_eps=config.sigma_eps,
            from_noise="noise_log_prob" in config.fixes,
        )
        self.numbers["threshold"] = self.policy.softplus_threshold  # Data to programs: it depends on the format.
        generator = torch_generator(config.seed, Stream.WEIGHTS, torch.device("cpu"))
        actor, critic = networks(generator=generator, **options)
        log_temperature = torch.tensor([math.log(config.initial_temperature)], **options)
        for parameters in (actor.flat, critic.flat, log_temperature):
            self.rounded_(parameters)
        self.networks = {"actor": actor, "critic": critic}
        target = critic.flat.clone()  # Of the rounded weights.
        with self.constructing():
            self.averages = {"target": self.make_average(target)}
            self.optimizers = {
                "actor": self.make_optimizer(actor.flat, kahan=False),
                "critic": self.make_optimizer(critic.flat, kahan=True),
                "temperature": self.make_optimizer(log_temperature, kahan=True, stored=False),
            }
        actor_period, target_period = config.actor_update_every, config.target_update_every
        self.parts = (
            Part("critic", type(self).update_critic, noise=0),
            Part("actor", type(self).update_actor_and_temperature, every=actor_period, noise=1),
            Part("target", type(self).update_target, every=target_period, batch=False),
        )

    def bind(self) -> None:
        """Binds the target critics' layers, the temperature's parameter, and the softplus threshold of the policy."""
        self.target = self.critic.views(self.averages["target"].average)
        self.log_temperature = self.optimizers["temperature"].flat
        threshold: Any = self.numbers["threshold"]
        self.policy = replace(self.policy, softplus_threshold=threshold)  # A tensor in programs.

    @property
    def actor(self) -> Any:
        """The network of the policy."""
        return self.networks["actor"]

    @property
    def critic(self) -> Any:
        """Both critics, as one network."""
        return self.networks["critic"]

    @property
    def temperature(self) -> torch.Tensor:
        """The weight of the entropy, (1,)."""
        return torch.exp(self.log_temperature)

    @abstractmethod
    def policy_outputs(self, observations: torch.Tensor) -> torch.Tensor:
        """Returns the outputs of the actor's network, (n, 2 action)."""

    def best_actions(self, observations: torch.Tensor) -> torch.Tensor:
        """Returns the tanh of the means."""
        return self.policy.mode(self.policy_outputs(observations))

    def sample_actions(self, observations: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
        """Returns the tanh of a normal sample."""
        return self.policy.sample(self.policy_outputs(observations), noise)

    @abstractmethod
    def update_critic(self, batch: Any, noise: torch.Tensor) -> Metrics:
        """Moves both critics towards r + discount * (min of the target critics - temperature * log pi)."""

    @abstractmethod
    def update_actor_and_temperature(self, batch: Any, noise: torch.Tensor) -> Metrics:
        """Moves the actor to lower the mean of temperature * log pi - min q, the temperature to the target entropy."""

    def update_target(self) -> Metrics:
        """Moves the target critics a step towards the critics."""
        self.update_averages({"target": "critic"})
        return {}

    def weights(self) -> dict[str, torch.Tensor]:
        """Returns the flat parameters of the networks, by name, and the logarithm of the temperature."""
        return super().weights() | {"log_temperature": self.log_temperature}

    @in_role(Role.TARGETS)
    def targets(
        self,
        rewards: torch.Tensor,
        discounts: torch.Tensor,
        next_q: torch.Tensor,
        next_log_prob: torch.Tensor,
        copies: int = 1,
    ) -> torch.Tensor:
        """Returns the targets of the critics; all tensors are (n, 1).

        ``copies``: the number of copies of the batch, in turn; copies of a transition get the mean of their targets.
        """
        if self.exact_errors or self.stochastic_targets:
            discount, entropy = self.numbers["discount"], (self.temperature, next_log_prob, self.reward_scale)
            target = exact_target if self.exact_errors else stochastic_target
            return target(rewards, discounts, next_q, discount, *entropy, copies)
        next_value = torch.addcmul(next_q, self.temperature, next_log_prob, value=-self.reward_scale)
        targets = self.targets_of(rewards, discounts, next_value)
        if copies == 1:
            return targets
        # The mean over the copies, in the format, for each copy.
        total, *others = targets.chunk(copies)
        for part in others:
            total = total + part
        return (total / copies).repeat(copies, 1)

    def least_of_critics(self, q: torch.Tensor) -> torch.Tensor:
        """Returns the smaller value of two critics, (2, n, 1) -> (n, 1), with its graph.

        Rounded values are often equal, and then the order of the critics decides the gradient. Unrounded values differ.
        """
        return least_of(q) if self.exact_errors else q.min(dim=0).values

    def step_actor_and_temperature(self, q: torch.Tensor, log_prob: torch.Tensor) -> Metrics:
        """Steps the actor and the temperature, given values and log-probabilities of actions, (n, 1), with their graph.

        Only derivatives of the objective are used; those by values are without the scale of values.
        """
        temperature = self.temperature
        objective = temperature * log_prob - q
        weight = self.optimizers["actor"].mean_weight(1, len(objective))
        self.actor.compute_gradients(objective, filled_like(objective, weight))
        self.step("actor")

        self.draw("temperature")  # After a step, random bits are counted again; see ``Learner.step``.
        # The temperature's loss is exp(log_temperature) * (entropy - target entropy), which is its own derivative.
        entropy = -log_prob.detach().mean()
        excess = (entropy - self.target_entropy) * self.optimizers["temperature"].mean_weight(1, 1)
        self.log_temperature.grad = temperature * excess
        self.optimizers["temperature"].step()
        return {"entropy": entropy, "temperature": temperature}


@final
class SAC(SoftActorCritic):
    """The agent that learns from states; see :class:`SoftActorCritic`.

    Args:
        observation_size: the number of elements in an observation.
        action_size: the number of elements in an action.
        config: the hyper-parameters, the format and the fixes.
        device: where all tensors live.
    """

    def __init__(self, observation_size: int, action_size: int, config: SACConfig, device: torch.device) -> None:
        hidden = config.hidden_widths

        def networks(**options: Any) -> tuple[MLP, MLP]:
            actor = MLP([observation_size, *hidden, 2 * action_size], ensemble=1, **options)
            return actor, MLP([observation_size + action_size, *hidden, 1], ensemble=2, **options)

        super().__init__(networks, observation_size, action_size, config, device)

    def policy_outputs(self, observations: torch.Tensor) -> torch.Tensor:
        """Returns the outputs of the actor's network, (n, 2 action)."""
        return forward(self.actor.layers, observations, self.layers_stored)[0]

    def policy_layers(self) -> PolicyLayers:
        """Returns the layers of the actor, with only the means of its outputs."""
        *hidden, weight, bias = self.layers()["actor"]  # The outputs are means, then log sigmas.
        means = [*hidden, weight[..., : self.action_size], bias[..., : self.action_size]]
        actor = perceptron(means, Activation.RELU, Activation.NONE)
        return PolicyLayers((self.observation_size,), (), (actor,), Decision.TANH, self.action_size)

    def noise_sizes(self, batch_size: int) -> tuple[int, ...]:
        """Returns one sample of the policy per transition for the critics, and one for the actor."""
        return batch_size, batch_size

    def update_critic(self, batch: Batch, noise: torch.Tensor) -> Metrics:
        """Moves both critics towards r + discount * (min of the target critics - temperature * log pi)."""
        # Targets: values of the next actions that the policy samples now, not of those in the replay buffer.
        with torch.no_grad():
            next_actions, next_log_prob = self.policy.sample_with_log_prob(
                self.policy_outputs(batch.next_observations), noise
            )
            pairs = torch.cat((batch.next_observations, next_actions), dim=1)
            next_q = forward(self.target, pairs, self.layers_stored, self.reward_scale, exact=self.values_are_exact)
            next_q = least_of(next_q) if self.values_are_exact else next_q.amin(0)
            target = self.targets(batch.rewards, batch.discounts, next_q, next_log_prob)
        critic, pairs = self.critic.trainable, batch.observations_and_actions
        q = forward(critic, pairs, self.layers_stored, self.reward_scale, exact=self.exact_errors)
        return step_critics(self, q, target, len(batch.rows))

    def update_actor_and_temperature(self, batch: Batch, noise: torch.Tensor) -> Metrics:
        """Moves the actor to lower the mean of temperature * log pi - min q, the temperature to the target entropy."""
        actions, log_prob = self.policy.sample_with_log_prob(
            forward(self.actor.trainable, batch.observations, self.layers_stored)[0], noise
        )
        pairs = torch.cat((batch.observations, actions), dim=1)
        # ``layers`` record no gradients of the critics; the actor's pass through the actions.
        q = forward(self.critic.layers, pairs, self.layers_stored, self.reward_scale, exact=self.exact_errors)
        return self.step_actor_and_temperature(self.least_of_critics(q), log_prob)


def make(config: SACConfig, sizes: Sizes, device: torch.device) -> tuple[SAC, OffPolicyRecorder]:
    """Makes the learner with its initial weights, and the recorder of its experience."""
    learner = SAC(sizes.observation_size, sizes.action_size, config, device)
    return learner, record_states(config, sizes, learner.dtype, device)
