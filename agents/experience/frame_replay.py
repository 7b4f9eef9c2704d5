"""The replay buffer for images: every image is stored once, as bytes, and shared by all observations with it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from typing import Any, final

import torch

from ..errors import RunError
from .replay import filled_part
from .transfer import copy_to_device_, to_device


@final
@dataclass(frozen=True)
class FrameBatch:
    """Transitions with images.

    Attributes:
        images: (n, length, channels, height, width), uint8, old to new: the first ``stack`` are the observation, the
            last ``stack`` the next observation; they may overlap.
        rows: (n, action + 2): action, reward and discount, in the format; and a weight, if transitions have weights.
        stack: the number of images in an observation.
    """

    images: torch.Tensor
    rows: torch.Tensor
    stack: int

    @property
    def observations(self) -> torch.Tensor:
        """(n, stack * channels, height, width), uint8."""
        return self.images[:, : self.stack].flatten(1, 2)

    @property
    def next_observations(self) -> torch.Tensor:
        """The observations after the action, (n, stack * channels, height, width), uint8."""
        return self.images[:, -self.stack :].flatten(1, 2)

    def weighed(self, weights: torch.Tensor) -> FrameBatch:
        """Returns the transitions with weights, (n, 1)."""
        return replace(self, rows=torch.cat((self.rows, weights), dim=1))


@final
class FrameReplay:
    """The transitions between the latest images of several simulators, sampled uniformly with replacement.

    An observation is an image with the ``stack - 1`` images before it; at the start of an episode its first image
    replaces the missing ones. The images of a simulator are in a separate ring buffer, in the order of its episodes. A
    transition stores the number of its image and of its episode's first image (and, if it may have several steps, of
    the next observation's image), and is removed once the oldest image it needs is overwritten. An episode of T
    transitions takes T + 1 images.

    Args:
        capacity: the number of images, of all simulators together; each has an equal share, at least
            ``stack + n_steps``.
        image_shape: (channels, height, width).
        stack: the number of images in an observation.
        row_size: the size of an action, plus two.
        dtype: the dtype of rows.
        device: the device of images and rows. On a CPU memory is used only as the buffer fills.
        simulators: the number of simulators.
        n_steps: the largest number of steps of a transition.

    Attributes:
        images: (capacity, channels, height, width), uint8: the rings, one after the other.
        rows: (capacity, row_size), at the indices of their transitions.
        on_change: called with the index of a transition, and True if it has been added, False if it is removed.

    Raises:
        RunError: the memory cannot be allocated.
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
        n_steps: int = 1,
    ) -> None:
        share = capacity // simulators
        assert share >= stack + n_steps
        self.capacity = share * simulators  # Rounded down to equal shares.
        self.stack = stack
        try:
            # Not initialized, so that the system provides memory only for images that are written.
            self.images = torch.empty((self.capacity, *image_shape), dtype=torch.uint8, device=device)
            self.rows = torch.empty(self.capacity, row_size, dtype=dtype, device=device)
            # For every transition, as numbers in its ring: its image, the episode's first image, and, unless that is
            # always the following image, the next observation's image.
            self._places = torch.empty(self.capacity, 2 if n_steps == 1 else 3, dtype=torch.int64, device=device)
        except RuntimeError as error:  # PyTorch has no narrower class on the CPU.
            size = capacity * torch.Size(image_shape).numel()
            raise RunError(
                f"replay_capacity {capacity}: {size / 2**30:.1f} GiB for images cannot be had on {device};"
                " lower it (an image of 84 x 84 takes 21168 bytes)"
            ) from error
        self._offsets = torch.arange(-stack + 1, 2, device=device)
        parts = zip(*(torch.split(x, share) for x in (self.images, self.rows, self._places)), strict=True)
        self.on_change: Callable[[int, bool], None] | None = None
        self._rings = [_Ring(stack, *part, on_change=partial(self._report, i * share)) for i, part in enumerate(parts)]

    def __len__(self) -> int:
        return sum(map(len, self._rings))

    @property
    def added(self) -> int:
        """The number of transitions ever added."""
        return sum(ring.added for ring in self._rings)

    def begin(self, *images: torch.Tensor, simulator: int = 0) -> None:
        """Begins an episode of a simulator, or the stored part of an episode.

        Args:
            images: the images of the first observation, old to new: uint8, (channels, height, width); the first one
                replaces missing earlier ones.
            simulator: the number of the simulator.
        """
        self._rings[simulator].begin(images)

    def add(self, row: torch.Tensor, image: torch.Tensor, simulator: int = 0) -> None:
        """Adds a transition from a simulator's newest image to ``image``: (action, reward, discount)."""
        first_image = self.newest(simulator)  # Before the new image is added.
        self.show(image, simulator)
        self.keep(row, first_image, simulator)

    def newest(self, simulator: int = 0) -> int:
        """Returns the number of a simulator's newest image."""
        return self._rings[simulator].images_added - 1

    def show(self, image: torch.Tensor, simulator: int = 0) -> None:
        """Adds a simulator's next image, of the same episode."""
        self._rings[simulator].append(image)

    def keep(self, row: torch.Tensor, first_image: int, simulator: int = 0) -> None:
        """Adds a transition from image number ``first_image`` of a simulator to its newest image, in the same episode.

        ``first_image`` is 1 to ``n_steps`` steps old, and not older than the start of the previous transition.
        """
        self._rings[simulator].keep(row, first_image)

    def sample(self, batch_size: int, generator: torch.Generator) -> FrameBatch:
        """Draws ``batch_size`` transitions; ``generator`` is of this buffer's device."""
        device, lengths = self.rows.device, [len(ring) for ring in self._rings]
        drawn = torch.randint(sum(lengths), (batch_size,), generator=generator, device=device)
        share = len(self._rings[0].images)
        # For each ring the end of its transitions among all, and the shift from an index among all to one in the ring
        ends = list(accumulate(lengths))
        shifts = [ring.added - end for ring, end in zip(self._rings, ends, strict=True)]
        table = to_device(torch.tensor([ends, shifts]), device)
        ring = torch.searchsorted(table[0], drawn, right=True)
        return self.take(ring * share + (drawn + table[1][ring]) % share)

    def take(self, places: torch.Tensor) -> FrameBatch:
        """Returns the transitions at some indices: int64, (n,), on this buffer's device."""
        share = len(self._rings[0].images)
        first_image, episode_start, *last_image = torch.split(self._places[places], 1, dim=1)
        if last_image:  # The next observation may be several steps later.
            offsets = self._offsets[:-1]
            numbers = torch.cat((first_image + offsets, last_image[0] + offsets), dim=1)
        else:
            numbers = first_image + self._offsets
        ring_begins = places[:, None] // share * share
        # An image before the start of the episode is replaced by the episode's first image.
        images = self.images[ring_begins + torch.maximum(numbers, episode_start) % share]
        return FrameBatch(images, self.rows[places], self.stack)

    def state_dict(self) -> dict[str, Any]:
        """Returns the filled part of the buffer, and the counters: on the CPU, without a copy if it is there."""
        states = [ring.state_dict() for ring in self._rings]
        return states[0] if len(states) == 1 else {"simulators": states}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores the state that :meth:`state_dict` returned."""
        for ring, ring_state in zip(self._rings, state.get("simulators", [state]), strict=True):
            ring.load_state_dict(ring_state)

    def _report(self, ring_begin: int, slot: int, added: bool) -> None:
        if self.on_change:
            self.on_change(ring_begin + slot, added)


class _Ring:
    """The images and the transitions of one simulator; see :class:`FrameReplay`."""

    def __init__(
        self,
        stack: int,
        images: torch.Tensor,
        rows: torch.Tensor,
        places: torch.Tensor,
        *,
        on_change: Callable[[int, bool], None],
    ) -> None:
        self._stack = stack
        self._on_change = on_change
        self.images = images
        self._rows, self._places = rows, places
        self._needed: deque[int] = deque()  # For every transition the number of the oldest image that it needs.
        self.images_added = self._first = self.added = 0

    def __len__(self) -> int:
        return len(self._needed)

    def begin(self, images: Sequence[torch.Tensor]) -> None:
        self._first = self.images_added  # The number of the episode's first image.
        for image in images:
            self.append(image)

    def keep(self, row: torch.Tensor, first_image: int) -> None:
        slot = self.added % len(self.images)
        self._rows[slot].copy_(row)
        for i, number in enumerate((first_image, self._first, self.images_added - 1)[: self._places.shape[1]]):
            self._places[slot, i] = number
        self.added += 1
        self._needed.append(max(first_image - self._stack + 1, self._first))
        self._on_change(slot, True)

    def state_dict(self) -> dict[str, Any]:
        images = min(self.images_added, len(self.images))
        transitions = min(self.added, len(self.images))
        return {
            "images": filled_part(self.images, images),
            "rows": filled_part(self._rows, transitions),
            "places": filled_part(self._places, transitions),
            "images_added": self.images_added,
            "first": self._first,
            "added": self.added,
            "length": len(self),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for buffer, name in ((self.images, "images"), (self._rows, "rows"), (self._places, "places")):
            buffer[: len(state[name])].copy_(state[name])
        self.images_added, self._first = state["images_added"], state["first"]
        self.added = state["added"]
        slots = torch.arange(self.added - state["length"], self.added) % len(self.images)
        first_image, episode_start = torch.split(state["places"][slots, :2], 1, dim=1)
        self._needed = deque(torch.maximum(first_image - self._stack + 1, episode_start).flatten().tolist())

    def append(self, image: torch.Tensor) -> None:
        copy_to_device_(self.images[self.images_added % len(self.images)], image)
        self.images_added += 1
        while self._needed and self._needed[0] < self.images_added - len(self.images):
            self._on_change((self.added - len(self)) % len(self.images), False)
            self._needed.popleft()  # An image of it was overwritten.
