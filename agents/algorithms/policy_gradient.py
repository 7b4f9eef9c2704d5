"""Policy gradients with a learned value as their baseline: the common part of PPO and A2C."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import torch

from ...formats import round
from ...simulate import Role, in_role
from ..config.on_policy_keys import OnPolicyKeys
from ..errors import RunError
from ..experience.normalization import ObservationNormalizer
from ..experience.on_policy import JUDGEMENTS, Minibatch, minibatch_of
from ..experience.replay import Batch
from ..models.planes import A3C_NET, PlanesNetwork, convolutions_for
from ..models.policies import POLICY_GAIN, ActorCritic, Categorical, DiagonalNormal, PolicyHead, gumbel
from ..models.policy_layers import Decision, PolicyLayers
from ..optimizers.decisions import add_product, filled_like
from ..optimizers.scaled_norms import standardized, standardized_naive
from ..optimizers.step_norms import half_batch_cosine
from ..sizes import Sizes
from ..streams import Stream, torch_generator
from .learner import Learner
from .part import Metrics, Part
from .rollout_copy import RolloutCopy
from .state import ACT
from .stochastic_targets import stochastic_returns

_PLANES = 3  # dimensions of planes


class PolicyGradient(Learner):
    """A policy and a value, moved together by one optimizer.

    loss = -mean(surrogate) + value_weight * mean((V - return)^2) - entropy_weight * mean(entropy). It is not computed:
    autograd receives the derivatives by log-probabilities, values and entropies, times the loss scale. Gradients are
    then clipped by the norm of all of them.

    The networks for vectors are two perceptrons with tanh. For planes, it is one network with convolutions and ReLU,
    with policy and value as heads. Actions are discrete (a softmax of logits) or continuous (normal, with a log sigma
    that does not depend on the observation; samples are unbounded, environments clip them to [-1, 1]).

    Args:
        sizes: sizes of observations and actions, and whether actions are discrete.
        config: the hyper-parameters, the format, and the fixes or the baseline.
        device: the device of all tensors.

    Attributes:
        normalizer: normalizes observations; None: they are not normalized.
        rollouts: the copy that acts in training in another arithmetic; None: the learner acts.

    Raises:
        RunError: observations are planes, and actions are numbers, or observations are to be normalized.

    Source:
        Schulman et al., "Proximal Policy Optimization Algorithms", equation (9) and Section 6.1.
    """

    config: OnPolicyKeys
    draws: ClassVar[tuple[str, ...]] = ("actor", "actor_step")

    def __init__(self, sizes: Sizes, config: OnPolicyKeys, device: torch.device) -> None:
        super().__init__(sizes.observation_size, sizes.action_size, config, device)
        self.discrete = sizes.discrete
        self.policy: PolicyHead
        self.policy = Categorical() if self.discrete else DiagonalNormal(normal_fix="normal_fix" in config.fixes)
        actor = self._make_network(sizes)
        self.networks = {"actor": actor}
        if config.normalize_observations and len(sizes.observation_shape) == _PLANES:
            raise RunError(f"normalize_observations is for vectors, and {config.task} shows planes; leave it out")
        self.normalizer = ObservationNormalizer(sizes.observation_size) if config.normalize_observations else None
        self.rounded_(actor.flat)
        with self.constructing():
            self.optimizers = {"actor": self.make_optimizer(actor.flat, kahan=True)}
        self.parts = (Part("actor", PolicyGradient.update_actor),)
        self.rollouts = RolloutCopy(self, config.rollouts) if config.rollouts else None

    def _make_network(self, sizes: Sizes) -> ActorCritic | PlanesNetwork:
        generator = torch_generator(self.config.seed, Stream.WEIGHTS, torch.device("cpu"))
        options: dict[str, Any] = {"dtype": self.dtype, "device": self.device, "generator": generator}
        shape, hidden = sizes.observation_shape, self.config.hidden_widths
        if len(shape) != _PLANES:
            return ActorCritic(
                sizes.observation_size, hidden, sizes.action_size, log_sigma=not self.discrete, **options
            )
        if not self.discrete:
            raise RunError(
                f"{self.config.task} shows planes and takes numbers as actions; {self.config.algorithm} learns one of"
                " several actions from planes, and numbers from vectors"
            )
        network = PlanesNetwork(shape, convolutions_for(shape, A3C_NET), hidden, [[sizes.action_size], [1]], **options)
        network.layers[-4].mul_(POLICY_GAIN)  # The policy's weights; its bias and the value's head follow.
        return network

    @property
    def network(self) -> ActorCritic | PlanesNetwork:
        """The only network."""
        network = self.networks["actor"]
        assert isinstance(network, (ActorCritic, PlanesNetwork))
        return network

    def both(
        self, layers: Sequence[torch.Tensor], observations: torch.Tensor, *, exact: bool = False
    ) -> tuple[tuple[torch.Tensor, ...], torch.Tensor]:
        """Returns the policy's outputs for observations (n, observation), and their values, (n, 1).

        ``exact``: values are unrounded, in float64.
        """
        if isinstance(self.network, ActorCritic):
            return self.network.both(layers, observations, self.reward_scale, exact=exact)
        logits, values = self.network.outputs(layers, observations, (1.0, self.reward_scale), (False, exact))
        return (logits,), values

    def outputs(self, observations: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Returns the policy's outputs only."""
        if isinstance(self.network, ActorCritic):
            return self.network.policy(observations)
        return self.both(self.network.layers, observations)[0]

    def values(self, observations: torch.Tensor, *, exact: bool = False) -> torch.Tensor:
        """Returns the values only; for ``exact`` see :meth:`both`."""
        if isinstance(self.network, ActorCritic):
            return self.network.value(observations, self.reward_scale, exact=exact)
        return self.both(self.network.layers, observations, exact=exact)[1]

    @abstractmethod
    def surrogate(
        self, log_prob: torch.Tensor, old_log_prob: torch.Tensor, advantage: torch.Tensor
    ) -> tuple[torch.Tensor, Metrics]:
        """Returns the derivative of the surrogate objective, which is maximized, by the actions' log-probabilities.

        Args:
            log_prob: (n, 1); computations with it are not recorded.
            old_log_prob: (n, 1), when the actions were chosen.
            advantage: (n, 1).

        Returns:
            (n, 1), and values to log.
        """

    def value_slope(self, values: torch.Tensor, error: torch.Tensor, batch: Minibatch) -> torch.Tensor:  # noqa: ARG002
        """Returns half of the derivative of the values' loss by the values, (n, 1): their error.

        Args:
            values: (n, 1); computations with it are not recorded.
            error: values less returns, (n, 1).
            batch: the minibatch.
        """
        return error

    def weights(self) -> dict[str, torch.Tensor]:
        """Returns the flat parameters by name, and the moments that normalize observations."""
        return super().weights() | ({"observations": self.normalizer.moments.state} if self.normalizer else {})

    def best_actions(self, observations: torch.Tensor) -> torch.Tensor:
        """Returns the most likely actions."""
        return self.policy.best(self.outputs(observations))

    def policy_layers(self) -> PolicyLayers:
        """Returns the policy's part of the network; for continuous actions the means, clipped as by environments.

        Normalization of observations is part of the first layer, which does not clip them.
        """
        self._write_back()
        network = self.network
        decision = Decision.LARGEST if self.discrete else Decision.CLIP
        if isinstance(network, ActorCritic):
            first, *others = network.as_layers()
            if self.normalizer:
                first = first.of_normalized(self.normalizer.moments.mean, self.normalizer.moments.deviation)
            return PolicyLayers((self.observation_size,), (), ((first, *others),), decision, self.action_size)
        shared, (policy, _) = network.as_layers()
        return PolicyLayers(network.shape, shared, (policy,), decision, self.action_size)

    def sample_actions(self, observations: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
        """Returns samples of the policy."""
        return self.policy.sample(self.outputs(observations), noise)

    def action_noise(self, count: int, first: int = 0) -> torch.Tensor:
        """Draws Gumbel noise for discrete actions, rounded once; else standard normal noise."""
        if not self.discrete:
            return super().action_noise(count, first)
        # The largest of logits plus Gumbel noise is a sample of their softmax.
        drawn = gumbel((count, self.action_size), self.generators["act_noise"], self.format.carrier, self.device)
        return round(drawn, self.format).to(self.dtype)

    def act(self, observations: torch.Tensor, *, deterministic: bool, number: int = 0, first: int = 0) -> torch.Tensor:
        """Chooses actions; in training with the copy that makes rollouts, if there is one."""
        if deterministic or self.rollouts is None:
            return super().act(observations, deterministic=deterministic, number=number, first=first)
        self.actions += 1
        with torch.no_grad(), self._arithmetic(self.actions, ACT):
            noise = self.action_noise(len(observations), first)  # The same noise as without a copy.
        return self._coerced(self.rollouts.sample(observations, noise))

    @property
    def row_size(self) -> int:
        """The size of a row of a minibatch."""
        return self.observation_size + self.action_size + JUDGEMENTS + self.config.weighed

    def unpacked(self, rows: torch.Tensor) -> Minibatch:
        """Returns a minibatch with views of rows."""
        return minibatch_of(rows, self.observation_size, weighed=self.config.weighed)

    def state_dict(self) -> dict[str, Any]:
        """Returns the state that is needed to continue identically."""
        return super().state_dict() | ({"rollouts": self.rollouts.distances} if self.rollouts else {})

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores the state that :meth:`state_dict` returned."""
        super().load_state_dict(state)
        if self.rollouts:
            self.rollouts.distances = state["rollouts"]

    @torch.no_grad()
    def judge(self, rollout: Batch, last: torch.Tensor) -> torch.Tensor:
        """Returns log-probabilities, values, advantages and returns of a rollout, (n, 4), by the current policy.

        If the config has a ``correction``, weights precede them: (n, 5).

        A_t = delta_t + gamma lambda d_t A_(t+1), delta_t = r_t + gamma d_t V(s'_t) - V(s_t), return_t = A_t + V(s_t),
        where d_t is 0 at a terminal state, else 1. At the end of an episode, A_(t+1) is 0; if it was truncated, V(s'_t)
        is the value of the rest.

        Args:
            rollout: transitions, step by step, all environments of a step together.
            last: (n, 1): whether an episode ended with the transition.

        Source:
            Schulman et al., "High-Dimensional Continuous Control Using Generalized Advantage Estimation", (16);
            Pardo et al., "Time Limits in Reinforcement Learning": the value of truncated episodes.
        """
        actions = rollout.observations_and_actions[:, self.observation_size :]
        with self.before_update():
            exact = self.values_are_exact
            outputs, values = self.both(self.network.layers, rollout.observations, exact=exact)
            following = self.values(rollout.next_observations, exact=exact)
            log_prob = self.policy.log_prob(outputs, actions)
            advantages, returns = self._returns(rollout, last, values, following)
            values = values.to(log_prob.dtype)  # Exact values are rounded here, once.
        columns = [log_prob, values, advantages, returns]
        if self.rollouts:  # Also without a correction, since this measures the distance of the two policies.
            weights = self.rollouts.judge(rollout.observations, actions, log_prob, last)
            columns = [weights, *columns] if self.config.weighed else columns
        return torch.cat(columns, dim=1)

    @property
    def values_are_exact(self) -> bool:
        """Whether values stay unrounded until advantages and returns are computed, which are rounded once."""
        return self.stochastic_targets

    @in_role(Role.TARGETS)
    def _returns(
        self, rollout: Batch, last: torch.Tensor, values: torch.Tensor, following: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Computes advantages and returns, both (n, 1), from the values of states and of next states, (n, 1)."""
        config, environments = self.config, self.config.environments
        if self.stochastic_targets:
            rewards, discounts, values, following, last = (
                x.reshape(-1, environments) for x in (rollout.rewards, rollout.discounts, values, following, last)
            )
            advantages, returns = stochastic_returns(
                rewards, discounts, values, following, last, config.discount, config.gae_lambda
            )
            return advantages.view(-1, 1), returns.view(-1, 1)
        # Operation by operation: delta_t, then the sum from the last step to the first.
        deltas = add_product(rollout.rewards, rollout.discounts, following, self.numbers["discount"]) - values
        weights = rollout.discounts.masked_fill(last, 0.0) * (config.discount * config.gae_lambda)
        advantages = _summed_backwards(deltas, weights, environments)
        return advantages, advantages + values

    def update_actor(self, batch: Minibatch) -> Metrics:
        """Moves policy and value by a step."""
        config, network, optimizer, count = self.config, self.network, self.optimizers["actor"], len(batch.rows)
        # With exact errors, the values are unrounded; the returns were rounded when the rollout was stored.
        outputs, values = self.both(network.trainable, batch.observations, exact=self.exact_errors)
        log_prob = self.policy.log_prob(outputs, batch.actions)
        # Advantages are scaled like rewards, unless they are standardized.
        advantages, scale = batch.advantages, self.reward_scale
        advantage_scale = scale
        if config.normalize_advantages:
            standardize = standardized if "scaled_norms" in config.fixes else standardized_naive
            advantages, advantage_scale = standardize(advantages, scale), 1.0
        # The derivatives of the terms of the loss; the surrogate and the entropy are maximized, so have a minus.
        with torch.no_grad():
            slope, metrics = self.surrogate(log_prob, batch.log_probs, advantages)
            error = self.errors_of(values, batch.returns)
            slope_of_values = self.value_slope(values, error, batch)
            if batch.weights is not None:
                slope = slope * batch.weights
        terms = [log_prob, values]
        weights = [
            slope * optimizer.mean_weight(-1 / advantage_scale, count),
            slope_of_values * optimizer.mean_weight(2 * config.value_weight / scale, count),
        ]
        if config.entropy_weight:
            entropy = self.policy.entropy(outputs)
            terms.append(entropy)
            weights.append(filled_like(entropy, optimizer.mean_weight(-config.entropy_weight, count)))
            metrics["entropy"] = entropy.detach()
        if optimizer.norms:  # Another gradient, which only observed runs compute.
            metrics["half_batch_cosine"] = half_batch_cosine(terms, weights, network.trainable)
        network.compute_gradients(terms, weights)
        self.step("actor", config.max_grad_norm)
        return {"td_error": error, "log_prob": log_prob.detach(), **metrics}

    def summarize(self, metrics: Metrics) -> dict[str, Any]:
        """Returns the means of metrics; without a computed entropy, minus the mean log-probability estimates it."""
        numbers = super().summarize(metrics)
        log_prob = numbers.pop("log_prob")
        return {"entropy": -log_prob, **numbers, **(self.rollouts.distances if self.rollouts else {})}


def _summed_backwards(deltas: torch.Tensor, weights: torch.Tensor, environments: int) -> torch.Tensor:
    """Computes A_t = delta_t + weight_t A_(t+1), one operation a step; all are (steps * environments, 1)."""
    sums = torch.empty_like(deltas)
    steps = zip(*(x.view(-1, environments).unbind() for x in (deltas, weights, sums)), strict=True)
    following: torch.Tensor | None = None  # A_(t+1), a view of ``sums``; None at the last step.
    for delta, weight, total in reversed(list(steps)):
        following = total.copy_(delta) if following is None else torch.addcmul(delta, weight, following, out=total)
    return sums
