"""Environments in numbered slots, and the shared memory for their actions and results."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, final

import numpy as np

if TYPE_CHECKING:
    from mmap import mmap

    from .opening import TaskEnvironment


@final
class Exchange:
    """A table of float64 with a row per slot, and one of observations; their columns, as arrays, are the attributes.

    Args:
        buffer: memory of :meth:`bytes_needed`, which other processes may share.
        slots: number of rows.
        observation_size: the number of elements in an observation.
        action_size: the number of elements in an action.
        observation_dtype: the dtype of observations.

    Attributes:
        active: (slots,), 1 where the next step is to be taken, else 0.
        actions: (slots, action).
        next_observations: (slots, observation), after the step.
        observations: (slots, observation), for the next action: of the next episode where the last one is over.
        rewards: (slots,).
        discounts: (slots,).
        last: (slots,), 1 where the step ended an episode, else 0.
    """

    def __init__(
        self,
        buffer: bytearray | mmap,
        slots: int,
        observation_size: int,
        action_size: int,
        observation_dtype: type[np.generic] = np.float64,
    ) -> None:
        numbers = slots * (4 + action_size)  # Of float64, before the observations.
        table = np.frombuffer(buffer, dtype=np.float64, count=numbers).reshape(slots, -1)
        self.active, self.rewards, self.discounts, self.last = table[:, :4].T
        self.actions = table[:, 4:]
        observations = np.frombuffer(buffer, dtype=observation_dtype, offset=8 * numbers)
        self.next_observations, self.observations = observations.reshape(2, slots, observation_size)

    @staticmethod
    def bytes_needed(
        slots: int, observation_size: int, action_size: int, observation_dtype: type[np.generic] = np.float64
    ) -> int:
        """Returns the size of the buffer."""
        return slots * (8 * (4 + action_size) + 2 * observation_size * np.dtype(observation_dtype).itemsize)


@final
class EnvironmentSlots:
    """The environments of one process.

    Args:
        environments: by slot.
        exchange: the exchange of all slots.
    """

    def __init__(self, environments: Mapping[int, TaskEnvironment], exchange: Exchange) -> None:
        self._environments = environments
        self._exchange = exchange
        # Random states at the start of the current episode, and at the start of the episode of the last step.
        self._start_of_current: dict[int, dict[str, Any]] = {}
        self._start_of_stepped: dict[int, dict[str, Any]] = {}

    def seed(self, entropy: Mapping[int, Iterable[int]]) -> None:
        """Seeds each slot with the seed sequence of some numbers."""
        for slot, numbers in entropy.items():
            self._environments[slot].seed(np.random.SeedSequence(tuple(numbers)))

    def reset(self, slots: Iterable[int]) -> None:
        """Begins an episode in each slot."""
        for slot in slots:
            self._start_of_current[slot] = self._environments[slot].random_state()
            self._exchange.observations[slot] = self._environments[slot].reset().ravel()

    def step(self, slots: Iterable[int], *, begin_next: bool) -> None:
        """Takes a step in each active slot.

        Args:
            slots: the slots of a group.
            begin_next: whether the next episode begins at the end of one.
        """
        exchange = self._exchange
        for slot in slots:
            if not exchange.active[slot]:
                continue
            self._start_of_stepped[slot] = self._start_of_current[slot]
            transition = self._environments[slot].step(exchange.actions[slot].copy())
            exchange.next_observations[slot] = exchange.observations[slot] = transition.observation.ravel()
            exchange.rewards[slot] = transition.reward
            exchange.discounts[slot] = transition.discount
            exchange.last[slot] = transition.last
            if transition.last and begin_next:
                self.reset((slot,))

    def random_states(self, slots: Iterable[int], *, stepped: bool) -> dict[int, dict[str, Any]]:
        """Returns the random states at the start of episodes.

        Args:
            slots: the slots of the environments.
            stepped: whether to return the states for the episode of the last step, even if the next one has begun.
        """
        states = self._start_of_stepped if stepped else self._start_of_current
        return {slot: states[slot] for slot in slots}

    def set_random_states(self, states: Mapping[int, Mapping[str, Any]]) -> None:
        """Restores random states; they take effect at the next reset."""
        for slot, state in states.items():
            self._environments[slot].set_random_state(state)
