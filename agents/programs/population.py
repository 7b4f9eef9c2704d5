"""A population: learners of one kind, updated by one program; each has the same bits as on its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

import torch
from torch.utils._pytree import tree_leaves, tree_map

from ...simulate import PopulationStep, reason_against_sharing
from ..algorithms.arithmetic import simulation_of
from ..algorithms.learner import Learner
from ..algorithms.part import Metrics, Part
from ..config.learning_keys import OffPolicyKeys, OptimizerKeys
from ..config.train_config import TrainConfig
from ..experience.replay import Batch
from .compiled import TracedLearner, compile_acting, kind, programs_of, reason_against, reason_not_to

_Inputs = tuple[torch.Tensor, tuple[torch.Tensor, ...]]  # rows and noises of an update

_SMALL = 1 << 15
_ALIGNED = 16
"""Sizes that are multiples of this leave matrices where the products of a population have the bits of one agent's."""


def shared_kind(config: TrainConfig) -> str | None:
    """Returns a key that runs must share to be members of one population; None for a run that can be in none."""
    simulation = simulation_of(config)
    if not isinstance(config, OffPolicyKeys) or config.batch_size % _ALIGNED:
        return None
    if any(width % _ALIGNED for width in config.widths_of_all):
        return None
    if reason_against(config) or reason_against_sharing([simulation], roles=True):
        return None
    return f"{config.task} {kind(config, simulation)}"


def worth_sharing(config: TrainConfig, updates: int) -> bool:
    """Whether this number of updates gains from a population: where products do not take all the time anyway.

    Of 8 members, each takes 0.71 of its separate time with 128 units and a batch of 128, and 0.96 with 256
    (bench/population.py).
    """
    small = isinstance(config, OptimizerKeys) and max(config.widths_of_all) * config.batch_size <= _SMALL
    if config.environment_workers:  # of which every member has its own
        return False
    return small and reason_not_to(simulation_of(config), updates, config.device) is None


@final
class Population:
    """Takes the updates of learners over, as ``CompiledUpdates`` does of one.

    Args:
        members: as they are; of one :func:`shared_kind`, after the same number of updates.

    Raises:
        Exception: whatever the compiler has failed with; the learners are as they were.
    """

    def __init__(self, members: Sequence[Learner]) -> None:
        kinds = {(shared_kind(learner.config), learner.updates) for learner in members}
        assert len(kinds) == 1, "members are of one kind"
        self._members = list(members)
        self._traced = [TracedLearner(learner) for learner in members]
        self._tensors: dict[str, Any] = tree_map(lambda *own: torch.stack(own), *[own.tensors for own in self._traced])
        simulations = [learner.simulation for learner in members]
        first = members[0]
        programs = programs_of(first, len(members))
        self._steps = {
            part.name: PopulationStep(self._traced[0].program(part), simulations, programs[part.name], roles=True)
            for part in first.parts
        }
        # What each learns from; of those that have nothing to learn, something of the same shape.
        batch_size = first.config.batch_size
        options: dict[str, Any] = {"dtype": first.dtype, "device": first.device}
        noises = tuple(torch.zeros(n, first.action_size, **options) for n in first.noise_sizes(batch_size))
        self._inputs: list[_Inputs] = [(torch.zeros(batch_size, first.row_size, **options), noises)] * len(members)
        inputs = self._stacked()
        for part in first.parts:  # compiled while nothing depends on it yet
            self._steps[part.name].prepare(self._tensors, *part.inputs(*inputs))
        for i, learner in enumerate(members):
            learner.compiled = _Member(self, i)
            compile_acting(learner)
        self._actors = [learner.networks[learner.acting_network].flat for learner in members]

    def update(self, batches: dict[int, Batch]) -> dict[int, Metrics]:
        """Updates several members, each as ``learner.update`` does.

        Args:
            batches: the batches of the members, by index. Missing members have ended, and their tensors become
                arbitrary.

        Returns:
            What an update of each of them returns.
        """
        for i, batch in batches.items():
            prepared, noises = self._members[i].begin_update(batch)
            self._inputs[i] = (prepared.rows, noises)
        leader = self._members[next(iter(batches))]
        inputs = self._stacked()
        metrics: Metrics = {}
        for part in leader.parts:
            if leader.is_due(part):
                for i in batches:
                    self._members[i].begin_part(part)
                metrics |= self._steps[part.name](self._tensors, *part.inputs(*inputs))
                if part.name == leader.acting_network:  # members act alone
                    torch._foreach_copy_(self._actors, list(self._tensors[part.name]["parameters"]))
        return {i: {name: values[i] for name, values in metrics.items()} for i in batches}

    def write_back(self, i: int) -> None:
        """Writes a member's results back to it; waits for the device."""
        own = self._traced[i]
        for member, all_of_them in zip(tree_leaves(own.tensors), tree_leaves(self._tensors), strict=True):
            member.copy_(all_of_them[i])

    def _stacked(self) -> _Inputs:
        """Returns the inputs of all members, stacked."""
        rows, noises = zip(*self._inputs, strict=True)
        return torch.stack(rows), tuple(torch.stack(of_members) for of_members in zip(*noises, strict=True))


@final
class _Member:
    """A member of a population, to its learner; the population computes the learner's parts."""

    reason: str | None = None

    def __init__(self, population: Population, number: int) -> None:
        self._population = population
        self._number = number

    def compute(self, part: Part, inputs: tuple[Any, ...]) -> Metrics:
        """Computes nothing: a single member is never updated separately."""
        raise AssertionError(part, inputs)

    def write_back(self) -> None:
        """Writes the results back to the learner."""
        self._population.write_back(self._number)
