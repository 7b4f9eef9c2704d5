"""Stable-Baselines3 and sb3-contrib as they are, and our convolutions, for planes and images of less than 36 x 36."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from itertools import pairwise
from typing import TYPE_CHECKING, Any, final

import numpy as np
import torch
from numpy.typing import NDArray
from stable_baselines3.common.logger import KVWriter, Logger
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.noise import NormalActionNoise
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.common.vec_env import DummyVecEnv
from torch import nn

from ..models.planes import convolutions_for, convolved_shape
from .settings import AdapterConfig, with_parts
from .world import World

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
        planes = [shape[0], *(convolution.filters for convolution in convolutions)]
        for (n_in, n_out), (_, window, stride, padding) in zip(pairwise(planes), convolutions, strict=True):
            layers += [nn.Conv2d(n_in, n_out, window, stride, padding), nn.ReLU()]
        layers += [nn.Flatten(), *([nn.Linear(size, units), nn.ReLU()] if units else [])]
        self.layers = nn.Sequential(*layers)

    def forward(self, observations: torch.Tensor) -> torch.Tensor:
        """Returns features, (n, features), of observations, (n, planes, height, width)."""
        features: torch.Tensor = self.layers(observations)
        return features


@final
class _LatestLogs(KVWriter):  # type: ignore[misc]  # of no known type
    """Keeps the values that the library logs of its updates."""

    def __init__(self) -> None:
        self.values: dict[str, float] = {}

    def write(self, key_values: dict[str, Any], *_: Any, **__: Any) -> None:
        """Called with all that was recorded since the last call."""
        for name, value in key_values.items():
            if name.startswith("train/") and isinstance(value, int | float | np.number):
                self.values[name.removeprefix("train/")] = float(value)

    def close(self) -> None:
        """Does nothing: nothing is held."""


@final
class SB3:
    """An algorithm of the library.

    Args:
        config: the config of the run.
        worlds: open the environments to learn in.
    """

    def __init__(self, config: AdapterConfig, worlds: Sequence[Callable[[], World]]) -> None:
        module, _, name = config.places[config.name][0].partition(":")
        options = {"policy": "MlpLstmPolicy" if name == "RecurrentPPO" else "MlpPolicy", **with_parts(config.options)}
        # YAML lacks tuples; `train_freq` is a tuple.
        options = {name: tuple(value) if isinstance(value, list) else value for name, value in options.items()}
        environments = DummyVecEnv([lambda make=make: Monitor(make()) for make in worlds])
        self.action_space, self.observation_space = environments.action_space, environments.observation_space
        if isinstance(options.get("action_noise"), int | float):
            size = self.action_space.shape[0]
            options["action_noise"] = NormalActionNoise(np.zeros(size), options["action_noise"] * np.ones(size))
        algorithm = getattr(import_module(module), name)
        self._model = algorithm(env=environments, seed=config.seed, device=config.device, verbose=0, **options)
        self.network: torch.nn.Module = self._model.policy
        self._log = _LatestLogs()
        self._model.set_logger(Logger(folder=None, output_formats=[self._log]))
        self._memory: Any = None
        self._first = np.zeros(0, dtype=bool)

    def learn(self, steps: int) -> None:  # noqa: D102
        self._model.learn(steps)

    def begin(self, count: int) -> None:  # noqa: D102
        self._memory, self._first = None, np.ones(count, dtype=bool)

    def act(self, observations: NDArray[Any]) -> NDArray[Any]:  # noqa: D102
        actions, self._memory = self._model.predict(
            observations, state=self._memory, episode_start=self._first, deterministic=True
        )
        self._first = np.zeros(len(observations), dtype=bool)
        return np.asarray(actions)

    def go_on(self, rows: NDArray[Any]) -> None:  # noqa: D102
        self._first = self._first[rows]
        if self._memory is not None:  # Of recurrent policies: (layers, episode, width).
            self._memory = tuple(part[:, rows] for part in self._memory)

    def weights(self) -> Mapping[str, torch.Tensor]:  # noqa: D102
        temperature = getattr(self._model, "log_ent_coef", None)  # SAC and its variants keep it outside of the policy.
        learned = {"log_ent_coef": temperature.detach()} if isinstance(temperature, torch.Tensor) else {}
        return {**self.network.state_dict(), **learned}

    @property
    def updates(self) -> int | None:
        """The library's count of updates: gradient steps, or passes over a rollout for PPO and similar algorithms."""
        count = getattr(self._model, "_n_updates", None)
        return count if type(count) is int else None

    def logged(self) -> dict[str, float]:  # noqa: D102
        return dict(self._log.values)


def make(config: AdapterConfig, worlds: Sequence[Callable[[], World]]) -> SB3:
    """Makes the model of a config."""
    return SB3(config, worlds)
