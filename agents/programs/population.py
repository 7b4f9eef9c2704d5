"""A population: learners of one kind, updated by one program, with the same bits as in separate runs."""

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

_Inputs = tuple[torch.Tensor, tuple[torch.Tensor, ...]]  # Rows and noises of an update.

_SMALL = 1 << 15  # Of width times batch size; see ``worth_sharing``.
_ALIGNED = 16
"""If all sizes are multiples of this, products of a population have the same bits as the products of one agent."""


def shared_kind(config: TrainConfig) -> str | None:
    """Returns a key that all members of a population share; None for a run that cannot be a member."""
    simulation = simulation_of(config)
    if not isinstance(config, OffPolicyKeys) or config.batch_size % _ALIGNED:
        return None
    if any(width % _ALIGNED for width in config.widths_of_all):
        return None
    if reason_against(config) or reason_against_sharing([simulation], roles=True):
        return None
    return f"{config.task} {kind(config, simulation)}"


def worth_sharing(config: TrainConfig, updates: int) -> bool:
    """Whether a population saves time in this number of updates: only if products do not take most of the time.

    Of 8 members, each takes 0.71 of its separate time with 128 units and a batch of 128, and 0.96 with 256
    (bench/population.py).
    """
    small = isinstance(config, OptimizerKeys) and max(config.widths_of_all) * config.batch_size <= _SMALL
    if config.environment_workers:  # Each member would have its own processes.
        return False
    return small and reason_not_to(simulation_of(config), updates, config.device) is None


@final
class Population:
    """Computes the updates of several learners by programs, as ``CompiledUpdates`` for one.

    Args:
        members: learners of one :func:`shared_kind`, after the same number of updates.

    Raises:
        Exception: any error of the compiler; the learners are unchanged.
    """

    def __init__(self, members: Sequence[Learner]) -> None:
        kinds = {(shared_kind(learner.config), learner.updates) for learner in members}
        assert len(kinds) == 1, "members are of one kind"
        self._members = list(members)
        self._traced = [TracedLearner(learner) for learner in members]
        trees = [traced.tensors for traced in self._traced]
        self._tensors: dict[str, Any] = tree_map(lambda *x: torch.stack(x), *trees)
        simulations = [learner.simulation for learner in members]
        first = members[0]
        programs = programs_of(first, len(members))
        self._steps = {
            part.name: PopulationStep(self._traced[0].program(part), simulations, programs[part.name], roles=True)
            for part in first.parts
        }
        # The latest inputs of each member; a member without a new batch repeats tensors of the same shape.
        batch_size = first.config.batch_size
        options: dict[str, Any] = {"dtype": first.dtype, "device": first.device}
        noises = tuple(torch.zeros(n, first.action_size, **options) for n in first.noise_sizes(batch_size))
        self._inputs: list[_Inputs] = [(torch.zeros(batch_size, first.row_size, **options), noises)] * len(members)
        inputs = self._stacked()
        for part in first.parts:  # Compiles before the learners change: errors leave them as they were.
            self._steps[part.name].prepare(self._tensors, *part.inputs(*inputs))
        for i, learner in enumerate(members):
            learner.compiled = _Member(self, i)
            compile_acting(learner)
        self._actors = [learner.networks[learner.acting_network].flat for learner in members]

    def update(self, batches: dict[int, Batch]) -> dict[int, Metrics]:
        """Updates several members, with the same results as ``learner.update``.

        Args:
            batches: the batches of the members, by index. Missing members have ended; their tensors become arbitrary.

        Returns:
            The result of the update of each member, by index.
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
                if part.name == leader.acting_network:  # Members choose their actions separately.
                    torch._foreach_copy_(self._actors, list(self._tensors[part.name]["parameters"]))
        return {i: {name: values[i] for name, values in metrics.items()} for i in batches}

    def write_back(self, i: int) -> None:
        """Writes a member's results back to it; waits for the device."""
        tensors = self._traced[i].tensors
        for tensor, stacked in zip(tree_leaves(tensors), tree_leaves(self._tensors), strict=True):
            tensor.copy_(stacked[i])

    def _stacked(self) -> _Inputs:
        """Returns the inputs of all members, stacked."""
        rows, noises = zip(*self._inputs, strict=True)
        return torch.stack(rows), tuple(map(torch.stack, zip(*noises, strict=True)))


@final
class _Member:
    """The backend of a population's member: the population computes the parts of its learner."""

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
