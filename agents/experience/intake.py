"""Rounds observations, actions and rewards to the run's format and stores them, by the kind of observations."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray

from ...formats import Format, round
from ..config.actor_keys import has_importance_weights
from ..config.learning_keys import OffPolicyKeys
from ..errors import RunError
from ..sizes import Sizes
from .augmentation import images_to_format
from .frame_replay import FrameReplay
from .normalization import ObservationNormalizer
from .prioritized import PrioritizedReplay
from .replay import Replay
from .sampling import Sample
from .transfer import to_device


class Intake(ABC):
    """Converts observations, actions and rewards to the format of a run, and stores them as transitions.

    Args:
        fmt: the format of the run.
        dtype: the dtype of the agent.
        device: the device of the agent.

    Attributes:
        replay: the buffer of the transitions.
        normalizer: normalizes observations first; None: they are not normalized.
    """

    replay: Replay | PrioritizedReplay | FrameReplay
    normalizer: ObservationNormalizer | None = None

    def __init__(self, fmt: Format, dtype: torch.dtype, device: torch.device) -> None:
        self.format = fmt
        self._by_pytorch = str(fmt) in ("fp32", "fp64")  # PyTorch rounds to these in a fifth of the time.
        self.dtype = dtype
        self.device = device

    def to_format(self, values: NDArray[np.floating[Any]]) -> torch.Tensor:
        """Rounds values of an environment from float64 to the run's format, once."""
        numbers = torch.from_numpy(values.astype(np.float64))
        rounded = numbers if self._by_pytorch else round(numbers, self.format)
        return to_device(rounded.to(self.dtype), self.device)

    def from_format(self, numbers: torch.Tensor) -> NDArray[np.floating[Any]]:
        """Returns values for an environment, in the format's carrier, since NumPy has no bfloat16."""
        return numbers.to(device="cpu", dtype=self.format.carrier).numpy()

    @abstractmethod
    def perceive(self, observations: NDArray[Any]) -> torch.Tensor:
        """Converts observations, (n, ...), to the agent's input."""

    @abstractmethod
    def begin(self, observation: NDArray[Any], environment: int = 0) -> None:
        """Takes the first observation of an episode of a training environment, given its number."""

    def forget(self, group: int) -> None:  # noqa: B027  most intakes have nothing to drop
        """Drops the pending transitions of a group, after an interruption of its episodes."""

    @abstractmethod
    def rows(self, observations: torch.Tensor, sample: Sample) -> Sequence[Any] | torch.Tensor:
        """Returns a sample's transitions, which began with ``observations``, by environment, for :meth:`remember`."""

    @abstractmethod
    def remember(self, row: Any, sample: Sample, i: int) -> None:
        """Adds the transition of environment ``i`` in a sample's group to the replay buffer."""

    @property
    def ready(self) -> bool:
        """Whether there is anything to learn from after a transition."""
        return True

    def state_dict(self) -> dict[str, Any]:
        """Returns the state, besides the replay buffer, that is needed to continue identically: none."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:  # noqa: B027  most intakes have no state
        """Restores the state that :meth:`state_dict` returned."""


@final
class StateIntake(Intake):
    """The intake of states: rounded numbers, planes of 0 and 1, or images divided by 255; a row is a transition."""

    def __init__(
        self,
        replay: Replay,
        fmt: Format,
        dtype: torch.dtype,
        device: torch.device,
        normalizer: ObservationNormalizer | None = None,
    ) -> None:
        super().__init__(fmt, dtype, device)
        self.rows_kept = replay
        self.replay = replay
        self.normalizer = normalizer

    def perceive(self, observations: NDArray[Any]) -> torch.Tensor:
        """Converts observations to (n, observation)."""
        if observations.dtype == np.uint8:
            return images_to_format(to_device(torch.from_numpy(observations), self.device), self.format, self.dtype)
        return self.to_format(self._normalized(observations))

    def begin(self, observation: NDArray[Any], environment: int = 0) -> None:
        """Does nothing: every row contains its observation."""

    def rows(self, observations: torch.Tensor, sample: Sample) -> torch.Tensor:
        """Returns the transitions, (n, 2 observation + action + 2)."""
        steps = sample.steps
        if steps.next_observations.dtype == np.uint8:  # Images go to the device as bytes, and are rounded there.
            outcomes = self.to_format(np.column_stack((steps.rewards, steps.discounts)))
            actions, next_observations = self.to_format(sample.actions), self.perceive(steps.next_observations)
            return torch.cat((observations, actions, next_observations, outcomes), dim=1)
        normalized = self._normalized(steps.next_observations)  # In float64, before the only rounding.
        numbers = np.column_stack((sample.actions, normalized, steps.rewards, steps.discounts))
        return torch.cat((observations, self.to_format(numbers)), dim=1)

    def _normalized(self, observations: NDArray[Any]) -> NDArray[Any]:
        return self.normalizer(observations) if self.normalizer else observations

    def remember(self, row: torch.Tensor, sample: Sample, i: int) -> None:  # noqa: ARG002
        """Adds the row to the replay buffer."""
        self.rows_kept.add(row)


class PixelIntake(Intake):
    """The intake of stacks of images: stored as bytes, each image once; divided by 255 and rounded for the agent.

    Args:
        replay: a replay buffer of images.
        image_shape: (channels, height, width).
        fmt: the format of the run.
        dtype: the dtype of the agent.
        device: the device of the agent.
    """

    def __init__(
        self, replay: FrameReplay, image_shape: tuple[int, ...], fmt: Format, dtype: torch.dtype, device: torch.device
    ) -> None:
        super().__init__(fmt, dtype, device)
        self.frames = replay
        self.replay = replay
        self.image_shape = image_shape

    def perceive(self, observations: NDArray[Any]) -> torch.Tensor:
        """Converts observations to (n, images * channels, height, width)."""
        images = torch.from_numpy(observations).view(len(observations), -1, *self.image_shape[1:])
        return images_to_format(to_device(images, self.device), self.format, self.dtype)

    def begin(self, observation: NDArray[Any], environment: int = 0) -> None:
        """Adds the images of an episode's first observation to the buffer; repetitions of its first image only once."""
        images = torch.from_numpy(observation).view(-1, *self.image_shape)
        first = 0  # The number of repetitions: the buffer itself repeats an episode's first image.
        while first + 1 < len(images) and torch.equal(images[first], images[first + 1]):
            first += 1
        self.frames.begin(*images[first:], simulator=environment)

    def rows(self, observations: torch.Tensor, sample: Sample) -> Sequence[Any] | torch.Tensor:  # noqa: ARG002
        """Returns the actions, rewards and discounts, (n, action + 2)."""
        return self.to_format(np.column_stack((sample.actions, sample.steps.rewards, sample.steps.discounts)))

    def remember(self, row: Any, sample: Sample, i: int) -> None:
        """Adds the row and the newest image, and the first one of the next episode."""
        steps, environment = sample.steps, sample.first + i
        self.add(row, torch.from_numpy(steps.next_observations[i]).view(-1, *self.image_shape)[-1], environment)
        if steps.last[i]:  # The observation is already of the next episode.
            self.begin(steps.observations[i], environment)

    def add(self, row: Any, image: torch.Tensor, environment: int) -> None:
        """Adds a row and the newest image of an environment."""
        self.frames.add(row, image, environment)


def make_intake(
    config: OffPolicyKeys, sizes: Sizes, dtype: torch.dtype, device: torch.device, *, n_steps: int = 1
) -> StateIntake | PixelIntake:
    """Makes the intake for observations, by their kind, with a buffer no longer than the run to save memory.

    Each image is stored once, in the order of an environment's episodes; planes of 0 and 1 as bytes; numbers unchanged.
    A transition of images has at most ``n_steps`` steps.

    Raises:
        RunError: memory cannot be allocated, ``replay_capacity`` is too small for images of this number of
            environments, or images are to have importance weights.
    """
    fmt = Format.parse(config.format)
    if sizes.observation_dtype is not np.uint8:
        capacity, planes = min(config.replay_capacity, config.transitions), sizes.observation_dtype is np.bool_
        weighed = has_importance_weights(config)
        sizes_of_rows = sizes.observation_size, sizes.action_size
        replay = Replay(capacity, *sizes_of_rows, dtype=dtype, device=device, weighed=weighed, planes=planes)
        return StateIntake(replay, fmt, dtype, device)
    if has_importance_weights(config):
        raise RunError(f"actors.importance_weights is for vector observations; those of {config.task} are images")
    count, stack = config.environments, sizes.frames  # Images: each environment has a ring of its own.
    channels, *image_size = sizes.observation_shape
    image_shape = (channels // stack, *image_size)  # An observation has the channels of all its images.
    # The shortest episodes have two images and one transition.
    capacity = min(config.replay_capacity, count * max(2 * -(-config.transitions // count), stack + n_steps))
    if capacity // count < stack + n_steps:
        raise RunError(
            f"replay_capacity counts images, and each of {count} environments needs at least {stack + n_steps}; got"
            f" {config.replay_capacity}"
        )
    row_size = sizes.action_size + 2  # Action, reward, discount.
    images = FrameReplay(
        capacity, image_shape, stack=stack, row_size=row_size, dtype=dtype, device=device, simulators=count,
        n_steps=n_steps,
    )  # fmt: skip
    return PixelIntake(images, image_shape, fmt, dtype, device)
