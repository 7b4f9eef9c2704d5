"""Learning values of n steps, as numbers or as distributions, with priorities: the common part of DQN and D4PG."""

from __future__ import annotations

from abc import ABC
from collections.abc import Mapping
from typing import Any, final

import torch

from ...formats import round
from ...simulate import Role, in_role
from ..config.fixes import BASELINES
from ..config.value_keys import ValueKeys
from ..experience.replay import Batch
from ..optimizers.kahan_momentum import MovingAverage, TraceableAverage
from .categorical import projected
from .learner import Learner
from .part import Metrics
from .stochastic_targets import stochastic_projection


@final
class TargetCopy(TraceableAverage):
    """An average with tau = 1: each update copies the source, exactly, in any format.

    Args:
        average: the copy; changed in place.

    Source:
        Mnih et al., "Human-level control through deep reinforcement learning", Algorithm 1: every C steps.
    """

    def __init__(self, average: torch.Tensor) -> None:
        self.average = average

    @torch.no_grad()
    @in_role(Role.AVERAGES)
    def update_(self, source: torch.Tensor) -> None:
        """Copies ``source``."""
        self.average.copy_(source)

    def state_dict(self) -> dict[str, Any]:
        """Returns an empty mapping: ``average`` is the only state."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Does nothing: ``average`` is the only state."""


class ValueLearner(Learner, ABC):
    """A learner with a critic that moves towards r_1 + ... + g^(n-1) r_n + g^n (its target network's value).

    ``numbers["discount"]`` is g^n; with ``atoms`` above 1, ``numbers["atoms"]`` are the values of a categorical head,
    rounded to the format. For the arguments see :class:`Learner`.
    """

    config: ValueKeys

    def __init__(self, observation_size: int, action_size: int, config: ValueKeys, device: torch.device) -> None:
        super().__init__(observation_size, action_size, config, device)
        self.numbers["discount"] = config.discount**config.n_steps
        if config.atoms > 1:
            atoms = torch.linspace(*self.support, config.atoms, dtype=torch.float64)
            self.numbers["atoms"] = round(atoms, self.format).to(device=device, dtype=self.dtype)

    @property
    def row_size(self) -> int:
        """The size of a row of a batch, with a weight if transitions have one."""
        return super().row_size + self.config.weighs

    @property
    def support(self) -> tuple[float, float]:
        """The least and the largest value of a categorical head, scaled like rewards."""
        least, largest = self.config.support
        return least * self.reward_scale, largest * self.reward_scale

    @property
    def scale_of_outputs(self) -> float:
        """The factor of the critic's outputs, but not of their gradients; logits are not values."""
        return self.reward_scale if self.config.atoms == 1 else 1.0

    @property
    def values_are_exact(self) -> bool:
        """Whether values in targets are unrounded, and only the target is rounded; never with distributions."""
        return super().values_are_exact and self.config.atoms == 1

    @property
    def atoms(self) -> torch.Tensor:
        """The values of a categorical head, (atoms,); only if ``atoms`` is above 1."""
        atoms = self.numbers["atoms"]
        assert isinstance(atoms, torch.Tensor)
        return atoms

    @in_role(Role.TARGETS)
    def projected_target(self, following: torch.Tensor, batch: Batch) -> torch.Tensor:
        """Returns the targets of a critic, (n, atoms), for the following distributions, (n, atoms)."""
        project = stochastic_projection if self.stochastic_targets else projected
        return project(following, batch.rewards, batch.discounts, self.atoms, self.numbers["discount"], self.support)

    def cross_entropy_weights(self, logits: torch.Tensor, target: torch.Tensor, batch: Batch) -> torch.Tensor:
        """Returns the derivative of the mean cross entropy by logits, p - m, times the loss scale; all (n, atoms)."""
        derivative = self.weighed(torch.softmax(logits, dim=1) - target, batch)
        weights: torch.Tensor = derivative * self.optimizers["critic"].mean_weight(1, len(derivative))
        return weights

    def weighed(self, derivative: torch.Tensor, batch: Batch) -> torch.Tensor:
        """Returns a derivative by the output for each transition, times the transitions' weights if there are any."""
        return derivative * batch.weights if self.config.weighs else derivative

    def priorities(self, errors: torch.Tensor) -> Metrics:
        """Returns the priorities of transitions with non-negative errors; empty without priorities."""
        return {"priority": errors.pow(self.config.priority_exponent)} if self.config.prioritized else {}

    def without_scale(self, errors: torch.Tensor) -> torch.Tensor:
        """Returns errors of values in the unit of the original rewards."""
        return errors if self.reward_scale == 1 else errors / self.reward_scale

    def make_average(self, flat: torch.Tensor) -> MovingAverage:
        """Makes a target network: a copy, or an average if ``tau`` is below 1."""
        if self.config.tau == 1 and not BASELINES[self.config.baseline].master_weights:
            return TargetCopy(flat)
        return super().make_average(flat)
