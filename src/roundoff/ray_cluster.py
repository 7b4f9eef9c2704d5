"""Connecting to Ray, on a cluster or on this machine alone."""

from __future__ import annotations

import os
import signal
import socket
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from roundoff.errors import RoundoffError
from roundoff.extras import from_extras

if TYPE_CHECKING:
    from collections.abc import Iterator

_SECONDS_TO_ANSWER = 10.0


class ClusterError(RoundoffError):
    """There is no Ray cluster where one was looked for, or Ray does not start."""


def connect(address: str | None = None, **local: Any) -> Any:
    """Connects this process to Ray, and returns its module; ``ray.shutdown()`` leaves it.

    Args:
        address: of the cluster, as ``ray.init`` takes it; None for the one that RAY_ADDRESS names, or else Ray is
            started on this machine, and ends with the connection.
        local: more arguments of ``ray.init``, for that last case.

    Raises:
        MissingExtraError: Ray is not installed.
        ClusterError: nobody answers there, or Ray does not start.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_worker_niceness", "0")  # Ray's own is 15, with which actors wait for a busy learner
    with from_extras():
        import ray  # noqa: PLC0415  slow
    address = address or os.environ.get("RAY_ADDRESS")
    _reach(address or "")
    try:
        with _own_signals():
            ray.init(
                address=address or "local", log_to_driver=False, logging_level="ERROR", configure_logging=True,
                **({} if address else local),
            )  # fmt: skip
    except (ConnectionError, OSError, RuntimeError, ValueError) as error:
        reason = str(error).partition("\n")[0]
        what = f"no Ray cluster at {address}" if address else "Ray does not start on this machine"
        raise ClusterError(f"{what}: {reason}") from error
    return ray


def _reach(address: str) -> None:
    """Raises ClusterError if nobody answers, which Ray itself finds out after minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdecimal():
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_SECONDS_TO_ANSWER).close()
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ClusterError(f"no Ray cluster at {address}: {reason}; give the one that `ray start` printed") from error


@contextmanager
def _own_signals() -> Iterator[None]:
    """Ray takes SIGTERM for itself; after the block it is whose it was."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
