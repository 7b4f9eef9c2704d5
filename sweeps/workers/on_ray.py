"""Workers on the nodes of a Ray cluster, which share the sweep's folder.

On its node each worker is an actor of Ray that keeps a worker process as on one machine, and relays the messages of
both sides. Ray finds the place and reports its loss; everything else works as it does locally: results are written
into the run's folder by the process that trains, and its lease keeps others away.
"""

from __future__ import annotations

import os
import queue
import threading
import uuid
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, final

from roundoff.ray_cluster import connect

from ...agents import guarded_folder
from ..errors import SweepError
from .local import WorkerProcess


@final
class RayExecutor:
    """An ``Executor`` on a Ray cluster; connects to it at once.

    Args:
        limit: workers at a time; None for the number that the cluster has room for.
        address: the address of the cluster, as ``ray.init`` takes it; None for the cluster named by RAY_ADDRESS, or
            else a cluster of only this machine, which ends with the sweep.
        cpus: the CPUs of a node for each run; may be a fraction.
        gpus: the GPUs of a node for each run; may be a fraction.

    Raises:
        MissingExtraError: Ray is not installed.
        ClusterError: no cluster was found.
        SweepError: the cluster lacks room for a run.
    """

    is_local = False
    tries = 5  # a cluster may lose several nodes in the time of a long run

    def __init__(
        self, limit: int | None = None, address: str | None = None, cpus: float = 1.0, gpus: float = 0.0
    ) -> None:
        self._ending = ExitStack()
        local: dict[str, Any] = {}
        if not (address or os.environ.get("RAY_ADDRESS")):  # Ray starts a cluster of this machine only
            local = {"include_dashboard": False, "_temp_dir": self._ending.enter_context(guarded_folder())}
        try:
            self._ray = connect(address, **local)
        except BaseException:
            self._ending.close()
            raise
        self._cpus, self._gpus = cpus, gpus
        self._probe: Path | None = None
        # The number of runs that fit onto the existing nodes
        fitting = 0  # a run cannot use two nodes, so each node counts by itself
        for node in self._ray.nodes():
            if node["Alive"]:
                demand = (("CPU", self._cpus), ("GPU", self._gpus))
                fitting += int(min(node["Resources"].get(name, 0.0) / needed for name, needed in demand if needed))
        if fitting < 1:
            self.close()
            raise SweepError(
                f"the Ray cluster has no node with room for a run, which takes {cpus:g} CPUs and {gpus:g} GPUs;"
                " ask for less with --cpus-per-run and --gpus-per-run, or add nodes"
            )
        self.limit = min(limit or fitting, fitting)

    def start(self, log: Path, on_message: Callable[[dict[str, Any] | None], None]) -> RayWorker:
        """Asks Ray for a place; the worker sends its first message once it has one."""
        log = log.absolute()
        if self._probe is None:
            # A node that does not see this file does not share the folder.
            self._probe = log.parent / f".shared-{uuid.uuid4().hex}"
            self._probe.touch()
        actor = (
            self._ray.remote(_Relay)
            .options(num_cpus=self._cpus, num_gpus=self._gpus, max_restarts=0, max_concurrency=4)
            .remote(str(log), str(self._probe))
        )
        return RayWorker(self._ray, actor, on_message)

    def close(self) -> None:
        """Leaves the cluster."""
        if self._probe:
            with suppress(OSError):
                self._probe.unlink()
        self._ray.shutdown()
        self._ending.close()


@final
class RayWorker:
    """A ``Worker`` somewhere in the cluster."""

    def __init__(self, ray: Any, actor: Any, on_message: Callable[[dict[str, Any] | None], None]) -> None:
        self._ray, self._actor = ray, actor
        self._reason, self._placed = "its end was not explained", False
        self._ended = threading.Event()
        threading.Thread(target=self._listen, args=(on_message,), daemon=True).start()

    def send(self, order: dict[str, Any]) -> None:
        """Gives it a run."""
        self._actor.send.remote(order)

    def stop(self) -> None:
        """Asks it to save a checkpoint and end."""
        if self._placed:
            self._actor.stop.remote()
        else:  # it may wait for its place for ever, and has nothing to save
            self._ray.kill(self._actor)

    def wait(self, seconds: float) -> None:
        """Waits for its end, and enforces it."""
        self._ended.wait(seconds)
        self._ray.kill(self._actor)  # also gives its place to others

    def death(self) -> str:
        """Describes how the worker died."""
        return self._reason

    def _listen(self, on_message: Callable[[dict[str, Any] | None], None]) -> None:
        try:
            while True:
                messages, reason = self._ray.get(self._actor.receive.remote())
                self._placed = True
                for message in messages:
                    on_message(message)
                if reason:
                    self._reason = reason
                    break
        except Exception as error:  # noqa: BLE001  of Ray's many kinds, all mean that it is lost
            lines = [line.strip() for line in str(error).splitlines() if line.strip()]
            self._reason = f"its node or its process was lost ({lines[0] if lines else type(error).__name__})"
        self._ended.set()
        on_message(None)


class _Relay:
    """The actor on a node: relays messages to and from the worker process there."""

    def __init__(self, log: str, probe: str) -> None:
        import ray  # noqa: PLC0415  we are inside of it

        self._inbox: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._worker: WorkerProcess | None = None
        if Path(probe).exists():
            self._worker = WorkerProcess(Path(log), self._inbox.put)
        else:
            node = ray.util.get_node_ip_address()
            reason = (
                f"{Path(log).parent.parent}: the Ray node {node} does not see this folder; with the executor ray it"
                " must be on a file system that all nodes share, under the same path"
            )
            self._inbox.put({"event": "unusable", "reason": reason})

    def send(self, order: dict[str, Any]) -> None:
        if self._worker:
            self._worker.send(order)

    def stop(self) -> None:
        if self._worker:
            self._worker.stop()
        else:
            self._inbox.put(None)

    def receive(self) -> tuple[list[dict[str, Any]], str]:
        """Returns the messages since the last call, at least one; and the reason, if the process has ended."""
        messages: list[dict[str, Any]] = []
        while True:
            message = self._inbox.get()
            if message is None:
                return messages, self._worker.death() if self._worker else "it was never started"
            messages.append(message)
            if self._inbox.empty():
                return messages, ""
