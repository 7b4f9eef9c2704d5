"""Exploration noise for actions that something other than the learner computes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, final

import torch

from ..config.actor_keys import WithActors
from ..config.own_algorithms import agent_module
from ..streams import Stream, torch_generator


class Explorer(Protocol):
    """Chooses the actions of one actor from the best ones of its policy."""

    def act(self, best: torch.Tensor) -> torch.Tensor:
        """The actions of training for the best ones, both (n, action), float32; NaN where those are."""

    def basis(self, outputs: torch.Tensor, best: torch.Tensor) -> torch.Tensor:
        """Returns the basis of divergences: as ``Learner.policy_outputs``, from the outputs of an engine."""

    def divergence(self, learners: torch.Tensor, own: torch.Tensor) -> float:
        """The Kullback-Leibler divergence KL(learner || actor) of the policies, in nats: a mean over states.

        Args:
            learners: the learner's policy in some states, (n, number), as :meth:`basis` gives them.
            own: the actor's in the same ones.
        """

    def ratios(self, actions: torch.Tensor, learners: torch.Tensor, own: torch.Tensor, steps: int) -> torch.Tensor:
        """Returns the likelihoods of actions under the learner's policy over the actor's: (n,), float64, cut off at 1.

        Args:
            actions: the actions taken in some states, (n, action).
            learners: the learner's policy in them, (n, number), as :meth:`basis` gives them.
            own: the actor's.
            steps: that the actor had taken before.
        """

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to continue identically."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes it over."""


@final
class GaussianExplorer:
    """Noise on the actions of a deterministic policy, of a standard deviation that each environment has.

    Args:
        deviations: the deviations of the environments of this actor, (n, 1), float32.
        seed: the seed of the run.
        whose: the key that makes the noise of this actor differ; see ``torch_generator``.

    Source:
        Lam et al., "ActorQ", Section 3: between 0 and 0.2 by actor.
    """

    def __init__(self, deviations: torch.Tensor, seed: int, whose: tuple[int, ...]) -> None:
        self.deviations = deviations
        self._generator = torch_generator(seed, Stream.ACTION_NOISE, torch.device("cpu"), *whose)

    def act(self, best: torch.Tensor) -> torch.Tensor:
        """The best actions and noise, clipped to [-1, 1]."""
        noise = torch.randn(best.shape, generator=self._generator)
        return (best + noise * self.deviations).clamp(-1, 1)

    def basis(self, outputs: torch.Tensor, best: torch.Tensor) -> torch.Tensor:  # noqa: ARG002
        """The best actions."""
        return best

    def divergence(self, learners: torch.Tensor, own: torch.Tensor) -> float:
        """The divergence of Gaussians around the actions, before they are clipped: |difference|^2 / (2 sigma^2).

        It is a mean over the environments that have noise; NaN if none has, since it would be infinite.
        """
        steps = len(own) // len(self.deviations)
        variance = self.deviations.double().square().repeat(steps, 1).squeeze(1)
        squared = (learners - own).double().square().sum(1)
        return float((squared / (2 * variance))[variance > 0].mean())

    def ratios(self, actions: torch.Tensor, learners: torch.Tensor, own: torch.Tensor, steps: int) -> torch.Tensor:  # noqa: ARG002
        """Ratios of densities of Gaussians clipped to [-1, 1]; at the ends, of the probabilities beyond them.

        1 for environments without noise, where actions do not have a density.
        """
        deviations = self.deviations.double()
        noisy = deviations.squeeze(1) > 0

        def logarithm(means: torch.Tensor) -> torch.Tensor:
            """The logarithm of the density, without the part that is every policy's."""
            off = (actions.double() - means.double()) / deviations
            inside = actions.abs() < 1
            return torch.where(inside, -off.square() / 2, torch.special.log_ndtr(-actions.double().sign() * off))

        difference = (logarithm(learners) - logarithm(own)).sum(1)
        return torch.where(noisy, difference.clamp(max=0).exp(), 1.0)

    def state_dict(self) -> dict[str, Any]:  # noqa: D102
        return {"generator": self._generator.get_state()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:  # noqa: D102
        self._generator.set_state(state["generator"])


def explorer_of(config: WithActors, rank: int, steps: int = 0, whose: tuple[int, ...] = ()) -> Explorer:
    """Returns the explorer of an actor of a run, made by ``make_explorer`` of its algorithm.

    Args:
        config: the config of the run.
        rank: the number of the actor.
        steps: the number of steps in its earlier lives.
        whose: the key that makes its noise differ from other noise; see ``torch_generator``.
    """
    module = agent_module(config.algorithm)
    explorer: Explorer = module.make_explorer(config, rank, steps, whose)
    return explorer


def deviations_of(config: WithActors, rank: int, all_of_them: torch.Tensor) -> torch.Tensor:
    """The deviations of the environments of actor ``rank``, selected from all (environments, 1), in float32."""
    assert config.actors
    each = config.environments // config.actors.count
    return all_of_them[rank * each : (rank + 1) * each].float()
