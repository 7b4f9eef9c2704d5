"""A policy on its way from the learner to the quantizer, and from there to the actors."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from ..acting.engines import message_for, open_engine
from ..acting.packed import PackedPolicy

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..acting.engines import Engine
    from ..config.actor_keys import ActorKeys
    from ..models.policy_layers import Layer, PolicyLayers

_NOTHING = torch.empty(0)


class FullPolicy(NamedTuple):
    """A policy as the learner hands it over: NumPy's arrays, which Ray shares without a copy for each reader."""

    layout: PolicyLayers
    """The layout without the numbers of its layers."""
    numbers: list[NDArray[np.float32]]
    """Weight and bias of each layer in order."""

    @classmethod
    def of(cls, policy: PolicyLayers) -> FullPolicy:
        """Takes it apart."""
        numbers = [part.numpy() for layer in policy for part in (layer.weight, layer.bias)]
        return cls(_with(policy, [_NOTHING] * len(numbers)), numbers)

    def packed(self, keys: ActorKeys) -> NDArray[np.uint8]:
        """Returns the message that actors pull, for :func:`opened`; empty if a value is not finite."""
        if not all(np.isfinite(part).all() for part in self.numbers):
            return np.zeros(0, dtype=np.uint8)
        policy = _with(self.layout, [torch.from_numpy(part.copy()) for part in self.numbers])
        if keys.communicate:
            return np.frombuffer(PackedPolicy.of(policy, keys.communicate).to_bytes(), dtype=np.uint8)
        return np.frombuffer(message_for(keys.engine, PackedPolicy.of(policy, keys.format)), dtype=np.uint8)


def opened(message: bytes, keys: ActorKeys) -> Engine | None:
    """Returns the engine for a message of :meth:`FullPolicy.packed`, in the actors' format.

    None if acting is impossible: the message is empty, or the format for sending weights has made some infinite.
    """
    if not message:
        return None
    if keys.communicate:
        policy = PackedPolicy.from_bytes(message).policy
        if not all(bool(layer.weight.isfinite().all()) for layer in policy):
            return None
        message = message_for(keys.engine, PackedPolicy.of(policy, keys.format))
    return open_engine(keys.engine, message)


def _with(policy: PolicyLayers, numbers: list[torch.Tensor]) -> PolicyLayers:
    """The policy with other numbers, weight and bias of each layer in order."""
    following = iter(numbers)

    def of(layers: tuple[Layer, ...]) -> tuple[Layer, ...]:
        return tuple(replace(layer, weight=next(following), bias=next(following)) for layer in layers)

    return replace(policy, shared=of(policy.shared), heads=tuple(of(head) for head in policy.heads))
