"""A policy on its way from the learner to the quantizer, and from there to the actors."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from ..acting.engines import message_for
from ..acting.packed import PackedPolicy

if TYPE_CHECKING:
    from numpy.typing import NDArray

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

    def packed(self, format: str, engine: str) -> NDArray[np.uint8]:
        """What actors pull: the message for their engine; empty if a number is not finite, and nobody can act so."""
        if not all(np.isfinite(part).all() for part in self.numbers):
            return np.zeros(0, dtype=np.uint8)
        policy = _with(self.layout, [torch.from_numpy(part.copy()) for part in self.numbers])
        return np.frombuffer(message_for(engine, PackedPolicy.of(policy, format)), dtype=np.uint8)


def _with(policy: PolicyLayers, numbers: list[torch.Tensor]) -> PolicyLayers:
    """The policy with other numbers, weight and bias of each layer in order."""
    following = iter(numbers)

    def of(layers: tuple[Layer, ...]) -> tuple[Layer, ...]:
        return tuple(replace(layer, weight=next(following), bias=next(following)) for layer in layers)

    return replace(policy, shared=of(policy.shared), heads=tuple(of(head) for head in policy.heads))
