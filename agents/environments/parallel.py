"""Many environments of one task, stepped together: in this process, or in several that share memory with it."""

from __future__ import annotations

import json
import mmap
import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Self, final

import numpy as np
from numpy.typing import NDArray

from roundoff.processes import GRACE, ONE_THREAD, ChildProcess

from ..errors import RunError
from .opening import open_environment
from .process import MOST_GROUPS, STOP, answer
from .shared_memory import EnvironmentSlots, Exchange
from .tasks import Task


class Steps(NamedTuple):
    """The results of a step of a group, a row per environment; rows of inactive environments are old."""

    next_observations: NDArray[Any]
    """(n, observation), after the step."""
    rewards: NDArray[np.float64]
    """(n,)."""
    discounts: NDArray[np.float64]
    """(n,): 0 at a terminal state, else 1."""
    last: NDArray[np.bool_]
    """(n,): whether the step ended an episode."""
    observations: NDArray[Any]
    """(n, observation), for the next action: of the next episode where one has ended and the group begins the next."""


@final
class VectorEnvironment:
    """Groups of environments of one task; while one group steps, the others can be served.

    The environments depend only on their seeds and actions, not on the number of processes. Observations and actions
    go through unnamed memory, which is freed with the last process that uses it. A worker process ends when the socket
    to it closes. So nothing remains, however this process ends.

    Args:
        opening: the arguments of :func:`open_environment` for every environment, by name.
        groups: the number of environments in each.
        begin_next: for each group, whether its environments begin the next episode at the end of one.
        workers: processes; each has its share of every group. 0: all step in this process.
        on_stop: called when a worker receives a stop signal; the worker continues.

    Attributes:
        observation_size: the number of elements in an observation.
        observation_shape: the shape of an observation.
        observation_dtype: the dtype of an observation.
        frames: the number of images in an observation.
        action_size: the number of elements in an action; for discrete actions, the number of actions.
        discrete: whether an action is one of several; see ``TaskEnvironment``.
        groups: the groups.

    Raises:
        RunError: the task does not exist, or a worker has failed or died; all workers are ended then.

    Source:
        Stooke, Abbeel, "Accelerated Methods for Deep Reinforcement Learning", Section 4.1.
    """

    def __init__(
        self,
        opening: Mapping[str, Any],
        groups: Sequence[int],
        begin_next: Sequence[bool],
        *,
        workers: int = 0,
        on_stop: Callable[[], None] | None = None,
    ) -> None:
        assert len(groups) <= MOST_GROUPS  # A group's number is one byte.
        first = open_environment(**opening)
        module = Task.parse(opening["task"]).module
        if module:  # Its import was allowed here, so it is also allowed in the workers.
            opening = {**opening, "allow_imports": [module]}
        self.observation_size, self.action_size = first.observation_size, first.action_size
        self.observation_shape, self.discrete = first.observation_shape, first.discrete
        self.observation_dtype, self.frames = first.observation_dtype, first.frames
        count = sum(groups)
        sizes = (count, self.observation_size, self.action_size, first.observation_dtype)
        slots = np.split(np.arange(count), np.cumsum(groups)[:-1])
        self._backend: _Local | _Processes
        if workers == 0:
            self._exchange = Exchange(bytearray(Exchange.bytes_needed(*sizes)), *sizes)
            environments = {i: open_environment(**opening) if i else first for i in range(count)}
            slots_by_group = [part.tolist() for part in slots]
            self._backend = _Local(EnvironmentSlots(environments, self._exchange), slots_by_group, begin_next)
        else:
            # Memory without a name: nothing to clean up, whoever is killed.
            memory = os.memfd_create("roundoff-environments")
            try:
                os.ftruncate(memory, Exchange.bytes_needed(*sizes))
                self._exchange = Exchange(mmap.mmap(memory, 0), *sizes)
                # Each group begins with a different worker, so that the first one does not get all small groups.
                shares = [
                    [part[(i + k) % workers :: workers].tolist() for k, part in enumerate(slots)]
                    for i in range(workers)
                ]
                order = {"opening": dict(opening), "slots": count, "begin_next": list(begin_next)}
                orders = [{**order, "groups": share} for share in shares if any(share)]
                self._backend = _Processes(orders, memory, on_stop or (lambda: None))
            finally:
                os.close(memory)
        self.groups = [EnvironmentGroup(self._exchange, self._backend, i, part) for i, part in enumerate(slots)]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the workers."""
        self._backend.close()

    @property
    def process_ids(self) -> list[int]:
        """The workers' process ids."""
        return self._backend.process_ids


@final
class EnvironmentGroup:
    """Environments that step together; made by :class:`VectorEnvironment`."""

    def __init__(
        self, exchange: Exchange, backend: _Local | _Processes, number: int, slots: NDArray[np.integer[Any]]
    ) -> None:
        self._exchange = exchange
        self._backend = backend
        self._number = number
        self._slots = slots.tolist()
        # Slots of a group are adjacent: a slice copies once.
        self._rows = slice(int(slots[0]), int(slots[-1]) + 1) if len(slots) else slice(0, 0)

    def __len__(self) -> int:
        return len(self._slots)

    def seed(self, sequences: Sequence[np.random.SeedSequence]) -> None:
        """Seeds each environment; takes effect at the next reset."""
        # Entropy is an integer of any size, or several: an array of objects holds them exactly, and JSON does.
        entropy = {
            slot: [int(number) for number in np.atleast_1d(np.asarray(sequence.entropy, dtype=object))]
            for slot, sequence in zip(self._slots, sequences, strict=True)
        }
        self._backend.call(self._slots, {"call": "seed", "entropy": entropy})

    def reset(self) -> NDArray[Any]:
        """Begins an episode in each environment; returns the first observations, (n, observation)."""
        self._backend.call(self._slots, {"call": "reset", "slots": self._slots})
        return self._exchange.observations[self._rows].copy()

    def submit(self, actions: NDArray[np.floating[Any]], active: NDArray[np.bool_] | None = None) -> None:
        """Begins a step; :meth:`collect` returns its outcome.

        Args:
            actions: (n, action), finite; numbers beyond [-1, 1] count as its ends.
            active: (n,), which environments step; None for all.
        """
        np.clip(actions, -1, 1, out=self._exchange.actions[self._rows])
        self._exchange.active[self._rows] = 1 if active is None else active
        self._backend.start(self._number)

    def collect(self) -> Steps:
        """Waits for the outcome of the step that :meth:`submit` began."""
        self._backend.finish(self._number)
        exchange, rows = self._exchange, self._rows  # The next step overwrites these: the outcome is a copy.
        return Steps(
            exchange.next_observations[rows].copy(),
            exchange.rewards[rows].copy(),
            exchange.discounts[rows].copy(),
            exchange.last[rows] != 0,
            exchange.observations[rows].copy(),
        )

    def random_states(self, *, stepped: bool) -> list[dict[str, Any]]:
        """Returns the random states at the start of episodes; see ``EnvironmentSlots.random_states``."""
        call = {"call": "random_states", "slots": self._slots, "stepped": stepped}
        states: dict[int, Any] = {}
        for reply in self._backend.call(self._slots, call):
            states |= {int(slot): state for slot, state in reply["states"].items()}
        return [states[slot] for slot in self._slots]

    def set_random_states(self, states: Sequence[dict[str, Any]]) -> None:
        """Restores random states; they take effect at the next reset."""
        states_by_slot = dict(zip(self._slots, states, strict=True))
        self._backend.call(self._slots, {"call": "set_random_states", "states": states_by_slot})


@final
class _Local:
    """All environments in this process."""

    def __init__(self, slots: EnvironmentSlots, groups: Sequence[Sequence[int]], begin_next: Sequence[bool]) -> None:
        self._slots = slots
        self._groups = groups
        self._begin_next = begin_next
        self.process_ids: list[int] = []

    def start(self, group: int) -> None:
        self._slots.step(self._groups[group], begin_next=self._begin_next[group])

    def finish(self, group: int) -> None:
        """Does nothing: ``start`` has taken the step."""

    def call(self, _slots: Sequence[int], message: dict[str, Any]) -> list[dict[str, Any]]:
        return [answer(self._slots, message)]

    def close(self) -> None:
        """Does nothing: there are no processes."""


@final
class _Processes:
    """Worker processes, each with a share of every group."""

    def __init__(self, orders: Sequence[dict[str, Any]], memory: int, on_stop: Callable[[], None]) -> None:
        self._on_stop = on_stop
        self._workers: list[_Worker] = []
        try:
            # In three loops, so that the workers start and open their environments at the same time.
            for order in orders:
                self._workers.append(_Worker(order["groups"], memory))
            for worker, order in zip(self._workers, orders, strict=True):
                self._send(worker, json.dumps(order).encode())
            for worker in self._workers:
                self._reply(worker)
        except BaseException:
            self.close()
            raise

    @property
    def process_ids(self) -> list[int]:
        return [worker.process.pid for worker in self._workers]

    def start(self, group: int) -> None:
        for worker in self._workers:
            if worker.groups[group]:
                self._send(worker, bytes([group]))  # A message of one byte; see ``process``.

    def finish(self, group: int) -> None:
        for worker in self._workers:
            while worker.groups[group] and group not in worker.finished:
                self._receive(worker)
            worker.finished.discard(group)

    def call(self, slots: Sequence[int], message: dict[str, Any]) -> list[dict[str, Any]]:
        """Sends each worker the part of a message for its share of ``slots``, and returns the replies."""
        recipients = []
        for worker in self._workers:
            share = worker.slots.intersection(slots)
            if not share:
                continue
            recipients.append(worker)
            part = {
                key: {slot: item for slot, item in value.items() if slot in share} if isinstance(value, dict) else value
                for key, value in message.items()
            }
            if "slots" in message:
                part["slots"] = sorted(share)
            self._send(worker, json.dumps(part).encode())
        return [self._reply(worker) for worker in recipients]

    def close(self) -> None:
        for worker in self._workers:
            worker.connection.close()  # A worker ends when its socket closes.
        end = time.monotonic() + GRACE  # One period for all workers together.
        for worker in self._workers:
            worker.process.end(end - time.monotonic())
        self._workers = []

    def _reply(self, worker: _Worker) -> dict[str, Any]:
        while (reply := self._receive(worker)) is None:
            pass
        return reply

    def _receive(self, worker: _Worker) -> dict[str, Any] | None:
        """Receives one message: records a finished step or a request to stop, and returns anything else."""
        try:
            message = worker.connection.recv_bytes()
        except (EOFError, OSError) as error:
            raise self._death(worker) from error
        if len(message) == 1:  # A byte is a group's number, or STOP.
            if message[0] == STOP:
                self._on_stop()
            else:
                worker.finished.add(message[0])
            return None
        reply: dict[str, Any] = json.loads(message)
        if "error" in reply:
            self.close()
            raise RunError(reply["error"])
        return reply

    def _send(self, worker: _Worker, message: bytes) -> None:
        try:
            worker.connection.send_bytes(message)
        except OSError as error:
            # The worker may have sent the reason before it ended.
            while worker.connection.poll(0):
                self._receive(worker)
            raise self._death(worker) from error

    def _death(self, worker: _Worker) -> RunError:
        process, count = worker.process, len(self._workers)
        number = self._workers.index(worker) + 1
        self.close()  # First: ``death`` waits for the end of the process.
        return RunError(
            f"environment worker {number} of {count} (process {process.pid}) {process.death()}; if nobody killed it,"
            " memory may have run out: choose fewer environments or environment_workers, and continue from the last"
            " checkpoint"
        )


@final
class _Worker:
    """One process and the socket to it."""

    def __init__(self, groups: list[list[int]], memory: int) -> None:
        self.groups = groups
        self.slots = {slot for group in groups for slot in group}
        self.finished: set[int] = set()
        self.process, self.connection = ChildProcess.asked_through_socket(
            "roundoff.agents.environments.process", str(memory), descriptors=(memory,), environment=ONE_THREAD
        )
