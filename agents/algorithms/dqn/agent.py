"""DQN: a network that values actions, and a slow copy of it; with the additions of Rainbow, as options."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, final

import torch

from ....formats import unsimulated
from ...experience.augmentation import images_to_format
from ...experience.frame_replay import FrameBatch
from ...experience.off_policy import OffPolicyRecorder, record_steps
from ...experience.replay import Batch, batch_of
from ...models.planes import PlanesNetwork, convolutions_for
from ...models.policy_layers import Decision, PolicyLayers
from ...sizes import Sizes
from ...streams import Stream, torch_generator
from ..categorical import divergence, expected
from ..part import Metrics, Part
from ..stochastic_targets import chosen
from ..value_learner import ValueLearner
from .exploration import EpsilonGreedy, random_actions, rows_of, share_of_random_actions
from .settings import DQNConfig


@final
class DQN(ValueLearner):
    """One network that computes a Q value, or a distribution of it, for every action.

    The network moves towards r + g max Q'(s', a), where Q' is the target network, by a Huber or squared error; a
    categorical head moves towards the projected distribution of the same value, by cross entropy. Options: the network
    itself chooses the action that Q' evaluates (double); values and advantages have separate layers (dueling); rewards
    of several steps; transitions weighed by their priority.

    Args:
        shape: the shape of an observation: (n,), or (planes, height, width).
        action_size: the number of actions.
        config: the hyper-parameters, the format, and the fixes or the baseline.
        device: where all tensors live.

    Source:
        Mnih et al., "Human-level control through deep reinforcement learning", Algorithm 1; van Hasselt, Guez & Silver,
        "Deep Reinforcement Learning with Double Q-learning"; Wang et al., "Dueling Network Architectures for Deep
        Reinforcement Learning", equation 9, without rescaled gradients; Bellemare, Dabney & Munos, "A Distributional
        Perspective on Reinforcement Learning", Algorithm 1; Hessel et al., "Rainbow", without noisy layers.
    """

    config: DQNConfig
    acting_network: ClassVar[str] = "critic"

    def __init__(self, shape: Sequence[int], action_size: int, config: DQNConfig, device: torch.device) -> None:
        super().__init__(torch.Size(shape).numel(), action_size, config, device)
        self.network = critic = self._make_network(shape)
        self.networks = {"critic": critic}
        copy = self.rounded_(critic.flat).clone()  # For the target network.
        with self.constructing():
            self.averages = {"target_critic": self.make_average(copy)}
            self.optimizers = {"critic": self.make_optimizer(critic.flat, kahan=True)}
        self.parts = (
            Part("critic", DQN.update_critic),
            Part("targets", DQN.update_targets, every=config.target_every, batch=False),
        )

    def _make_network(self, shape: Sequence[int]) -> PlanesNetwork:
        config = self.config
        weights = torch_generator(config.seed, Stream.WEIGHTS, torch.device("cpu"))
        options: dict[str, Any] = {"dtype": self.dtype, "device": self.device, "generator": weights}
        *shared, last = config.hidden_widths
        outputs = self.action_size * config.atoms
        if config.dueling:  # Only the last hidden layer is separate: for the value, and for the advantages.
            heads = [[last, config.atoms], [last, outputs]]
        else:
            heads = [[*shared, last, outputs]]
            shared = []
        uniform = config.initial_weights == "uniform"
        return PlanesNetwork(shape, convolutions_for(shape), shared, heads, uniform=uniform, **options)

    def bind(self) -> None:
        """Sets the network, and the layers of the target network."""
        network = self.networks["critic"]
        assert isinstance(network, PlanesNetwork)
        self.network = network
        self.target = network.views(self.averages["target_critic"].average)

    @property
    def numbers_to_act(self) -> dict[str, torch.Tensor]:
        """The atoms, if there are any."""
        return {"atoms": self.atoms} if self.config.atoms > 1 else {}

    def policy_outputs(self, observations: torch.Tensor) -> torch.Tensor:
        """Returns Q values, (n, action)."""
        return self._q(self._outputs(self.networks["critic"].layers, observations))

    def best_actions(self, observations: torch.Tensor) -> torch.Tensor:
        """Returns rows with a one in the place of the largest Q value, the first of several; NaN if a value is NaN."""
        q = self.policy_outputs(observations)
        best = rows_of(q.argmax(dim=1, keepdim=True), self.action_size, q.dtype)  # NaN counts as the largest.
        return torch.where(q.isnan().any(dim=1, keepdim=True), torch.nan, best)

    def policy_layers(self) -> PolicyLayers:
        """Returns the layers of the network, and the atoms of a categorical head."""
        self._write_back()
        shared, heads = self.network.as_layers()
        options: dict[str, Any] = {"decision": Decision.LARGEST}
        if self.config.atoms > 1:
            options = {"decision": Decision.LARGEST_MEAN, "atoms": self.atoms.to("cpu", torch.float32)}
        return PolicyLayers(self.network.shape, shared, heads, action_size=self.action_size, **options)

    def sample_actions(self, observations: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
        """Returns random actions where ``noise`` has any, else the best ones; NaN where a Q value is NaN."""
        best = self.best_actions(observations)
        explores = (noise != 0).any(dim=1, keepdim=True) & ~best.isnan()
        return torch.where(explores, noise, best)

    def action_noise(self, count: int, first: int = 0) -> torch.Tensor:  # noqa: ARG002
        """Draws random actions for some of the rows; see ``random_actions``."""
        config = self.config
        share = share_of_random_actions(
            self.acted, config.exploration_start, config.exploration_end, config.exploration_steps
        )
        if not self.samples:  # All actions of an evaluation have the share of one moment of training.
            self.acted += count
        return random_actions(count, self.action_size, share, self.generators["act_noise"], self.dtype)

    def prepare(self, batch: Batch | FrameBatch) -> Batch:
        """Converts images to numbers of the format, in the same rows as states."""
        if isinstance(batch, Batch):
            return batch
        before, after = (
            images_to_format(images, self.format, self.dtype).flatten(1)
            for images in (batch.observations, batch.next_observations)
        )
        action, outcome = batch.rows[:, : self.action_size], batch.rows[:, self.action_size :]
        return batch_of(torch.cat((before, action, after, outcome), dim=1), self.observation_size, self.action_size)

    def update_critic(self, batch: Batch) -> Metrics:
        """Moves the network towards its targets."""
        compute = self._update_values if self.config.atoms == 1 else self._update_distributions
        metrics = compute(batch)
        self.step("critic")
        return metrics

    def update_targets(self) -> Metrics:
        """Copies the network to the target network, or moves the target network a step towards it."""
        self.update_averages({"target_critic": "critic"})
        return {}

    def _update_values(self, batch: Batch) -> Metrics:
        """Computes the gradient of the mean Huber or squared error of the chosen actions' Q values."""
        config, optimizer = self.config, self.optimizers["critic"]
        # Targets: the value of the next action, which the network itself chooses in double Q-learning.
        with torch.no_grad():
            following, exact = batch.next_observations, self.values_are_exact
            choice = self._choice(following) if config.double else None
            next_q = self._outputs(self.target, following, exact=exact)
            if exact:
                best = chosen(next_q, choice)
            else:
                best = next_q.amax(1, keepdim=True) if choice is None else next_q.gather(1, choice)
            target = self.targets_of(batch.rewards, batch.discounts, best)
        # Errors of the actions in the batch.
        q = self._outputs(self.network.trainable, batch.observations, exact=self.exact_errors)
        taken = batch.actions.argmax(dim=1, keepdim=True)
        error = self.errors_of(chosen(q, taken) if self.exact_errors else q.gather(1, taken), target)
        # The derivative of a Huber loss is the error, clipped to 1 in the unit of rewards; of a square twice the error.
        huber = config.loss == "huber"
        scale = self.reward_scale
        derivative = self.weighed(error.clamp(-scale, scale) if huber else error, batch)
        weight = derivative * optimizer.mean_weight((1 if huber else 2) / scale, len(error))
        self.network.compute_gradients(q, torch.zeros_like(q, dtype=weight.dtype).scatter(1, taken, weight))
        return {"td_error": error, "q": target, **self.priorities(self.without_scale(error.abs()))}

    def _update_distributions(self, batch: Batch) -> Metrics:
        """Computes the gradient of the mean cross entropy by the logits of the chosen actions: p - m."""
        config, atoms = self.config, self.atoms
        # Targets: the distribution of the next action with the largest mean, projected onto the atoms.
        with torch.no_grad():
            probabilities = torch.softmax(self._outputs(self.target, batch.next_observations), dim=2)
            next_q = expected(probabilities, atoms)
            choice = self._choice(batch.next_observations) if config.double else next_q.argmax(dim=1, keepdim=True)
            following = probabilities.gather(1, self._distribution_indices(choice)).squeeze(1)
            target = self.projected_target(following, batch)
        outputs = self._outputs(self.network.trainable, batch.observations)
        taken = self._distribution_indices(batch.actions.argmax(dim=1, keepdim=True))
        logits = outputs.detach().gather(1, taken).squeeze(1)
        weight = self.cross_entropy_weights(logits, target, batch)
        self.network.compute_gradients(outputs, torch.zeros_like(outputs).scatter(1, taken, weight.unsqueeze(1)))
        best = next_q.gather(1, choice)
        return {"q": best, **(self.priorities(divergence(target, logits)) if config.prioritized else {})}

    def _outputs(
        self, layers: Sequence[torch.Tensor], observations: torch.Tensor, *, exact: bool = False
    ) -> torch.Tensor:
        """Computes Q values, (n, action), unrounded if ``exact``; or logits of distributions, (n, action, atoms)."""
        heads = 1 + self.config.dueling
        first, *more = self.network.outputs(layers, observations, [self.scale_of_outputs] * heads, [exact] * heads)
        if not more:
            return self._by_atoms(first)
        value = first if self.config.atoms == 1 else first.unsqueeze(1)
        return (_unrounded_dueling if exact else _dueling)(value, self._by_atoms(more[0]))

    def _by_atoms(self, outputs: torch.Tensor) -> torch.Tensor:
        atoms = self.config.atoms
        return outputs if atoms == 1 else outputs.view(-1, self.action_size, atoms)

    def _q(self, outputs: torch.Tensor) -> torch.Tensor:
        """Returns Q values, (n, action), for the result of ``_outputs``."""
        return outputs if self.config.atoms == 1 else expected(torch.softmax(outputs, dim=2), self.atoms)

    def _choice(self, observations: torch.Tensor) -> torch.Tensor:
        """Returns the numbers of the actions with the network's largest Q values, (n, 1)."""
        return self._q(self._outputs(self.network.layers, observations)).argmax(dim=1, keepdim=True)

    def _distribution_indices(self, actions: torch.Tensor) -> torch.Tensor:
        """Returns indices for ``gather`` of the distributions of actions, (n, 1, atoms) for (n, 1)."""
        return actions.unsqueeze(2).expand(-1, -1, self.config.atoms)

    def state_dict(self) -> dict[str, Any]:
        """Returns the state that is needed to continue identically, including the number of chosen actions."""
        return {**super().state_dict(), "acted": self.acted}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores the state that :meth:`state_dict` returned."""
        super().load_state_dict(state)
        self.acted = state["acted"]


def _dueling(value: torch.Tensor, advantages: torch.Tensor) -> torch.Tensor:
    return value + (advantages - advantages.mean(dim=1, keepdim=True))  # Wang et al., equation 9.


_unrounded_dueling = unsimulated(_dueling)


def make(config: DQNConfig, sizes: Sizes, device: torch.device) -> tuple[DQN, OffPolicyRecorder]:
    """Makes the learner with its initial weights, and the recorder of its experience.

    Raises:
        RunError: memory cannot be allocated, or ``replay_capacity`` is too small for images of all environments.
    """
    learner = DQN(sizes.observation_shape, sizes.action_size, config, device)
    return learner, record_steps(config, sizes, learner.dtype, device)


def make_explorer(config: DQNConfig, rank: int, steps: int, stream_key: tuple[int, ...]) -> EpsilonGreedy:  # noqa: ARG001
    """Makes the explorer of actor ``rank``, which has taken ``steps``; see ``explorer_of``."""
    assert config.actors
    return EpsilonGreedy(config, config.actors.count, steps, stream_key)
