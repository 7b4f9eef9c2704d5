"""An actor that computes one action for each state and follows the gradient of a critic, for TD3 and D4PG."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch

from ..config.actor_keys import WithActors
from ..experience.replay import Batch
from ..models.networks import MLP, forward
from ..models.policy_layers import Activation, Decision, PolicyLayers, perceptron
from ..streams import Stream, torch_generator
from .learner import Learner
from .part import Metrics


class DeterministicActor(Learner, ABC):
    """An actor mu, critics of its actions, which are numbers in [-1, 1], and slow copies of both; from states.

    A subclass sets ``parts`` in its constructor. ``target`` holds the layers of the slow copies, by the names of their
    networks, and ``first_critic`` the layers of the critic that the actor follows.

    Args:
        observation_size: the number of elements in an observation.
        action_size: the number of elements in an action.
        config: the hyper-parameters, the format, and the fixes or the baseline.
        device: the device of all tensors.
        actor_widths: the widths of the hidden layers of the actor; the critics have ``config.hidden_widths``.
        critics: the number of critics.
        outputs: the number of outputs of each critic.

    Source:
        Silver et al., "Deterministic Policy Gradient Algorithms", Section 4.2; Lillicrap et al., "Continuous control
        with deep reinforcement learning", Algorithm 1.
    """

    config: WithActors

    def __init__(
        self,
        observation_size: int,
        action_size: int,
        config: WithActors,
        device: torch.device,
        *,
        actor_widths: Sequence[int],
        critics: int,
        outputs: int,
    ) -> None:
        super().__init__(observation_size, action_size, config, device)
        weights = torch_generator(config.seed, Stream.WEIGHTS, torch.device("cpu"))
        uniform = config.initial_weights == "uniform"
        options: dict[str, Any] = {"uniform": uniform, "dtype": self.dtype, "device": device, "generator": weights}
        critic_sizes = [observation_size + action_size, *config.hidden_widths, outputs]
        actor = MLP([observation_size, *actor_widths, action_size], ensemble=1, **options)
        critic = MLP(critic_sizes, ensemble=critics, **options)
        self.networks = {"actor": actor, "critic": critic}
        copies = {f"target_{name}": self.rounded_(network.flat).clone() for name, network in self.networks.items()}
        with self.constructing():
            self.averages = {name: self.make_average(copy) for name, copy in copies.items()}
            self.optimizers = {
                "actor": self.make_optimizer(actor.flat, kahan=False),
                "critic": self.make_optimizer(critic.flat, kahan=True),
            }

    def bind(self) -> None:
        """Sets the layers of the target networks and of the first critic."""
        self.target = {
            name: self.networks[name].views(self.averages[f"target_{name}"].average) for name in ("actor", "critic")
        }
        self.first_critic = [layer[:1] for layer in self.networks["critic"].layers]

    def best_actions(self, observations: torch.Tensor) -> torch.Tensor:
        """Returns the tanh of the actor's outputs."""
        return _actions(self.networks["actor"].layers, observations)

    def policy_layers(self) -> PolicyLayers:
        """Returns the layers of the actor."""
        actor = perceptron(self.layers()["actor"], Activation.RELU, Activation.NONE)
        return PolicyLayers((self.observation_size,), (), (actor,), Decision.TANH, self.action_size)

    def target_actions(self, observations: torch.Tensor) -> torch.Tensor:
        """Returns the actions of the target actor, (n, action)."""
        return _actions(self.target["actor"], observations)

    def target_outputs(self, observations: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
        """Returns the outputs of the target critics for actions, (critics, n, outputs), for targets."""
        pairs = torch.cat((observations, actions), dim=1)
        return forward(self.target["critic"], pairs, scale=self.scale_of_outputs, exact=self.values_are_exact)

    @abstractmethod
    def actor_objective(self, outputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns the tensor that the actor is trained through.

        Args:
            outputs: the outputs of the first critic for the actor's actions, (n, outputs), with their graph.

        Returns:
            A tensor, with its graph, and the derivative by it of the negative mean value, times the loss scale.
        """

    def update_actor(self, batch: Batch) -> Metrics:
        """Moves the actor to raise the mean of the first critic."""
        actor = self.networks["actor"]
        actions = _actions(actor.trainable, batch.observations)
        pairs = torch.cat((batch.observations, actions), dim=1)
        outputs = forward(self.first_critic, pairs, scale=self.scale_of_outputs)[0]
        actor.compute_gradients(*self.actor_objective(outputs))
        self.step("actor")
        return {}

    def update_targets(self) -> Metrics:
        """Moves the target networks a step towards the networks, or copies these."""
        self.update_averages({"target_actor": "actor", "target_critic": "critic"})
        return {}


def _actions(layers: Sequence[torch.Tensor], observations: torch.Tensor) -> torch.Tensor:
    """Computes the tanh of an actor's outputs, (n, action)."""
    return torch.tanh(forward(layers, observations)[0])
