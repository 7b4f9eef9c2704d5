"""Rounds observations, actions and rewards to the run's format and stores them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, final

import numpy as np
import torch

from ...formats import round
from .augmentation import images_to_format
from .transfer import to_device

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from ...formats import Format
    from .frame_replay import FrameReplay
    from .prioritized import PrioritizedReplay
    from .replay import Replay
    from .sampling import Sample


class Intake(ABC):
    """Numbers from outside become numbers of the format, and back.

    Args:
        fmt: of the run.
        dtype: of the agent.
        device: likewise.
    """

    replay: Replay | PrioritizedReplay | FrameReplay

    def __init__(self, fmt: Format, dtype: torch.dtype, device: torch.device) -> None:
        self.format = fmt
        self.dtype = dtype
        self.device = device

    def to_format(self, values: NDArray[np.floating[Any]]) -> torch.Tensor:
        """What comes from outside enters the run's format here, rounded once, from float64."""
        rounded = round(torch.from_numpy(values.astype(np.float64)), self.format)
        return to_device(rounded.to(self.dtype), self.device)

    def from_format(self, numbers: torch.Tensor) -> NDArray[np.floating[Any]]:
        """What goes to the outside, in the carrier: NumPy does not know bfloat16."""
        return numbers.to(device="cpu", dtype=self.format.carrier).numpy()

    @abstractmethod
    def perceive(self, observations: NDArray[Any]) -> torch.Tensor:
        """Observations (n, numbers) as the agent takes them."""

    @abstractmethod
    def begin(self, observation: NDArray[Any]) -> None:
        """Notes the first observation of an episode."""

    @abstractmethod
    def rows(self, observations: torch.Tensor, sample: Sample) -> Sequence[torch.Tensor] | torch.Tensor:
        """The transitions of a sample, which began with ``observations``: of each environment what to remember."""

    @abstractmethod
    def remember(self, row: torch.Tensor, sample: Sample, i: int) -> None:
        """Adds a transition of a sample, that of environment ``i`` of its group, to the replay buffer."""

    @property
    def ready(self) -> bool:
        """Whether there is anything to learn from after a transition."""
        return True

    def state_dict(self) -> dict[str, Any]:
        """What is needed, beside the replay buffer, to continue identically: nothing."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:  # noqa: B027  most have nothing to take over
        """Takes over what :meth:`state_dict` returned."""


@final
class StateIntake(Intake):
    """States: numbers, rounded. Rows hold everything."""

    def __init__(self, replay: Replay, fmt: Format, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__(fmt, dtype, device)
        self.replay: Replay = replay

    def perceive(self, observations: NDArray[Any]) -> torch.Tensor:
        """(n, observation)."""
        return self.to_format(observations)

    def begin(self, observation: NDArray[Any]) -> None:
        """Every row has its observation."""

    def rows(self, observations: torch.Tensor, sample: Sample) -> torch.Tensor:
        """(n, 2 observation + action + 2)."""
        steps = sample.steps
        outcomes = np.column_stack((sample.actions, steps.next_observations, steps.rewards, steps.discounts))
        return torch.cat((observations, self.to_format(outcomes)), dim=1)

    def remember(self, row: torch.Tensor, sample: Sample, i: int) -> None:  # noqa: ARG002
        """Adds the row."""
        self.replay.add(row)


@final
class PixelIntake(Intake):
    """Stacks of images: bytes, divided by 255 and rounded for the agent. One environment, since images lie in order.

    Args:
        replay: of images.
        image_shape: (channels, height, width).
        fmt: of the run.
        dtype: of the agent.
        device: likewise.
    """

    def __init__(
        self,
        replay: FrameReplay,
        image_shape: tuple[int, int, int],
        fmt: Format,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        super().__init__(fmt, dtype, device)
        self.replay: FrameReplay = replay
        self._image_shape = image_shape

    def perceive(self, observations: NDArray[Any]) -> torch.Tensor:
        """(n, images * channels, height, width)."""
        images = torch.from_numpy(observations).view(len(observations), -1, *self._image_shape[1:])
        return images_to_format(to_device(images, self.device), self.format, self.dtype)

    def begin(self, observation: NDArray[Any]) -> None:
        """Adds the first image of an episode to the replay buffer."""
        self.replay.begin(self._newest(observation))

    def rows(self, observations: torch.Tensor, sample: Sample) -> torch.Tensor:  # noqa: ARG002
        """(n, action + 2)."""
        return self.to_format(np.column_stack((sample.actions, sample.steps.rewards, sample.steps.discounts)))

    def remember(self, row: torch.Tensor, sample: Sample, i: int) -> None:
        """Adds the row and the newest image, and the first one of the next episode."""
        steps = sample.steps
        self.replay.add(row, self._newest(steps.next_observations[i]))
        if steps.last[i]:
            self.begin(steps.observations[i])

    def _newest(self, observation: NDArray[Any]) -> torch.Tensor:
        return torch.from_numpy(observation).view(-1, *self._image_shape)[-1]
