"""TD3: a deterministic actor, twin critics, and slow copies of both; from states."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, final

import torch

from ...experience.off_policy import record_states
from ...models.networks import MLP, forward
from ...models.policy_layers import Activation, Decision, PolicyLayers, perceptron
from ...optimizers.decisions import add_product, filled_like
from ...streams import Stream, torch_generator
from ..explorer import GaussianExplorer, deviations_of
from ..learner import Learner
from ..part import Metrics, Part
from ..twin_critics import step_critics

if TYPE_CHECKING:
    from ...environments.parallel import Sizes
    from ...experience.off_policy import OffPolicyRecorder
    from ...experience.replay import Batch
    from .settings import TD3Config


@final
class TD3(Learner):
    """Twin critics that learn from clipped noise around a slow copy of the actor, which is moved less often.

    Args:
        observation_size: numbers in an observation.
        action_size: numbers in an action.
        config: the hyper-parameters, the format, and the fixes or the baseline.
        device: where all tensors live.

    Source:
        Fujimoto, van Hoof & Meger, "Addressing Function Approximation Error in Actor-Critic Methods", Algorithm 1.
    """

    config: TD3Config

    def __init__(self, observation_size: int, action_size: int, config: TD3Config, device: torch.device) -> None:
        super().__init__(observation_size, action_size, config, device)
        weights = torch_generator(config.seed, Stream.WEIGHTS, torch.device("cpu"))
        options: dict[str, Any] = {"dtype": self.dtype, "device": device, "generator": weights}
        hidden = config.hidden_widths
        actor = MLP([observation_size, *hidden, action_size], ensemble=1, **options)
        critic = MLP([observation_size + action_size, *hidden, 1], ensemble=2, **options)
        self.networks = {"actor": actor, "critic": critic}
        copies = {f"target_{name}": self.rounded_(one.flat).clone() for name, one in self.networks.items()}
        with self.constructing():
            self.averages = {name: self.make_average(copy) for name, copy in copies.items()}
            self.optimizers = {
                "actor": self.make_optimizer(actor.flat, kahan=False),
                "critic": self.make_optimizer(critic.flat, kahan=True),
            }
        delay = config.policy_delay
        self.parts = (
            Part("critic", TD3.update_critic, every=1, draws=1, noise=0),
            Part("actor", TD3.update_actor, every=delay, draws=3),
            Part("targets", TD3.update_targets, every=delay, draws=5, batch=False),
        )
        self.bind()

    def bind(self) -> None:
        """The layers of the target networks, and those of the first critic, which the actor follows."""
        self.target = {
            name: self.networks[name].views(self.averages[f"target_{name}"].average) for name in ("actor", "critic")
        }
        self.first_critic = [layer[:1] for layer in self.networks["critic"].layers]

    def best_actions(self, observations: torch.Tensor) -> torch.Tensor:
        """Tanh of the actor's outputs."""
        return torch.tanh(forward(self.networks["actor"].layers, observations)[0])

    def sample_actions(self, observations: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
        """The best actions and noise, clipped to [-1, 1]."""
        return (self.best_actions(observations) + noise * self.config.exploration_noise).clamp(-1, 1)

    def policy_layers(self) -> PolicyLayers:
        """The actor."""
        actor = perceptron(self.layers()["actor"], Activation.RELU, Activation.NONE)
        return PolicyLayers((self.observation_size,), (), (actor,), Decision.TANH, self.action_size)

    def noise_sizes(self, batch_size: int) -> tuple[int, ...]:
        """Noise on the next action of each transition."""
        return (batch_size,)

    def update_critic(self, batch: Batch, noise: torch.Tensor) -> Metrics:
        """Moves both critics towards r + discount * (min of the target critics at the target actor's noisy action)."""
        config = self.config
        with torch.no_grad():
            smoothing = (noise * config.policy_noise).clamp(-config.noise_clip, config.noise_clip)
            following = torch.tanh(forward(self.target["actor"], batch.next_observations)[0])
            actions = (following + smoothing).clamp(-1, 1)
            next_q = forward(self.target["critic"], torch.cat((batch.next_observations, actions), dim=1)).amin(0)
            target = add_product(batch.rewards, batch.discounts, next_q, self.numbers["discount"])
        q = forward(self.networks["critic"].trainable, batch.observations_and_actions)
        return step_critics(self, q, target, len(batch.rows))

    def update_actor(self, batch: Batch) -> Metrics:
        """Moves the actor to raise the mean of the first critic."""
        actor, optimizer = self.networks["actor"], self.optimizers["actor"]
        actions = torch.tanh(forward(actor.trainable, batch.observations)[0])
        objective = -forward(self.first_critic, torch.cat((batch.observations, actions), dim=1))[0]
        actor.compute_gradients(objective, filled_like(objective, optimizer.mean_weight(1, len(objective))))
        self.next_draws()
        optimizer.step()
        return {}

    def update_targets(self) -> Metrics:
        """Moves the target networks a step towards the networks."""
        self.update_averages({"target_actor": "actor", "target_critic": "critic"})
        return {}


def make(config: TD3Config, sizes: Sizes, device: torch.device) -> tuple[TD3, OffPolicyRecorder]:
    """The learner with its initial weights, and what keeps its experience."""
    learner = TD3(sizes.observation_size, sizes.action_size, config, device)
    return learner, record_states(config, sizes, learner.dtype, device)


def make_explorer(config: TD3Config, rank: int, steps: int, whose: tuple[int, ...]) -> GaussianExplorer:  # noqa: ARG001
    """How actor ``rank`` explores that has taken ``steps``; see ``Explorer``."""
    deviations = torch.full((config.environments, 1), config.exploration_noise)
    return GaussianExplorer(deviations_of(config, rank, deviations), config.seed, whose)
