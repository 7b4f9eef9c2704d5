"""The interface between a run and an RL library, and a lookup of each library's adapter."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol

from roundoff.extras import from_extras

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import torch
    from numpy.typing import NDArray

    from .settings import AdapterConfig
    from .world import World


class Model(Protocol):
    """An algorithm of a library, made for a task."""

    network: torch.nn.Module
    """All that acts and learns."""
    action_space: Any
    """The space of actions of the environments to learn in."""
    observation_space: Any
    """The space of observations of the environments to learn in."""

    @property
    def updates(self) -> int | None:
        """The number of updates made; None if the library does not report it."""

    def learn(self, steps: int) -> None:
        """Learns for this number of agent steps, or a little longer, where the library takes whole rollouts."""

    def begin(self, count: int) -> None:
        """Clears its memory of episodes: ``count`` new ones begin, outside of training."""

    def act(self, observations: NDArray[Any]) -> NDArray[Any]:
        """The deterministic actions for observations, (n, ...), as the environment takes them."""

    def go_on(self, rows: NDArray[Any]) -> None:
        """Is told which of the episodes acted in last go on; a mask."""

    def weights(self) -> Mapping[str, torch.Tensor]:
        """All that is learned, by name."""

    def logged(self) -> dict[str, float]:
        """The numbers that the library has last logged of its updates."""


def make_model(config: AdapterConfig, world: Callable[[int], World]) -> Model:
    """The model that a config asks for, with its initial weights.

    Args:
        config: the config of the run.
        world: opens the environment of a number, from 0 to ``config.environments - 1``.
    """
    with from_extras():
        module = import_module(f".{config.library()}", __package__)
    made: Model = module.make(config, [lambda i=i: world(i) for i in range(config.environments)])
    return made
