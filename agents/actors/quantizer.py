"""The process that packs the learner's weights for the actors, so that neither the learner nor they have to."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import torch

from ..config.actor_keys import ActorKeys

if TYPE_CHECKING:
    from .weights import FullPolicy


class Quantizer:
    """A Ray actor with two threads: one packs, while the other returns the latest packed policy.

    Args:
        keys: the keys of the actors, as JSON values.
    """

    def __init__(self, keys: dict[str, Any]) -> None:
        import ray  # noqa: PLC0415  we are inside of it

        torch.set_num_threads(1)
        self._ray, self._keys = ray, ActorKeys(**keys)
        self._latest: tuple[int, list[Any]] | None = None

    def pack(self, version: int, policy: FullPolicy) -> None:
        """Packs a policy and publishes it."""
        self._latest = (version, [self._ray.put(policy.packed(self._keys))])

    def latest(self) -> tuple[int, list[Any]] | None:
        """The version, and a reference to its message, in a list, since Ray would send the referenced object."""
        return self._latest

    def process_id(self) -> int:
        """Returns the id of this process."""
        return os.getpid()
