"""Exploration noise for the actions of actors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, final

import torch

from ..config.actor_keys import WithActors
from ..config.own_algorithms import agent_module
from ..streams import Stream, torch_generator


class Explorer(Protocol):
    """Chooses the actions of one actor from the best actions of its policy."""

    def act(self, best: torch.Tensor) -> torch.Tensor:
        """Returns the actions of training for the best ones, both (n, action), float32; NaN remains."""

    def basis(self, outputs: torch.Tensor, best: torch.Tensor) -> torch.Tensor:
        """Returns the basis of divergences, like ``Learner.policy_outputs``, from the outputs of an engine."""

    def divergence(self, learner: torch.Tensor, actor: torch.Tensor) -> float:
        """Returns the Kullback-Leibler divergence KL(learner || actor) of the policies, in nats: a mean over states.

        Args:
            learner: the learner's policy in some states, (n, number), as results of :meth:`basis`.
            actor: the actor's policy in the same states.
        """

    def ratios(self, actions: torch.Tensor, learner: torch.Tensor, actor: torch.Tensor, steps: int) -> torch.Tensor:
        """Returns the likelihoods of actions under the learner's policy over the actor's: (n,), float64, cut off at 1.

        Args:
            actions: the actions taken in some states, (n, action).
            learner: the learner's policy in these states, (n, number), as results of :meth:`basis`.
            actor: the actor's policy in the same states.
            steps: the number of the actor's earlier steps.
        """

    def state_dict(self) -> dict[str, Any]:
        """Returns the state that is needed to continue identically."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores the state that :meth:`state_dict` returned."""


@final
class GaussianExplorer:
    """Adds noise to the actions of a deterministic policy, with a standard deviation for each environment.

    Args:
        deviations: the deviations of the environments of this actor, (n, 1), float32.
        seed: the seed of the run.
        stream_key: the key that makes the noise of this actor differ; see ``torch_generator``.

    Source:
        Lam et al., "ActorQ", Section 3: between 0 and 0.2 by actor.
    """

    def __init__(self, deviations: torch.Tensor, seed: int, stream_key: tuple[int, ...]) -> None:
        self.deviations = deviations
        self._generator = torch_generator(seed, Stream.ACTION_NOISE, torch.device("cpu"), *stream_key)

    def act(self, best: torch.Tensor) -> torch.Tensor:
        """Returns the best actions with noise, clipped to [-1, 1]."""
        noise = torch.randn(best.shape, generator=self._generator)
        return (best + noise * self.deviations).clamp(-1, 1)

    def basis(self, outputs: torch.Tensor, best: torch.Tensor) -> torch.Tensor:  # noqa: ARG002
        """Returns the best actions."""
        return best

    def divergence(self, learner: torch.Tensor, actor: torch.Tensor) -> float:
        """Returns the divergence of Gaussians around the actions, before clipping: |difference|^2 / (2 sigma^2).

        It is a mean over the environments with noise; NaN if there are none, where it would be infinite.
        """
        steps = len(actor) // len(self.deviations)
        variance = self.deviations.double().square().repeat(steps, 1).squeeze(1)
        squared = (learner - actor).double().square().sum(1)
        return float((squared / (2 * variance))[variance > 0].mean())

    def ratios(self, actions: torch.Tensor, learner: torch.Tensor, actor: torch.Tensor, steps: int) -> torch.Tensor:  # noqa: ARG002
        """Returns ratios of densities of Gaussians clipped to [-1, 1]; at the ends, of the probabilities beyond them.

        The ratio is 1 for environments without noise, where actions do not have a density.
        """
        deviations = self.deviations.double()
        noisy = deviations.squeeze(1) > 0

        def logarithm(means: torch.Tensor) -> torch.Tensor:
            """Returns the logarithm of the density, without the terms that all policies share."""
            off = (actions.double() - means.double()) / deviations  # Not finite without noise, where it is unused.
            inside = actions.abs() < 1
            return torch.where(inside, -off.square() / 2, torch.special.log_ndtr(-actions.double().sign() * off))

        difference = (logarithm(learner) - logarithm(actor)).sum(1)
        return torch.where(noisy, difference.clamp(max=0).exp(), 1.0)

    def state_dict(self) -> dict[str, Any]:  # noqa: D102
        return {"generator": self._generator.get_state()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:  # noqa: D102
        self._generator.set_state(state["generator"])


def explorer_of(config: WithActors, rank: int, steps: int = 0, stream_key: tuple[int, ...] = ()) -> Explorer:
    """Returns the explorer of an actor of a run, made by ``make_explorer`` of its algorithm.

    Args:
        config: the config of the run.
        rank: the number of the actor.
        steps: the number of steps of its earlier processes.
        stream_key: the key that makes its noise differ from other noise; see ``torch_generator``.
    """
    module = agent_module(config.algorithm)
    explorer: Explorer = module.make_explorer(config, rank, steps, stream_key)
    return explorer


def deviations_of(config: WithActors, rank: int, all_of_them: torch.Tensor) -> torch.Tensor:
    """Returns the deviations of the environments of actor ``rank``, of all (environments, 1), in float32."""
    assert config.actors
    each = config.environments // config.actors.count
    return all_of_them[rank * each : (rank + 1) * each].float()
