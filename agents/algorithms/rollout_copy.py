"""Rollouts by a copy of the policy in another arithmetic, and its distance from the learner."""

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
    """Acts for a learner in another arithmetic, with the learner's current weights.

    The learner learns from a rollout when it is complete, so that the copy has the same weights for all of it. Its
    actions are rounded to the learner's format. Its log-probabilities are computed when the rollout is complete, for
    all observations at once: sums of products may then have another order, and stochastic rounding other bits.

    Args:
        learner: the learner with the policy to copy.
        keys: the arithmetic of the copy, and the correction.

    Attributes:
        distances: ``rollout_kl``, ``rollout_k3_kl``, ``rollout_outside`` and ``rollout_ess`` of the last rollout; see
            :class:`roundoff.Mismatch`. Empty before the first.
    """

    def __init__(self, learner: CopiedPolicy, keys: Rollouts) -> None:
        self._learner, self._keys = learner, keys
        self._quantization = Quantization.parse(keys.format)
        self._copy: CopiedPolicy | None = None
        self._copied_at = -1  # The learner's number of updates when it was copied.
        self.distances: dict[str, float] = {}

    @torch.no_grad()
    def sample(self, observations: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
        """Returns actions of training, (n, action); observations, noise and actions are in the learner's format."""
        copy = self._current()
        with _arithmetic_of(copy, self._learner.actions):
            actions = copy.sample_actions(self._quantization.number(observations), noise)
        return round(actions.to(self._learner.dtype), self._learner.format)

    @torch.no_grad()
    def judge(
        self, observations: torch.Tensor, actions: torch.Tensor, log_prob: torch.Tensor, last: torch.Tensor
    ) -> torch.Tensor:
        """Computes the weights of a rollout's steps, (n, 1), in the learner's format; sets ``distances``.

        The copy's log-probabilities are computed in float64 from its network's outputs. A weight beyond the largest
        number of the format overflows by the format's rules. Where the copy's network is NaN, the weight is also NaN;
        a mask excludes it.

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
            copied_log_prob = copy.policy.log_prob(tuple(output.double() for output in outputs), actions.double())
        log_ratios = (log_prob.double() - copied_log_prob).squeeze(1)
        self.distances = {
            f"rollout_{name.removesuffix('_token')}": value for name, value in distances(log_ratios).items()
        }
        # A table with a row for each sequence, filled up with log ratios of 0.
        rows, places = _places_in_sequences(last.view(-1, learner.config.environments))
        sequences = log_ratios.new_zeros(int(rows.max()) + 1, int(places.max()) + 1)
        sequences[rows, places] = log_ratios
        weights = weights_of(sequences, keys.correction, keys.threshold, keys.least)[rows, places]
        return round(weights.to(learner.dtype), learner.format).unsqueeze(1)

    def _current(self) -> CopiedPolicy:
        """Returns the copy, with the learner's current weights."""
        if self._copy is None or self._copied_at != self._learner.updates:
            self._copy, self._copied_at = self._learner.quantized(self._quantization), self._learner.updates
        return self._copy


@contextmanager
def _arithmetic_of(copy: CopiedPolicy, actions: int) -> Iterator[None]:
    """Enters the arithmetic of a copy, with the random bits of its learner's action number ``actions``."""
    if copy.simulation is not None:
        copy.simulation.step = PLACES * actions + ACT
    with copy.simulation or nullcontext(), copy.products or nullcontext():
        yield


def _places_in_sequences(last: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the number of each step's sequence, and the step's place in the sequence: (n,) each.

    A sequence is the part of an episode in the rollout. ``last`` is (steps, environments).
    """
    ends = last.T.clone()
    ends[:, -1] = True  # The rollout ends.
    numbers = torch.arange(ends.numel(), device=last.device)  # Environment by environment.
    sequence = ends.flatten().cumsum(0) - ends.flatten().long()
    begins = torch.cat((numbers[:1], numbers[1:][ends.flatten()[:-1]]))
    place = numbers - begins[sequence]
    return sequence.view(ends.shape).T.flatten(), place.view(ends.shape).T.flatten()
