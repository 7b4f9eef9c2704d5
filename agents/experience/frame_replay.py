"""The replay buffer for images: every image is stored once, as bytes, and shared by all observations it is part of."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any, final

import torch

from ..errors import RunError
from .replay import filled_part
from .transfer import copy_to_device_, to_device

if TYPE_CHECKING:
    from collections.abc import Sequence


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
    """The transitions among the last images of each of some simulators, sampled uniformly with replacement.

    An observation is an image with the ``stack - 1`` images before it; where the episode is younger, its first
    image stands for those missing. The images of a simulator lie in a ring of its own, in the order of its episodes; a
    transition knows the number of its image and that of its episode's first one, and is forgotten once the oldest
    image it needs is overwritten. An episode of T transitions takes T + 1 images.

    Args:
        capacity: images kept, of all simulators together; each has an equal share, at least ``stack + 1``.
        image_shape: (channels, height, width).
        stack: images of an observation.
        row_size: numbers of an action, and two.
        dtype: of rows.
        device: where images and rows live. Memory is claimed as it fills (on CPU).
        simulators: how many there are.

    Attributes:
        images: (capacity, channels, height, width), uint8: the rings, one after the other.
        rows: (capacity, row_size).

    Raises:
        RunError: the memory cannot be had.
    """

    def __init__(
        self,
        capacity: int,
        image_shape: tuple[int, ...],
        *,
        stack: int,
        row_size: int,
        dtype: torch.dtype,
        device: torch.device,
        simulators: int = 1,
    ) -> None:
        share = capacity // simulators
        assert share > stack
        self.capacity = share * simulators
        self.stack = stack
        try:
            # Left as it is, so that the system gives memory with the first image that is written there.
            self.images = torch.empty((self.capacity, *image_shape), dtype=torch.uint8, device=device)
            self.rows = torch.empty(self.capacity, row_size, dtype=dtype, device=device)
            # Of every transition the number of its image in its ring, and that of the episode's first one.
            self._places = torch.empty(self.capacity, 2, dtype=torch.int64, device=device)
        except RuntimeError as error:  # PyTorch has no narrower class on the CPU
            size = capacity * torch.Size(image_shape).numel()
            raise RunError(
                f"replay_capacity {capacity}: {size / 2**30:.1f} GiB for images cannot be had on {device};"
                " lower it (an image of 84 x 84 takes 21168 bytes)"
            ) from error
        self._offsets = torch.arange(-stack + 1, 2, device=device)
        parts = zip(*(torch.split(x, share) for x in (self.images, self.rows, self._places)), strict=True)
        self._rings = [_Ring(stack, *part) for part in parts]

    def __len__(self) -> int:
        return sum(map(len, self._rings))

    def begin(self, *images: torch.Tensor, simulator: int = 0) -> None:
        """Begins an episode of a simulator, or what is kept of one.

        Args:
            images: of the first observation, old to new: uint8, (channels, height, width); the first one alone stands
                for those before it.
            simulator: its number.
        """
        self._rings[simulator].begin(images)

    def add(self, row: torch.Tensor, image: torch.Tensor, simulator: int = 0) -> None:
        """Adds a transition from a simulator's newest image to ``image``: (action, reward, discount)."""
        self._rings[simulator].add(row, image)

    def sample(self, batch_size: int, generator: torch.Generator) -> FrameBatch:
        """Draws ``batch_size`` transitions; ``generator`` is of this buffer's device."""
        device, lengths = self.rows.device, [len(ring) for ring in self._rings]
        drawn = torch.randint(sum(lengths), (batch_size,), generator=generator, device=device)
        share = len(self._rings[0].images)
        # Of each ring: where its transitions end among all, and what leads from a place among all to one in it.
        ends = list(accumulate(lengths))
        leads = [ring.added - end for ring, end in zip(self._rings, ends, strict=True)]
        table = to_device(torch.tensor([ends, leads]), device)
        ring = torch.searchsorted(table[0], drawn, right=True)
        slots = ring * share + (drawn + table[1][ring]) % share
        newest, first = torch.split(self._places[slots], 1, dim=1)
        numbers = torch.maximum(newest + self._offsets, first)
        return FrameBatch(self.images[ring[:, None] * share + numbers % share], self.rows[slots])

    def state_dict(self) -> dict[str, Any]:
        """What is filled so far, and the counters: on the CPU, without a copy if it lies there."""
        states = [ring.state_dict() for ring in self._rings]
        return states[0] if len(states) == 1 else {"simulators": states}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes over what :meth:`state_dict` returned."""
        for ring, own in zip(self._rings, state.get("simulators", [state]), strict=True):
            ring.load_state_dict(own)


class _Ring:
    """The images and the transitions of one simulator; see :class:`FrameReplay`."""

    def __init__(self, stack: int, images: torch.Tensor, rows: torch.Tensor, places: torch.Tensor) -> None:
        self._stack = stack
        self.images = images
        self._rows, self._places = rows, places
        self._needed: deque[int] = deque()  # of every transition, the number of the oldest image it needs
        self._images_added = self._first = self.added = 0

    def __len__(self) -> int:
        return len(self._needed)

    def begin(self, images: Sequence[torch.Tensor]) -> None:
        self._first = self._images_added
        for image in images:
            self._append(image)

    def add(self, row: torch.Tensor, image: torch.Tensor) -> None:
        number = self._images_added - 1
        self._append(image)
        slot = self.added % len(self.images)
        self._rows[slot].copy_(row)
        self._places[slot, 0] = number
        self._places[slot, 1] = self._first
        self.added += 1
        self._needed.append(max(number - self._stack + 1, self._first))

    def state_dict(self) -> dict[str, Any]:
        images = min(self._images_added, len(self.images))
        transitions = min(self.added, len(self.images))
        return {
            "images": filled_part(self.images, images),
            "rows": filled_part(self._rows, transitions),
            "places": filled_part(self._places, transitions),
            "images_added": self._images_added,
            "first": self._first,
            "added": self.added,
            "length": len(self),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for mine, name in ((self.images, "images"), (self._rows, "rows"), (self._places, "places")):
            mine[: len(state[name])].copy_(state[name])
        self._images_added, self._first = state["images_added"], state["first"]
        self.added = state["added"]
        kept = torch.arange(self.added - state["length"], self.added) % len(self.images)
        newest, first = torch.split(state["places"][kept], 1, dim=1)
        self._needed = deque(torch.maximum(newest - self._stack + 1, first).flatten().tolist())

    def _append(self, image: torch.Tensor) -> None:
        copy_to_device_(self.images[self._images_added % len(self.images)], image)
        self._images_added += 1
        while self._needed and self._needed[0] < self._images_added - len(self.images):
            self._needed.popleft()
