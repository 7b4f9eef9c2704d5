"""The transfer of a policy from the learner to the quantizer, a process that packs it, and then to the actors."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from ..acting.engines import Engine, message_for, open_engine
from ..acting.packed import PackedPolicy, with_numbers
from ..config.actor_keys import ActorKeys
from ..models.policy_layers import PolicyLayers

if TYPE_CHECKING:
    from numpy.typing import NDArray

_NOTHING = torch.empty(0)


class FullPolicy(NamedTuple):
    """A policy from the learner, in NumPy's arrays, which Ray shares without a copy for each reader."""

    layout: PolicyLayers
    """The layout without the numbers of its layers."""
    numbers: list[NDArray[np.float32]]
    """Weight and bias of each layer in order."""

    @classmethod
    def of(cls, policy: PolicyLayers) -> FullPolicy:
        """Splits a policy into its layout and the numbers of its layers."""
        numbers = [part.numpy() for layer in policy for part in (layer.weight, layer.bias)]
        return cls(with_numbers(policy, [_NOTHING] * len(numbers), "weight", "bias"), numbers)

    def packed(self, keys: ActorKeys) -> NDArray[np.uint8]:
        """Returns the message that actors pull, for :func:`opened`; empty if a value is not finite."""
        if not all(np.isfinite(part).all() for part in self.numbers):
            return np.zeros(0, dtype=np.uint8)
        # Ray's arrays are read-only, which PyTorch does not support.
        policy = with_numbers(self.layout, (torch.from_numpy(part.copy()) for part in self.numbers), "weight", "bias")
        if keys.communicate:
            return np.frombuffer(PackedPolicy.of(policy, keys.communicate).to_bytes(), dtype=np.uint8)
        return np.frombuffer(message_for(keys.engine, PackedPolicy.of(policy, keys.format)), dtype=np.uint8)


def opened(message: bytes, keys: ActorKeys) -> Engine | None:
    """Returns the engine for a message of :meth:`FullPolicy.packed`, in the actors' format.

    None if acting is impossible: the message is empty, or the format of ``communicate`` has made weights infinite.
    """
    if not message:
        return None
    if keys.communicate:
        policy = PackedPolicy.from_bytes(message).policy
        if not all(bool(layer.weight.isfinite().all()) for layer in policy):
            return None
        message = message_for(keys.engine, PackedPolicy.of(policy, keys.format))
    return open_engine(keys.engine, message)


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
        """Returns the version and a reference to its message, in a list: Ray would replace a bare reference."""
        return self._latest

    def process_id(self) -> int:
        """Returns the id of this process."""
        return os.getpid()
