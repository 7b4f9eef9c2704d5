"""A population: agents of one kind, updated by one program; each has the bits it has alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, final

import torch
from torch.utils._pytree import tree_leaves, tree_map

from ...simulate.compiling.population import PopulationStep, reason_against_sharing
from ..algorithms.sac import simulation_of
from .compiled import compile_acting, kind, programs_of, reason_against, reason_not_to
from .traced_agent import TracedAgent

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..algorithms.sac import Metrics
    from ..config.train_config import TrainConfig
    from ..experience.replay import Batch

_SMALL = 1 << 15
_ALIGNED = 16
"""Sizes that are multiples of this leave matrices where the products of a population have the bits of one agent's."""


def shared_kind(config: TrainConfig) -> str | None:
    """What runs that can be members of one population have in common; None for a run that can be in none."""
    simulation = simulation_of(config)
    unaligned = config.hidden_units % _ALIGNED or config.batch_size % _ALIGNED
    if unaligned or reason_against(config) or reason_against_sharing([simulation]):
        return None
    return f"{config.task} {kind(config, simulation)}"


def worth_sharing(config: TrainConfig, updates: int) -> bool:
    """Whether so many updates gain from being those of a population: where products do not take all the time anyway.

    Of 8 members, each takes 0.71 of its own time with 128 units and a batch of 128, and 0.96 with 256
    (bench/population.py).
    """
    small = config.hidden_units * config.batch_size <= _SMALL
    if config.environment_workers:  # of which every member has its own
        return False
    return small and reason_not_to(simulation_of(config), updates) is None


@final
class Population:
    """Takes the updates of agents over, as ``CompiledUpdates`` does of one.

    Args:
        members: agents as they are, with their replay buffers; of one :func:`shared_kind`, after as many updates.

    Raises:
        Exception: whatever the compiler has failed with; the agents are as they were.
    """

    def __init__(self, members: Sequence[tuple[Any, Any]]) -> None:
        kinds = {(shared_kind(agent.config), agent.updates) for agent, _ in members}
        assert len(kinds) == 1, "members are of one kind"
        self._agents = [agent for agent, _ in members]
        self._traced = [TracedAgent(*member) for member in members]
        self._tensors: dict[str, Any] = tree_map(lambda *own: torch.stack(own), *[own.tensors for own in self._traced])
        simulations = [agent.simulation for agent in self._agents]
        programs = programs_of(f"{len(members)} {shared_kind(self._agents[0].config)}")
        first = self._traced[0]
        self._critic = PopulationStep(first.update_critic, simulations, programs[0])
        self._actor = PopulationStep(first.update_actor_and_temperature, simulations, programs[1])
        self._target = PopulationStep(first.update_target, simulations, programs[2])
        self._inputs = self._prepare(members[0][1].rows.shape[1])
        for i, (agent, replay) in enumerate(members):
            agent.compiled = _Member(self, i)
            compile_acting(agent, replay)
        self._actors = [agent.actor.flat for agent in self._agents]

    def _prepare(self, row_size: int) -> list[tuple[torch.Tensor, ...]]:
        """Compiles, while nothing depends on it yet; returns what members learn from that have nothing to learn."""
        agent = self._agents[0]
        shape = (len(self._agents), agent.config.batch_size)
        rows = torch.zeros(*shape, row_size, dtype=agent.dtype)
        noise = torch.zeros(*shape, agent.actor.layers[-1].shape[-1] // 2, dtype=agent.dtype)
        self._critic.prepare(self._tensors, rows, noise)
        self._actor.prepare(self._tensors, rows, noise)
        self._target.prepare(self._tensors)
        return list(zip(rows, noise, noise, strict=True))

    def update(self, batches: dict[int, Batch]) -> dict[int, Metrics]:
        """As ``agent.update``, of several.

        Args:
            batches: of the members, by number. Those that are missing have ended, and are left to whatever becomes of
                them.

        Returns:
            What an update of each of them returns.
        """
        for i, batch in batches.items():
            prepared, *noises = self._agents[i].begin_update(batch)
            self._inputs[i] = (prepared.rows, *noises)
        leader = self._agents[next(iter(batches))]
        rows, critic_noise, actor_noise = (torch.stack(own) for own in zip(*self._inputs, strict=True))
        metrics: Metrics = self._critic(self._tensors, rows, critic_noise)
        if leader.actor_is_due:
            metrics |= self._actor(self._tensors, rows, actor_noise)
            # Members act alone.
            torch._foreach_copy_(self._actors, list(self._tensors["actor"]["parameters"]))
        if leader.target_is_due:
            self._target(self._tensors)
        return {i: {name: values[i] for name, values in metrics.items()} for i in batches}

    def write_back(self, i: int) -> None:
        """Tells a member what has become of it; waits for the device."""
        own = self._traced[i]
        for mine, all_of_them in zip(tree_leaves(own.tensors), tree_leaves(self._tensors), strict=True):
            mine.copy_(all_of_them[i])


@final
class _Member:
    """What an agent knows of its population."""

    reason: str | None = None

    def __init__(self, population: Population, number: int) -> None:
        self._population = population
        self._number = number

    def write_back(self) -> None:
        """Tells the agent what has become of it."""
        self._population.write_back(self._number)
