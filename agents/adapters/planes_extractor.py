"""Our convolutions for planes and images, for Stable-Baselines3, which has its own only for 36 x 36 or more."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, final

import torch
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from torch import nn

from ..models.planes import convolutions_for, convolved_shape

if TYPE_CHECKING:
    import gymnasium


@final
class PlanesExtractor(BaseFeaturesExtractor):  # type: ignore[misc]  # of no known type
    """The convolutions that our own agents have for observations of a shape, each with ReLU.

    For planes of less than 32 x 32 that is MinAtar's one convolution of 16 filters, for larger images DQN's three;
    see :func:`~roundoff.agents.models.planes.convolutions_for`. From MinAtar's planes, the network is the same as our
    ``dqn`` with ``net_arch: [128]``, and as our ``ppo`` and ``a2c`` (one hidden layer of 128) with ``units: 128`` and
    ``net_arch: []``. Weights begin as the library has it.

    Args:
        observation_space: a space of planes, (planes, height, width).
        units: the width of a layer with ReLU after the convolutions; 0: without one.

    Raises:
        ValueError: observations are not planes, or are too small for the convolutions.
    """

    def __init__(self, observation_space: gymnasium.spaces.Box, units: int = 0) -> None:
        shape = observation_space.shape
        if len(shape) != 3:
            raise ValueError(f"PlanesExtractor is for planes, (planes, height, width), got observations {shape}")
        convolutions = convolutions_for(shape)
        size = torch.Size(convolved_shape(convolutions, shape)).numel()
        super().__init__(observation_space, units or size)
        layers: list[nn.Module] = []
        planes = [shape[0], *(one.filters for one in convolutions)]
        for (before, after), one in zip(pairwise(planes), convolutions, strict=True):
            layers += [nn.Conv2d(before, after, one.size, one.stride, one.padding), nn.ReLU()]
        layers += [nn.Flatten(), *([nn.Linear(size, units), nn.ReLU()] if units else [])]
        self.layers = nn.Sequential(*layers)

    def forward(self, observations: torch.Tensor) -> torch.Tensor:
        """(n, features) for (n, planes, height, width)."""
        found: torch.Tensor = self.layers(observations)
        return found
