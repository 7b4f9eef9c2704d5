"""The replay buffer for images: every image is stored once, as bytes, and shared by all observations it is part of."""

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
    """Transitions.

    Attributes:
        images: (n, length, channels, height, width), uint8: the first ``stack`` belong to an observation, the last ones
            to the next one, old to new; some may be both.
        rows: (n, action + 2): action, reward and discount, numbers of the format; and a weight, if there are any.
        stack: images of an observation.
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
        """The observations after the action, in the same shape."""
        return self.images[:, -self.stack :].flatten(1, 2)

    def weighed(self, weights: torch.Tensor) -> FrameBatch:
        """Returns the transitions with weights, (n, 1)."""
        return replace(self, rows=torch.cat((self.rows, weights), dim=1))


@final
class FrameReplay:
    """The transitions among the last images of each of some simulators, sampled uniformly with replacement.

    An observation is an image with the ``stack - 1`` images before it; where the episode is younger, its first
    image replaces the missing ones. The images of a simulator are in a separate ring, in the order of its episodes; a
    transition keeps the index of its image and of its episode's first one (and, if it may be of several steps, of the
    next observation's image), and is forgotten once the oldest image it needs is overwritten. An episode of T
    transitions takes T + 1 images.

    Args:
        capacity: images kept, of all simulators together; each has an equal share, at least ``stack + n_steps``.
        image_shape: (channels, height, width).
        stack: images of an observation.
        row_size: the size of an action, plus two.
        dtype: the dtype of rows.
        device: where images and rows live. Memory is claimed as it fills (on CPU).
        simulators: the number of simulators.
        n_steps: the most steps of a transition.

    Attributes:
        images: (capacity, channels, height, width), uint8: the rings, one after the other.
        rows: (capacity, row_size), at the places of their transitions.
        on_change: called with the place of a transition, and whether it has been added there or is forgotten.

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
        n_steps: int = 1,
    ) -> None:
        share = capacity // simulators
        assert share >= stack + n_steps
        self.capacity = share * simulators
        self.stack = stack
        try:
            # Left as it is, so that the system gives memory with the first image that is written there.
            self.images = torch.empty((self.capacity, *image_shape), dtype=torch.uint8, device=device)
            self.rows = torch.empty(self.capacity, row_size, dtype=dtype, device=device)
            # Of every transition the number of its image in its ring, and that of the episode's first one; then of the
            # next observation's, if that is not always the one after it.
            self._places = torch.empty(self.capacity, 2 if n_steps == 1 else 3, dtype=torch.int64, device=device)
        except RuntimeError as error:  # PyTorch has no narrower class on the CPU
            size = capacity * torch.Size(image_shape).numel()
            raise RunError(
                f"replay_capacity {capacity}: {size / 2**30:.1f} GiB for images cannot be had on {device};"
                " lower it (an image of 84 x 84 takes 21168 bytes)"
            ) from error
        self._offsets = torch.arange(-stack + 1, 2, device=device)
        parts = zip(*(torch.split(x, share) for x in (self.images, self.rows, self._places)), strict=True)
        self.on_change: Callable[[int, bool], None] | None = None
        self._rings = [_Ring(stack, *part, on_change=partial(self._tell, i * share)) for i, part in enumerate(parts)]

    def __len__(self) -> int:
        return sum(map(len, self._rings))

    @property
    def added(self) -> int:
        """Transitions that there have ever been."""
        return sum(ring.added for ring in self._rings)

    def begin(self, *images: torch.Tensor, simulator: int = 0) -> None:
        """Begins an episode of a simulator, or the kept part of one.

        Args:
            images: the images of the first observation, old to new: uint8, (channels, height, width); the first one
                replaces all before it.
            simulator: its number.
        """
        self._rings[simulator].begin(images)

    def add(self, row: torch.Tensor, image: torch.Tensor, simulator: int = 0) -> None:
        """Adds a transition from a simulator's newest image to ``image``: (action, reward, discount)."""
        begun = self.newest(simulator)
        self.show(image, simulator)
        self.keep(row, begun, simulator)

    def newest(self, simulator: int = 0) -> int:
        """The number of a simulator's newest image."""
        return self._rings[simulator].images_added - 1

    def show(self, image: torch.Tensor, simulator: int = 0) -> None:
        """Adds a simulator's next image, of the same episode."""
        self._rings[simulator].append(image)

    def keep(self, row: torch.Tensor, begun: int, simulator: int = 0) -> None:
        """Adds a transition to a simulator's newest image from the one of number ``begun``, of the same episode.

        It is one step before, or up to ``n_steps``, and not earlier than the start of the previous transition.
        """
        self._rings[simulator].keep(row, begun)

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
        return self.take(ring * share + (drawn + table[1][ring]) % share)

    def take(self, places: torch.Tensor) -> FrameBatch:
        """The transitions at some places: int64, (n,), on this buffer's device."""
        share = len(self._rings[0].images)
        newest, first, *last = torch.split(self._places[places], 1, dim=1)
        if last:
            own = self._offsets[:-1]
            numbers = torch.cat((newest + own, last[0] + own), dim=1)
        else:
            numbers = newest + self._offsets
        ring_begins = places[:, None] // share * share
        images = self.images[ring_begins + torch.maximum(numbers, first) % share]
        return FrameBatch(images, self.rows[places], self.stack)

    def state_dict(self) -> dict[str, Any]:
        """Returns the filled part of the buffer, and the counters: on the CPU, without a copy if it is there."""
        states = [ring.state_dict() for ring in self._rings]
        return states[0] if len(states) == 1 else {"simulators": states}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores the state that :meth:`state_dict` returned."""
        for ring, own in zip(self._rings, state.get("simulators", [state]), strict=True):
            ring.load_state_dict(own)

    def _tell(self, begin: int, slot: int, there: bool) -> None:
        if self.on_change:
            self.on_change(begin + slot, there)


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
        self._needed: deque[int] = deque()  # of every transition, the number of the oldest image it needs
        self.images_added = self._first = self.added = 0

    def __len__(self) -> int:
        return len(self._needed)

    def begin(self, images: Sequence[torch.Tensor]) -> None:
        self._first = self.images_added
        for image in images:
            self.append(image)

    def keep(self, row: torch.Tensor, begun: int) -> None:
        slot = self.added % len(self.images)
        self._rows[slot].copy_(row)
        for i, number in enumerate((begun, self._first, self.images_added - 1)[: self._places.shape[1]]):
            self._places[slot, i] = number
        self.added += 1
        self._needed.append(max(begun - self._stack + 1, self._first))
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
        kept = torch.arange(self.added - state["length"], self.added) % len(self.images)
        newest, first = torch.split(state["places"][kept, :2], 1, dim=1)
        self._needed = deque(torch.maximum(newest - self._stack + 1, first).flatten().tolist())

    def append(self, image: torch.Tensor) -> None:
        copy_to_device_(self.images[self.images_added % len(self.images)], image)
        self.images_added += 1
        while self._needed and self._needed[0] < self.images_added - len(self.images):
            self._on_change((self.added - len(self)) % len(self.images), False)
            self._needed.popleft()
