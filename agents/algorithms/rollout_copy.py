"""Rollouts by a copy of the policy in another arithmetic, and how far it is from the learner."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Protocol, Self, final

import torch

from ...formats import Format, round
from ...simulate import Simulation, exact
from ..config.on_policy_keys import OnPolicyKeys, Rollouts
from ..models.policies import PolicyHead
from ..quantization.products import QuantizedProducts
from ..quantization.quantization import Quantization
from ..rollout_mismatch import distances, weights_of
from .state import ACT, PLACES


class CopiedPolicy(Protocol):
    """The interface of a learner with a policy that is copied; ``PolicyGradient`` has it."""

    config: OnPolicyKeys
    policy: PolicyHead
    format: Format
    dtype: torch.dtype
    simulation: Simulation | None
    products: QuantizedProducts | None
    updates: int
    actions: int

    def quantized(self, quantization: Quantization) -> Self:
        """See ``Acting``."""

    def outputs(self, observations: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Returns the outputs of the network for the policy."""

    def sample_actions(self, observations: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
        """See ``Acting``."""


@final
class RolloutCopy:
    """Acts for a learner in another arithmetic, with the weights that the learner has at that moment.

    A rollout is learned from when it is complete, so that the copy has the same weights for all of it. Its actions are
    rounded to the learner's format, and its log-probabilities are computed when the rollout is complete: for all
    observations at once, so that sums of products may be ordered otherwise than when it acted, and stochastic rounding
    draws other bits.

    Args:
        learner: the learner with the policy to copy.
        keys: how the copy computes, and the correction.

    Attributes:
        distances: ``rollout_kl``, ``rollout_k3_kl``, ``rollout_outside`` and ``rollout_ess`` of the last rollout, as
            :class:`roundoff.Mismatch` has them; empty before the first.
    """

    def __init__(self, learner: CopiedPolicy, keys: Rollouts) -> None:
        self._learner, self._keys = learner, keys
        self._quantization = Quantization.parse(keys.format)
        self._copy: CopiedPolicy | None = None
        self._made_at = -1  # the learner's updates when the copy was made
        self.distances: dict[str, float] = {}

    @torch.no_grad()
    def sample(self, observations: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
        """Actions of training, (n, action), numbers of the learner's format, for observations and noise of that."""
        copy = self._current()
        with _arithmetic_of(copy, self._learner.actions):
            actions = copy.sample_actions(self._quantization.number(observations), noise)
        return round(actions.to(self._learner.dtype), self._learner.format)

    @torch.no_grad()
    def judge(
        self, observations: torch.Tensor, actions: torch.Tensor, log_prob: torch.Tensor, last: torch.Tensor
    ) -> torch.Tensor:
        """The weights of a rollout's steps, (n, 1), numbers of the learner's format; sets ``distances``.

        The copy's log-probabilities are computed in float64 from its network's outputs. A weight beyond the largest
        number of the format overflows as the format does. Where the copy's network is NaN, so is the weight; a
        mask leaves it out.

        Args:
            observations: (n, observation), step by step, with all environments of a step together.
            actions: (n, action).
            log_prob: (n, 1), the learner's log-probabilities of the actions.
            last: (n, 1): whether an episode ended with the step.
        """
        learner, copy, keys = self._learner, self._current(), self._keys
        with _arithmetic_of(copy, self._learner.actions):
            outputs = copy.outputs(self._quantization.number(observations))
        with exact():
            own = copy.policy.log_prob(tuple(one.double() for one in outputs), actions.double())
        log_ratios = (log_prob.double() - own).squeeze(1)
        self.distances = {
            f"rollout_{name.removesuffix('_token')}": value for name, value in distances(log_ratios).items()
        }
        rows, places = _places_in_sequences(last.view(-1, learner.config.environments))
        sequences = log_ratios.new_zeros(int(rows.max()) + 1, int(places.max()) + 1)
        sequences[rows, places] = log_ratios
        weights = weights_of(sequences, keys.correction, keys.threshold, keys.least)[rows, places]
        return round(weights.to(learner.dtype), learner.format).unsqueeze(1)

    def _current(self) -> CopiedPolicy:
        """The copy with the weights of now."""
        if self._copy is None or self._made_at != self._learner.updates:
            self._copy, self._made_at = self._learner.quantized(self._quantization), self._learner.updates
        return self._copy


@contextmanager
def _arithmetic_of(copy: CopiedPolicy, actions: int) -> Iterator[None]:
    """Enters the arithmetic of a copy, with the random bits of its learner's action number ``actions``."""
    if copy.simulation is not None:
        copy.simulation.step = PLACES * actions + ACT
    with copy.simulation or nullcontext(), copy.products or nullcontext():
        yield


def _places_in_sequences(last: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """For each step of a rollout the number of its sequence, and its place in it: (n,) each.

    A sequence is the part of an episode in the rollout. ``last`` is (steps, environments).
    """
    ends = last.T.clone()
    ends[:, -1] = True
    numbers = torch.arange(ends.numel(), device=last.device)  # environment by environment
    sequence = ends.flatten().cumsum(0) - ends.flatten().long()
    begins = torch.cat((numbers[:1], numbers[1:][ends.flatten()[:-1]]))
    place = numbers - begins[sequence]
    return sequence.view(ends.shape).T.flatten(), place.view(ends.shape).T.flatten()
