"""Ray, and the processes on it for one run: its quantizer and its actors, from their start to their end."""

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

_ANSWER = 120.0  # seconds that one which has answered before may take
_GRACE = 30.0  # that a machine may take to end all of it
_LOOK = 0.5  # seconds until the caller is asked whether it is to stop
GO_ON = "the same command goes on from the last checkpoint"
_MOST_DEATHS = 10  # of an actor, one after the other
_SHORT = 18  # letters of the temporary folder; names of sockets in it have 107 at most, and Ray adds 65
_STORE = 512 * 2**20  # bytes of Ray's shared memory: fifteen times the weights of 3 x 2048 units


class ActorDied(Exception):  # noqa: N818  no error of the run's: another one takes its place
    """The process of an actor, or its node, is gone."""


@contextmanager
def connected(processes: int) -> Iterator[Any]:
    """Ray, for the block: as this process has it already, at RAY_ADDRESS, or on this machine for the block only.

    Args:
        processes: the number of processes that will run on it, with a CPU each.

    Raises:
        MissingExtraError: Ray is not installed.
        ClusterError: no cluster is found at RAY_ADDRESS, or Ray does not start.
    """
    known = sys.modules.get("ray")
    if known and known.is_initialized():
        yield known
        return
    with ExitStack() as ending:
        local: dict[str, Any] = {}
        if not os.environ.get("RAY_ADDRESS"):
            local = {"num_cpus": processes, "object_store_memory": _STORE, "include_dashboard": False}
            local["_temp_dir"] = ending.enter_context(guarded_folder())
        ray = connect(**local)
        ending.callback(ray.shutdown)
        yield ray


@contextmanager
def guarded_folder() -> Iterator[str]:
    """A folder for Ray in a private folder; both are removed, and the processes using it are ended.

    They are also removed when this process is killed. Ray opens its folder to all users.
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
    """The Ray processes of a run, for the block; None if its config does not have actors; see :func:`connected`."""
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
    """The quantizer and the actors of a run, which come back when they die.

    The quantizer is started again by Ray, and has then nothing to give until something is published. An actor is
    started again here, since it has to begin other episodes.

    Args:
        ray: connected.
        config: the config of the run.
        opening: the arguments for opening an environment, by name.

    Attributes:
        lives: how often each actor has been started again, by rank.
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
        self._orders: dict[Any, int] = {}  # what actors have been asked for, and whom

    @property
    def process_ids(self) -> list[int]:
        """The process ids of the quantizer and of the actors."""
        asked = [one.process_id.remote() for one in (self._quantizer, *self._actors)]
        ids: list[int] = self._ray.get(asked, timeout=_ANSWER)
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
        """Whether the last policy is published within seconds; it may be lost with the quantizer.

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
        """Starts or replaces an actor that has taken ``steps``, and asks it to begin."""
        order = {**self._order, "rank": rank, "life": self.lives[rank], "steps": steps}
        self._actors[rank] = self._ray.remote(Actor).options(num_cpus=1, max_restarts=0).remote(order, self._quantizer)
        self._orders[self._actors[rank].begin.remote()] = rank

    def ask(self, rank: int, count: int) -> None:
        """Requests a chunk of this number of steps from an actor, after its earlier requests."""
        self._orders[self._actors[rank].collect.remote(count)] = rank

    def receive(self) -> tuple[int, Any] | None:
        """Returns the rank of an actor and its answer; None if no actor has answered for a moment.

        Each actor's answers come in the order of its steps. Where several actors have answered, the oldest order comes
        first.

        Returns:
            A :class:`Chunk`; or the initial observations, (n, observation), of an actor.

        Raises:
            ActorDied: it died; its orders are void.
            RunError: it has failed.
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
            self._orders = {order: whose for order, whose in self._orders.items() if whose != rank}
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
        """The oldest order that has an answer, among the first of each actor; None if none has."""
        first: dict[int, Any] = {}
        for order, rank in self._orders.items():
            first.setdefault(rank, order)
        asked = list(first.values())
        ready, _ = self._ray.wait(asked, num_returns=len(asked), timeout=0)  # asked for one, Ray names any of them
        if not ready:
            ready, _ = self._ray.wait(asked, num_returns=1, timeout=_LOOK)
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
        """Ends all of them."""
        for one in (self._quantizer, *filter(None, self._actors)):
            with suppress(Exception):  # whatever Ray says of one that is gone
                self._ray.kill(one)


def _failure(who: str, error: Any) -> RunError:
    """Returns an error that describes the failure of a Ray process in one line."""
    cause = error.cause
    if isinstance(cause, RoundoffError):
        return RunError(str(cause))
    reason = str(cause).partition("\n")[0]
    return RunError(f"{who} has failed: {type(cause).__name__}: {reason}")
