"""The agent that learns from pixels: soft actor-critic with image augmentation (DrQ)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import torch

from ...experience.augmentation import images_to_format, random_shift
from ...experience.frame_replay import FrameBatch
from ...experience.off_policy import OffPolicyRecorder, record_states
from ...models.networks import forward
from ...sizes import Sizes
from ...streams import Stream, torch_generator
from ..part import Metrics
from ..sac.agent import SoftActorCritic
from ..stochastic_targets import least_of
from ..twin_critics import step_critics
from .encoder import Parts, PixelNetwork, convolve, features
from .settings import DrQConfig

_COPIES = 2  # K = M in Kostrikov et al.


@final
@dataclass(frozen=True)
class AugmentedBatch:
    """Transitions as numbers of the format, each twice: all with the first copy of their images, then with the second.

    Attributes:
        size: transitions, n.
        images: (2 n, channels, height, width).
        next_images: (2 n, channels, height, width), shifted independently.
        actions: (2 n, action).
        rewards: (2 n, 1).
        discounts: (2 n, 1).
    """

    size: int
    images: torch.Tensor
    next_images: torch.Tensor
    actions: torch.Tensor
    rewards: torch.Tensor
    discounts: torch.Tensor


@final
class DrQ(SoftActorCritic):
    """Soft actor-critic on features of images; see :class:`SoftActorCritic`.

    The convolutions belong to the critics; the actor's gradient stops before them. Beginning with the linear layer,
    actor and critics have separate networks. Every transition of a batch has two copies of its images, original and
    shifted, or both shifted: the critics' targets are the mean over the copies of the next images, and the values of
    both copies of the images move towards them. Actor and temperature learn from the first copies.

    Args:
        action_size: the number of elements in an action.
        config: the hyper-parameters, the format and the fixes; observations are pixels.
        device: the device of all tensors.

    Source:
        Kostrikov et al., "Image Augmentation Is All You Need", Sections 3 and 4, with K = M = 2; Low-precision SAC,
        Section 4.6 and Appendix G.
    """

    def __init__(self, action_size: int, config: DrQConfig, device: torch.device) -> None:
        def networks(**options: Any) -> tuple[PixelNetwork, PixelNetwork]:
            actor = PixelNetwork(config, extra=0, outputs=2 * action_size, ensemble=1, convolutional=False, **options)
            return actor, PixelNetwork(config, extra=action_size, outputs=1, ensemble=2, convolutional=True, **options)

        super().__init__(networks, 0, action_size, config, device)
        self.generators["augmentation"] = torch_generator(config.seed, Stream.AUGMENTATION, device)

    def bind(self) -> None:
        """Sets the layers of both networks by purpose."""
        super().bind()
        self._actor = Parts.of(self.actor.layers, convolutional=False)
        self._critic = Parts.of(self.critic.layers, convolutional=True)

    def policy_outputs(self, observations: torch.Tensor) -> torch.Tensor:
        """Returns the outputs of the actor's network, (n, 2 action), for the outputs of the critics' convolutions."""
        return self._actor_outputs(self._actor, convolve(self._critic.convolutions, observations))

    def noise_sizes(self, batch_size: int) -> tuple[int, ...]:
        """Returns one sample of the policy per copy of a transition for the critics, and one per transition."""
        return _COPIES * batch_size, batch_size

    def prepare(self, batch: FrameBatch) -> AugmentedBatch:
        """Copies and shifts the images."""
        rows = batch.rows.repeat(_COPIES, 1)
        return AugmentedBatch(
            size=len(batch.rows),
            images=self._augment(batch.observations),
            next_images=self._augment(batch.next_observations),
            actions=rows[:, :-2],  # A row is (action, reward, discount).
            rewards=rows[:, -2:-1],
            discounts=rows[:, -1:],
        )

    def _augment(self, images: torch.Tensor) -> torch.Tensor:
        """Returns two copies of images, one after the other, as numbers of the format; shifts are of bytes."""
        most, shifts = self.config.image_shift, self.generators["augmentation"]
        first = images if self.config.original_images else random_shift(images, most, shifts)
        copies = torch.cat((first, random_shift(images, most, shifts)))
        return images_to_format(copies, self.format, self.dtype)

    def update_critic(self, batch: AugmentedBatch, noise: torch.Tensor) -> Metrics:
        """Moves both critics, for both copies, towards the mean target of both copies."""
        with torch.no_grad():
            next_actions, next_log_prob = self.policy.sample_with_log_prob(
                self.policy_outputs(batch.next_images), noise
            )
            # The target critics have their own convolutions; ``policy_outputs`` used the critics'.
            averaged = Parts.of(self.target, convolutional=True)
            convolved = convolve(averaged.convolutions, batch.next_images)
            exact = self.values_are_exact
            next_q = self._critic_outputs(averaged, convolved, next_actions, exact=exact)
            next_q = least_of(next_q) if exact else next_q.amin(0)
            target = self.targets(batch.rewards, batch.discounts, next_q, next_log_prob, _COPIES)
        trainable = Parts.of(self.critic.trainable, convolutional=True)
        convolved = convolve(trainable.convolutions, batch.images)  # Of both copies.
        q = self._critic_outputs(trainable, convolved, batch.actions, exact=self.exact_errors)
        return step_critics(self, q, target, batch.size)  # Errors are summed over the copies.

    def update_actor_and_temperature(self, batch: AugmentedBatch, noise: torch.Tensor) -> Metrics:
        """Moves the actor to lower the mean of temperature * log pi - min q, the temperature to the target entropy."""
        with torch.no_grad():  # The actor's gradient stops here.
            convolved = convolve(self._critic.convolutions, batch.images[: batch.size])
        outputs = self._actor_outputs(Parts.of(self.actor.trainable, convolutional=False), convolved)
        actions, log_prob = self.policy.sample_with_log_prob(outputs, noise)
        q = self._critic_outputs(self._critic, convolved, actions, exact=self.exact_errors)
        return self.step_actor_and_temperature(self.least_of_critics(q), log_prob)

    def _actor_outputs(self, parts: Parts, convolved: torch.Tensor) -> torch.Tensor:
        """Returns the outputs of the actor's network, (n, 2 action)."""
        return forward(parts.perceptrons, self._features(parts, convolved))[0]

    def _critic_outputs(
        self, parts: Parts, convolved: torch.Tensor, actions: torch.Tensor, *, exact: bool = False
    ) -> torch.Tensor:
        """Returns the values of both critics, (2, n, 1)."""
        pairs = torch.cat((self._features(parts, convolved), actions), dim=1)
        return forward(parts.perceptrons, pairs, scale=self.reward_scale, exact=exact)

    def _features(self, parts: Parts, convolved: torch.Tensor) -> torch.Tensor:
        keys = self.config
        return features(parts.head, convolved, standardization=keys.weight_standardization, limit=keys.feature_limit)


def make(config: DrQConfig, sizes: Sizes, device: torch.device) -> tuple[DrQ, OffPolicyRecorder]:
    """Makes the learner with its initial weights, and the recorder of its images."""
    learner = DrQ(sizes.action_size, config, device)
    return learner, record_states(config, sizes, learner.dtype, device)
