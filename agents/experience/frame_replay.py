"""The replay buffer for images: every image is stored once, as bytes, and shared by all observations it is part of."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any, final

import torch

from ..errors import RunError
from .replay import filled_part
from .transfer import copy_to_device_


@final
@dataclass(frozen=True)
class FrameBatch:
    """Transitions.

    Attributes:
        images: (n, stack + 1, channels, height, width), uint8: those of an observation and the next one, old to new.
        rows: (n, action + 2): action, reward and discount, numbers of the format.
    """

    images: torch.Tensor
    rows: torch.Tensor

    @property
    def observations(self) -> torch.Tensor:
        """(n, stack * channels, height, width), uint8."""
        return self.images[:, :-1].flatten(1, 2)

    @property
    def next_observations(self) -> torch.Tensor:
        """The observations after the action, in the same shape."""
        return self.images[:, 1:].flatten(1, 2)


@final
class FrameReplay:
    """The transitions among the last ``capacity`` images, sampled uniformly with replacement.

    An observation is an image with the ``stack - 1`` images before it; where the episode is younger, its first
    image stands for those missing. Images lie in a ring; a transition knows the number of its image and that of
    its episode's first one, and is forgotten once the oldest image it needs is overwritten. An episode of T
    transitions takes T + 1 images.

    Args:
        capacity: images kept, at least ``stack + 1``.
        image_shape: (channels, height, width).
        stack: images of an observation.
        row_size: numbers of an action, and two.
        dtype: of rows.
        device: where images and rows live. Memory is claimed as it fills (on CPU).

    Raises:
        RunError: the memory cannot be had.
    """

    def __init__(
        self,
        capacity: int,
        image_shape: tuple[int, int, int],
        *,
        stack: int,
        row_size: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        assert capacity > stack
        self.capacity = capacity
        self.stack = stack
        try:
            # Left as it is, so that the system gives memory with the first image that is written there.
            self.images = torch.empty((capacity, *image_shape), dtype=torch.uint8, device=device)
            self.rows = torch.empty(capacity, row_size, dtype=dtype, device=device)
            # Of every transition the number of its image, and that of the episode's first one.
            self._places = torch.empty(capacity, 2, dtype=torch.int64, device=device)
        except RuntimeError as error:  # PyTorch has no narrower class on the CPU
            size = capacity * torch.Size(image_shape).numel()
            raise RunError(
                f"replay_capacity {capacity}: {size / 2**30:.1f} GiB for images cannot be had on {device};"
                " lower it (an image of 84 x 84 takes 21168 bytes)"
            ) from error
        self._offsets = torch.arange(-stack + 1, 2, device=device)
        self._needed: deque[int] = deque()  # of every transition, the number of the oldest image it needs
        self._images_added = self._first = self._added = 0

    def __len__(self) -> int:
        return len(self._needed)

    def begin(self, image: torch.Tensor) -> None:
        """Begins an episode with its first image: uint8, (channels, height, width)."""
        self._first = self._images_added
        self._append(image)

    def add(self, row: torch.Tensor, image: torch.Tensor) -> None:
        """Adds a transition from the newest image to ``image``: (action, reward, discount)."""
        number = self._images_added - 1
        self._append(image)
        slot = self._added % self.capacity
        self.rows[slot].copy_(row)
        self._places[slot, 0] = number
        self._places[slot, 1] = self._first
        self._added += 1
        self._needed.append(max(number - self.stack + 1, self._first))

    def sample(self, batch_size: int, generator: torch.Generator) -> FrameBatch:
        """Draws ``batch_size`` transitions; ``generator`` is of this buffer's device."""
        oldest = self._added - len(self)
        slots = torch.randint(oldest, self._added, (batch_size,), generator=generator, device=self.rows.device)
        slots %= self.capacity
        newest, first = torch.split(self._places[slots], 1, dim=1)
        numbers = torch.maximum(newest + self._offsets, first)
        return FrameBatch(self.images[numbers % self.capacity], self.rows[slots])

    def state_dict(self) -> dict[str, Any]:
        """What is filled so far, and the counters: on the CPU, without a copy if it lies there."""
        images = min(self._images_added, self.capacity)
        transitions = min(self._added, self.capacity)
        return {
            "images": filled_part(self.images, images),
            "rows": filled_part(self.rows, transitions),
            "places": filled_part(self._places, transitions),
            "images_added": self._images_added,
            "first": self._first,
            "added": self._added,
            "length": len(self),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes over what :meth:`state_dict` returned."""
        for mine, name in ((self.images, "images"), (self.rows, "rows"), (self._places, "places")):
            mine[: len(state[name])].copy_(state[name])
        self._images_added, self._first = state["images_added"], state["first"]
        self._added = state["added"]
        kept = torch.arange(self._added - state["length"], self._added) % self.capacity
        newest, first = torch.split(state["places"][kept], 1, dim=1)
        self._needed = deque(torch.maximum(newest - self.stack + 1, first).flatten().tolist())

    def _append(self, image: torch.Tensor) -> None:
        copy_to_device_(self.images[self._images_added % self.capacity], image)
        self._images_added += 1
        while self._needed and self._needed[0] < self._images_added - self.capacity:
            self._needed.popleft()
