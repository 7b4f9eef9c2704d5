"""Soft actor-critic, run in a number format: what all its agents share, and the one that learns from states."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from contextlib import AbstractContextManager, nullcontext
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar, final

import torch

from ...formats import FloatFormat, Format, round
from ...simulate import Policy, Simulation
from ..config.baselines import BASELINES
from ..config.train_config import NATIVE_FORMATS
from ..models.networks import MLP, forward
from ..models.squashed_normal import SquashedNormal
from ..optimizers.coercion import coerce_
from ..optimizers.decisions import add_product, filled_like
from ..optimizers.kahan_momentum import KahanEMA, MovingAverage, PlainEMA
from ..optimizers.master_weights import MasterEMA
from ..optimizers.network_optimizer import NetworkOptimizer
from ..streams import Stream, torch_generator

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..config.train_config import TrainConfig
    from ..experience.replay import Batch
    from ..models.networks import FlatNetwork

Metrics = dict[str, torch.Tensor]


class Elsewhere(Protocol):
    """What has taken over the updates of an agent."""

    @property
    def reason(self) -> str | None:
        """Why it is no better than the agent's own way, in words; None if it is."""

    def write_back(self) -> None:
        """Tells the agent what it has become; waits for the device."""


class _Part(IntEnum):
    """What an agent computes, for the numbering of random bits."""

    NOISE = 0
    CRITIC = 1
    CRITIC_STEP = 2
    ACTOR = 3
    ACTOR_STEP = 4
    TEMPERATURE = 5
    TARGET = 6
    ACT = 7


_EVALUATION = 1 << 31  # half of the steps that a simulation can count
_LONGEST_EVALUATION = 1_000_003  # actions; odd, so that few places come again

_Sampled = TypeVar("_Sampled")  # what a replay buffer gives,
_Prepared = TypeVar("_Prepared")  # and what updates are computed from


class SoftActorCritic(ABC, Generic[_Sampled, _Prepared]):
    """Twin critics, their slow copies, a squashed normal policy, and a learned temperature.

    What it computes after its construction, it computes in ``config.format`` as ``config.policy`` says: ``act`` and
    ``update`` run inside ``simulation`` (None: fp32 and fp64 run plainly). The other update methods are the parts of
    ``update``, and do not enter the simulation themselves. NaN never raises here: it shows in the actions.
    A native agent (``config.native``) runs the same operations, outside of any simulation, on tensors of ``dtype``.

    Losses are not formed: the derivative of the loss by the critics' outputs, or by each sample's objective, is
    handed to autograd directly, multiplied by the loss scale. A loss could overflow; it is needed for nothing.

    Args:
        networks: makes the actor's and the critics' network, given ``generator``, ``dtype`` and ``device``.
        action_size: numbers in an action.
        config: the hyper-parameters, the format, and the fixes or the baseline.
        device: where all tensors live.

    Attributes:
        dtype: of weights, batches and actions.
        compiled: what has taken over the updates; None if nothing has.
        acting: what has taken over the choice of actions in training, for observations and noise; likewise.

    Source:
        Haarnoja et al., "Soft Actor-Critic Algorithms and Applications"; Low-precision SAC, Section 2 and Table 4.
    """

    def __init__(
        self,
        networks: Callable[..., tuple[FlatNetwork, FlatNetwork]],
        action_size: int,
        config: TrainConfig,
        device: torch.device,
    ) -> None:
        fmt = Format.parse(config.format)
        assert isinstance(fmt, FloatFormat)
        self.config = config
        self.simulation = simulation_of(config)
        self.dtype: torch.dtype = getattr(torch, NATIVE_FORMATS[str(fmt)]) if config.native else fmt.carrier
        options: dict[str, Any] = {"dtype": self.dtype, "device": device}
        # Noise is drawn in the carrier and then rounded, so that a native and a simulated agent see the same.
        self._noise_options: dict[str, Any] = {"dtype": fmt.carrier, "device": device}
        self._act_noise = torch_generator(config.seed, Stream.ACTION_NOISE, device)
        self._update_noise = torch_generator(config.seed, Stream.UPDATE_NOISE, device)
        self._generators = {"act_noise": self._act_noise, "update_noise": self._update_noise}
        self.compiled: Elsewhere | None = None
        self.acting: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] | None = None
        self.target_entropy = -float(action_size)
        self.discount: float | torch.Tensor = config.discount
        self.updates = self.actions = 0

        fixes, baseline = config.fixes, BASELINES[config.baseline]
        self._coerced_to = fmt.max if baseline.coercion else None
        self.policy = SquashedNormal(
            log_sigma_min=config.log_sigma_min,
            log_sigma_max=config.log_sigma_max,
            normal_fix="normal_fix" in fixes,
            softplus_fix="softplus_fix" in fixes,
            # exp(K) must be finite (Appendix B): with few exponent bits that takes a smaller K than the config's.
            softplus_threshold=min(config.softplus_threshold, math.log(fmt.max)),
            sigma_eps=config.sigma_eps,
            from_noise="noise_log_prob" in fixes,
        )
        weights = torch_generator(config.seed, Stream.WEIGHTS, torch.device("cpu"))
        self.actor, self.critic = networks(generator=weights, **options)
        self.log_temperature = torch.tensor([math.log(config.initial_temperature)], **options)
        if not config.native:  # those are of the format already
            for parameters in (self.actor.flat, self.critic.flat, self.log_temperature):
                parameters.copy_(round(parameters, fmt))
        target = self.critic.flat.clone()
        self.target = self.critic.views(target)
        with self._arithmetic(0, _Part.NOISE):
            self.target_average: MovingAverage
            if baseline.master_weights:
                self.target_average = MasterEMA(target, config.tau, fmt)
            elif "kahan_momentum" in fixes:
                scale = config.kahan_momentum_scale
                self.target_average = KahanEMA(target, config.tau, scale=scale, largest=fmt.max)
            else:
                self.target_average = PlainEMA(target, config.tau)
            self.actor_optimizer = NetworkOptimizer(self.actor.flat, config, fmt, kahan=False)
            self.critic_optimizer = NetworkOptimizer(self.critic.flat, config, fmt, kahan=True)
            self.temperature_optimizer = NetworkOptimizer(self.log_temperature, config, fmt, kahan=True)

    @torch.no_grad()
    def act(self, observations: torch.Tensor, *, deterministic: bool, number: int = 0) -> torch.Tensor:
        """Chooses actions: samples in training, the best ones in an evaluation.

        Args:
            observations: (n, observation), numbers of the format.
            deterministic: tanh of the mean instead of a sample.
            number: which of the actions of an evaluation these are. The random bits of stochastic rounding follow from
                it and from the updates so far, so that an evaluation neither depends on others nor disturbs training.
                Samples are counted by the agent itself.

        Returns:
            (n, action) in [-1, 1]; NaN where the network has become NaN (0 if the baseline is coercion).
        """
        if deterministic:
            arithmetic = self._looking_on(number)
        else:
            self.actions += 1
            arithmetic = self._arithmetic(self.actions, _Part.ACT)
        shape = (len(observations), self.actor.layers[-1].shape[-1] // 2)
        if self.acting and not deterministic:
            with arithmetic:
                noise = self._normal(shape, self._act_noise)
            return self.acting(observations, noise)
        with arithmetic:
            outputs = self._policy_outputs(observations)
            if deterministic:
                actions = self.policy.mode(outputs)
            else:
                actions = self.policy.sample(outputs, self._normal(shape, self._act_noise))
            if self._coerced_to is not None:
                coerce_([actions], self._coerced_to)
        return actions

    @abstractmethod
    def _policy_outputs(self, observations: torch.Tensor) -> torch.Tensor:
        """What the actor's network gives: (n, 2 action)."""

    @abstractmethod
    def _prepare(self, batch: _Sampled) -> tuple[_Prepared, int, int]:
        """Transitions as updates want them, how many samples of the policy the critics need, and how many the actor.

        Computed outside of the simulation, like all that happens to data before it enters the agent.
        """

    def update(self, batch: _Sampled) -> Metrics:
        """One update of the critics, and of actor, temperature and target critics when it is their turn.

        Args:
            batch: transitions, as the replay buffer gives them.

        Returns:
            Tensors whose means are worth logging; nothing has been copied from the device for them.
        """
        if self.compiled and self.compiled.reason:  # the compiler has failed, and what is made for it is slow without
            self._write_back()
            self.compiled = None
        prepared, critic_noise, actor_noise = self.begin_update(batch)
        updates: Any = self.compiled or self
        with self._updating(_Part.CRITIC):
            metrics: Metrics = updates.update_critic(prepared, critic_noise)
        if self.actor_is_due:
            with self._updating(_Part.ACTOR):
                metrics |= updates.update_actor_and_temperature(prepared, actor_noise)
        if self.target_is_due:
            with self._updating(_Part.TARGET):
                updates.update_target()
        return metrics

    def begin_update(self, batch: _Sampled) -> tuple[_Prepared, torch.Tensor, torch.Tensor]:
        """What an update needs beside the agent: transitions, and noise for the critics' update and for the actor's."""
        self.updates += 1
        prepared, *samples = self._prepare(batch)
        with self._arithmetic(self.updates, _Part.NOISE):
            shape = (sum(samples), self.actor.layers[-1].shape[-1] // 2)
            critic_noise, actor_noise = torch.split(self._normal(shape, self._update_noise), samples)
        return prepared, critic_noise, actor_noise

    @property
    def actor_is_due(self) -> bool:
        """Whether actor and temperature are updated in this update."""
        return self.updates % self.config.actor_update_every == 0

    @property
    def target_is_due(self) -> bool:
        """Whether the target critics are."""
        return self.updates % self.config.target_update_every == 0

    @abstractmethod
    def update_critic(self, batch: _Prepared, noise: torch.Tensor) -> Metrics:
        """Moves both critics towards r + discount * (min of the target critics - temperature * log pi)."""

    @abstractmethod
    def update_actor_and_temperature(self, batch: _Prepared, noise: torch.Tensor) -> Metrics:
        """Moves the actor to lower the mean of temperature * log pi - min q, the temperature to the target entropy."""

    def _targets(
        self, rewards: torch.Tensor, discounts: torch.Tensor, next_q: torch.Tensor, next_log_prob: torch.Tensor
    ) -> torch.Tensor:
        """What the critics are moved towards; all (n, 1)."""
        next_value = torch.addcmul(next_q, self.temperature, next_log_prob, value=-1)
        return add_product(rewards, discounts, next_value, self.discount)

    def _step_actor_and_temperature(self, q: torch.Tensor, log_prob: torch.Tensor) -> Metrics:
        """The steps for the actions that have these values and log-probabilities, (n, 1), with their graph."""
        temperature = self.temperature
        objective = temperature * log_prob - q
        weight = self.actor_optimizer.mean_weight(1, len(objective))
        self.actor.compute_gradients(objective, filled_like(objective, weight))
        self._begin_next_part()
        self.actor_optimizer.step()

        self._begin_next_part()
        # The temperature's loss is exp(log_temperature) * (entropy - target entropy), which is its own derivative.
        entropy = -log_prob.detach().mean()
        excess = (entropy - self.target_entropy) * self.temperature_optimizer.mean_weight(1, 1)
        self.log_temperature.grad = temperature * excess
        self.temperature_optimizer.step()
        return {"entropy": entropy, "temperature": temperature}

    def update_target(self) -> None:
        """Moves the target critics a step towards the critics."""
        self.target_average.update_(self.critic_optimizer.parameters)
        if self._coerced_to is not None:
            coerce_([self.target_average.average], self._coerced_to)

    def _normal(self, shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
        return torch.randn(shape, generator=generator, **self._noise_options).to(self.dtype)

    def _arithmetic(self, count: int, part: _Part) -> AbstractContextManager[Any]:
        """The simulation, drawing the random bits of stochastic rounding for this part of an update or action.

        The bits of a part do not depend on how many roundings there were in another. A plain agent has none.
        """
        if self.simulation is None:
            return nullcontext()
        self.simulation.step = len(_Part) * count + part
        return self.simulation

    def _looking_on(self, number: int) -> AbstractContextManager[Any]:
        """The simulation, drawing random bits for an action that is not part of training."""
        if self.simulation is None:
            return nullcontext()
        # Beyond the places of training; a place may come again after 2^31 of them, in another evaluation.
        self.simulation.step = _EVALUATION + (self.updates * _LONGEST_EVALUATION + number) % _EVALUATION
        return self.simulation

    def _begin_next_part(self) -> None:
        """Random bits are those of the next part from here on."""
        if self.simulation is not None:
            self.simulation.step += 1

    def _updating(self, part: _Part) -> AbstractContextManager[Any]:
        """The simulation for a part of an update; a compiled one enters it itself."""
        arithmetic = self._arithmetic(self.updates, part)
        return nullcontext() if self.compiled else arithmetic

    @property
    def temperature(self) -> torch.Tensor:
        """The weight of the entropy, (1,)."""
        return torch.exp(self.log_temperature)

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to continue identically: weights, optimizers, averages, generators."""
        return {
            **self.weights(),
            "target_average": self.target_average.state_dict(),
            "actor_optimizer": self.actor_optimizer.state_dict(),
            "critic_optimizer": self.critic_optimizer.state_dict(),
            "temperature_optimizer": self.temperature_optimizer.state_dict(),
            **{name: generator.get_state() for name, generator in self._generators.items()},
            "updates": self.updates,
            "actions": self.actions,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes over what :meth:`state_dict` returned."""
        assert self.compiled is None, "updates are compiled for an agent that is complete"
        for name, tensor in self.weights().items():
            tensor.copy_(state[name])
        for name in ("target_average", "actor_optimizer", "critic_optimizer", "temperature_optimizer"):
            getattr(self, name).load_state_dict(state[name])
        for name, generator in self._generators.items():
            generator.set_state(state[name])
        self.updates = state["updates"]
        self.actions = state["actions"]

    def summarize(self, metrics: Metrics) -> dict[str, float]:
        """The numbers worth logging after an update, computed in full precision; this waits for the device.

        Args:
            metrics: what :meth:`update` returned.

        Returns:
            Mean squared TD error of both critics, mean target value, entropy and temperature, and the loss scales.
        """
        self._write_back()
        return {
            **{name: float(value.double().mean()) for name, value in metrics.items() if name != "td_error"},
            "critic_loss": float(metrics["td_error"].double().square().mean()),
            "actor_loss_scale": self.actor_optimizer.scale,
            "critic_loss_scale": self.critic_optimizer.scale,
            "temperature_loss_scale": self.temperature_optimizer.scale,
        }

    def _write_back(self) -> None:
        if self.compiled:
            self.compiled.write_back()

    def networks(self) -> dict[str, list[torch.Tensor]]:
        """The layers of actor and critics, by name; see :class:`MLP`."""
        self._write_back()
        return {"actor": self.actor.layers, "critic": self.critic.layers}

    def weights(self) -> dict[str, torch.Tensor]:
        """The flat parameters of the networks, by name, and the logarithm of the temperature."""
        self._write_back()
        return {
            "actor": self.actor.flat,
            "critic": self.critic.flat,
            "target": self.target_average.average,
            "log_temperature": self.log_temperature,
        }


@final
class SAC(SoftActorCritic["Batch", "Batch"]):
    """The agent that learns from states; see :class:`SoftActorCritic`.

    Args:
        observation_size: numbers in an observation.
        action_size: numbers in an action.
        config: the hyper-parameters, the format and the fixes.
        device: where all tensors live.
    """

    def __init__(self, observation_size: int, action_size: int, config: TrainConfig, device: torch.device) -> None:
        hidden = [config.hidden_units] * config.hidden_layers

        def networks(**options: Any) -> tuple[MLP, MLP]:
            actor = MLP([observation_size, *hidden, 2 * action_size], ensemble=1, **options)
            return actor, MLP([observation_size + action_size, *hidden, 1], ensemble=2, **options)

        super().__init__(networks, action_size, config, device)

    def _policy_outputs(self, observations: torch.Tensor) -> torch.Tensor:
        return forward(self.actor.layers, observations)[0]

    def _prepare(self, batch: Batch) -> tuple[Batch, int, int]:
        return batch, len(batch.rows), len(batch.rows)

    def update_critic(self, batch: Batch, noise: torch.Tensor) -> Metrics:
        """Moves both critics towards r + discount * (min of the target critics - temperature * log pi)."""
        with torch.no_grad():
            next_actions, next_log_prob = self.policy.sample_with_log_prob(
                self._policy_outputs(batch.next_observations), noise
            )
            next_q = forward(self.target, torch.cat((batch.next_observations, next_actions), dim=1)).amin(0)
            target = self._targets(batch.rewards, batch.discounts, next_q, next_log_prob)
        q = forward(self.critic.trainable, batch.observations_and_actions)
        error = q.detach() - target
        # The derivative of each critic's mean squared error by its outputs.
        self.critic.compute_gradients(q, error * self.critic_optimizer.mean_weight(2, len(batch.rows)))
        self._begin_next_part()
        self.critic_optimizer.step()
        return {"td_error": error, "q": target}

    def update_actor_and_temperature(self, batch: Batch, noise: torch.Tensor) -> Metrics:
        """Moves the actor to lower the mean of temperature * log pi - min q, the temperature to the target entropy."""
        actions, log_prob = self.policy.sample_with_log_prob(
            forward(self.actor.trainable, batch.observations)[0], noise
        )
        q = forward(self.critic.layers, torch.cat((batch.observations, actions), dim=1)).min(dim=0).values
        return self._step_actor_and_temperature(q, log_prob)


def simulation_of(config: TrainConfig) -> Simulation | None:
    """In which an agent computes; None if it does so plainly."""
    fmt = Format.parse(config.format)
    assert isinstance(fmt, FloatFormat)
    if config.native or (fmt.native and not config.policy and not config.observe):
        return None
    policy = Policy.parse(config.policy, fmt) if config.policy else Policy.of(fmt)
    # The first action alone runs no backward pass and no optimizer, which rules may be about.
    return Simulation(policy, seed=config.seed, observe=config.observe, warn_unused=False)
