"""Starts Ray and the Ray processes of one run, its quantizer and its actors, and ends them."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, final

from roundoff.errors import RoundoffError
from roundoff.processes import ChildProcess
from roundoff.ray_cluster import connect

from ..config.actor_keys import WithActors
from ..config.own_algorithms import for_others
from ..config.train_config import TrainConfig
from ..errors import RunError
from . import guardian
from .actor import Actor
from .weights import FullPolicy, Quantizer

_ANSWER = 120.0  # seconds to wait for an answer of a process that has answered before
_GRACE = 30.0  # seconds to wait until all Ray processes have ended
_LOOK = 0.5  # seconds to wait for answers before the caller can check whether to stop
GO_ON = "the same command continues from the last checkpoint"
_MOST_DEATHS = 10  # consecutive deaths of an actor without an answer
_SHORT = 18  # characters of the temporary folder's path; a socket's path has at most 107, of which Ray adds 65
_STORE = 512 * 2**20  # bytes of Ray's shared memory: fifteen times the weights of 3 x 2048 units


class ActorDied(Exception):  # noqa: N818  not an error of the run: the actor is replaced
    """Raised when the process of an actor, or its node, has died."""


@contextmanager
def connected(processes: int) -> Iterator[Any]:
    """Connects to Ray for the block: if initialized, this process's; else at RAY_ADDRESS; else started for the block.

    Args:
        processes: the number of Ray processes to start, with a CPU each.

    Raises:
        MissingExtraError: Ray is not installed.
        ClusterError: no cluster is found at RAY_ADDRESS, or Ray does not start.
    """
    imported = sys.modules.get("ray")
    if imported and imported.is_initialized():
        yield imported
        return
    with ExitStack() as stack:
        local: dict[str, Any] = {}
        if not os.environ.get("RAY_ADDRESS"):
            local = {"num_cpus": processes, "object_store_memory": _STORE, "include_dashboard": False}
            local["_temp_dir"] = stack.enter_context(guarded_folder())
        ray = connect(**local)
        stack.callback(ray.shutdown)
        yield ray


@contextmanager
def guarded_folder() -> Iterator[str]:
    """Creates a folder for Ray in a private folder, since all users can access Ray's own.

    After the block, or when this process is killed, both are removed, and the processes that use them are ended.
    """
    long = len(tempfile.gettempdir()) > _SHORT
    folder = tempfile.mkdtemp(prefix="roundoff-ray-", dir="/tmp" if long else None)  # noqa: S108  nobody else's
    reading, writing = os.pipe()
    command = [sys.executable, "-I", "-S", guardian.__file__, str(reading), folder]
    process = ChildProcess(command, descriptors=(reading,))
    os.close(reading)
    try:
        yield f"{folder}/r"
    finally:
        os.close(writing)
        process.end(_GRACE)


@contextmanager
def open_stage(config: TrainConfig, opening: dict[str, Any]) -> Iterator[Stage | None]:
    """Starts the Ray processes of a run for the block; yields None without actors; see :func:`connected`."""
    actors = config.actors if isinstance(config, WithActors) else None
    if actors is None:
        yield None
        return
    assert isinstance(config, WithActors)
    with connected(actors.count + 1) as ray:
        stage = Stage(ray, config, opening)
        try:
            yield stage
        finally:
            stage.close()


@final
class Stage:
    """The quantizer and the actors of a run, which are restarted when they die.

    Ray restarts the quantizer, without weights until the next publication. This class restarts actors,
    since they must begin other episodes.

    Args:
        ray: the module, connected to a cluster.
        config: the config of the run.
        opening: the arguments for opening an environment, by name.

    Attributes:
        lives: the number of restarts of each actor, by rank.
    """

    def __init__(self, ray: Any, config: WithActors, opening: dict[str, Any]) -> None:
        assert config.actors
        self._ray, self._keys = ray, config.actors
        self._order = {"config": config.as_json(), "opening": opening, **for_others(config.algorithm)}
        self._quantizer = (
            ray.remote(Quantizer)
            .options(num_cpus=1, max_restarts=-1, max_concurrency=2)
            .remote(self._keys.model_dump(mode="json"))
        )
        self._packing: Any = None
        self._actors: list[Any] = [None] * self._keys.count
        self.lives = [0] * self._keys.count
        self._deaths = [0] * self._keys.count
        self._orders: dict[Any, int] = {}  # pending calls of actors, and the ranks of the actors

    @property
    def process_ids(self) -> list[int]:
        """The process ids of the quantizer and of the actors."""
        pending = [actor.process_id.remote() for actor in (self._quantizer, *self._actors)]
        ids: list[int] = self._ray.get(pending, timeout=_ANSWER)
        return ids

    # Weights

    @property
    def packs(self) -> bool:
        """Whether the quantizer is still working on its last policy.

        Raises:
            RunError: it has failed.
        """
        if self._packing is None:
            return False
        done, _ = self._ray.wait([self._packing], timeout=0)
        return not done

    def publish(self, version: int, policy: FullPolicy) -> None:
        """Hands a policy to the quantizer.

        Raises:
            RunError: there is not enough room for it in Ray's shared memory, nor on its disk.
        """
        try:
            reference = self._ray.put(policy)
        except self._ray.exceptions.RayError as error:
            reason = str(error).partition("\n")[0]
            raise RunError(f"Ray does not take the weights: {reason}; {GO_ON}") from error
        self._packing = self._quantizer.pack.remote(version, reference)

    def published(self, patience: float = 0.0) -> bool:
        """Returns whether the last policy is published within ``patience`` seconds; it is lost if the quantizer dies.

        Raises:
            RunError: it could not be packed.
        """
        if self._packing is None:
            return False
        try:
            self._ray.get(self._packing, timeout=patience)
        except self._ray.exceptions.RayTaskError as error:
            raise _failure("the quantizer", error) from error
        except self._ray.exceptions.RayError:  # it died, or takes longer
            return False
        return True

    # Actors

    def start(self, rank: int, steps: int) -> None:
        """Starts or replaces an actor, and asks it to begin; its earlier lives have taken ``steps`` steps."""
        order = {**self._order, "rank": rank, "life": self.lives[rank], "steps": steps}
        self._actors[rank] = self._ray.remote(Actor).options(num_cpus=1, max_restarts=0).remote(order, self._quantizer)
        self._orders[self._actors[rank].begin.remote()] = rank

    def ask(self, rank: int, count: int) -> None:
        """Requests a chunk of this number of steps from an actor, after its earlier requests."""
        self._orders[self._actors[rank].collect.remote(count)] = rank

    def receive(self) -> tuple[int, Any] | None:
        """Returns the rank of an actor and its answer; None if no actor answers within half a second.

        Each actor's answers are in the order of its steps. If several actors have answered, the oldest order is first.

        Returns:
            A :class:`Chunk`; or the initial observations, (n, observation), of an actor.

        Raises:
            ActorDied: an actor died; its orders are dropped.
            RunError: an actor has failed.
        """
        order = self._oldest_answered()
        if order is None:
            return None
        rank = self._orders.pop(order)
        try:
            answer = self._ray.get(order, timeout=_ANSWER)
        except self._ray.exceptions.RayTaskError as error:
            raise _failure(f"actor {rank + 1} of {self._keys.count}", error) from error
        except self._ray.exceptions.RayError as error:
            self._orders = {order: owner for order, owner in self._orders.items() if owner != rank}
            self.lives[rank] += 1
            self._deaths[rank] += 1
            if self._deaths[rank] >= _MOST_DEATHS:
                raise RunError(
                    f"actor {rank + 1} of {self._keys.count} has died {_MOST_DEATHS} times before it did anything; if"
                    " nobody kills it, memory may have run out: choose fewer actors; " + GO_ON
                ) from error
            raise ActorDied(rank) from error
        self._deaths[rank] = 0
        return rank, answer

    def _oldest_answered(self) -> Any:
        """Returns the oldest order with an answer, among the first order of each actor; None without answers."""
        first: dict[int, Any] = {}
        for order, rank in self._orders.items():
            first.setdefault(rank, order)
        orders = list(first.values())
        # All that are ready, since for num_returns=1 Ray would return any of them
        ready, _ = self._ray.wait(orders, num_returns=len(orders), timeout=0)
        if not ready:
            ready, _ = self._ray.wait(orders, num_returns=1, timeout=_LOOK)
        return ready[0] if ready else None

    def call(self, rank: int, method: str, *arguments: Any) -> Any:
        """Calls a method of an actor, which runs after all earlier calls, and returns its result.

        Raises:
            RunError: it fails, or dies, or takes too long.
        """
        try:
            return self._ray.get(getattr(self._actors[rank], method).remote(*arguments), timeout=_ANSWER)
        except self._ray.exceptions.RayTaskError as error:
            raise _failure(f"actor {rank + 1} of {self._keys.count}", error) from error
        except self._ray.exceptions.RayError as error:
            raise RunError(f"actor {rank + 1} of {self._keys.count} has died; {GO_ON}") from error

    def close(self) -> None:
        """Kills the quantizer and all actors."""
        for actor in (self._quantizer, *filter(None, self._actors)):
            with suppress(Exception):  # Ray may raise any error for an actor that has died
                self._ray.kill(actor)


def _failure(name: str, error: Any) -> RunError:
    """Returns an error that describes the failure of a Ray process in one line."""
    cause = error.cause
    if isinstance(cause, RoundoffError):
        return RunError(str(cause))
    reason = str(cause).partition("\n")[0]
    return RunError(f"{name} has failed: {type(cause).__name__}: {reason}")
