"""Connecting to Ray, on a cluster or only on this machine."""

from __future__ import annotations

import os
import secrets
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from roundoff.errors import RoundoffError
from roundoff.extras import from_extras

_SECONDS_TO_ANSWER = 10.0
_CLUSTERS = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"  # on any system; 0: all of Ray listens at 127.0.0.1
_OURS: set[str] = set()
"""The environment variables that were set here for a Ray of our own."""


class ClusterError(RoundoffError):
    """No Ray cluster was found, or Ray does not start."""


def connect(address: str | None = None, **local: Any) -> Any:
    """Connects this process to Ray, and returns its module; ``ray.shutdown()`` leaves it.

    Args:
        address: Address of the cluster, as for ``ray.init``; None for the cluster named by RAY_ADDRESS, or else Ray is
            started on this machine, and ends with the connection. It then listens only on the loopback interface, and
            asks for a token that this process and those it starts have.
        local: more arguments of ``ray.init``, for that last case.

    Raises:
        MissingExtraError: Ray is not installed.
        ClusterError: nobody answers there, or Ray does not start.
    """
    address = address or os.environ.get("RAY_ADDRESS")
    _keep_to_itself(alone=not address)
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_worker_niceness", "0")  # Ray's own is 15, with which actors wait for a busy learner
    with from_extras():
        import ray  # noqa: PLC0415  slow
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


def _keep_to_itself(*, alone: bool) -> None:
    """Configures Ray, before its import, to run only on this machine, out of reach of others, or on a cluster.

    Ray on Linux listens on all interfaces unless clusters are disabled; then it keeps to one machine, as on macOS and
    Windows. A user's own settings stay.
    """
    for name in _OURS:
        os.environ.pop(name, None)
    _OURS.clear()
    wanted = {_CLUSTERS: "0", "RAY_AUTH_MODE": "token"} if alone else {}
    if alone and not {"RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"} & os.environ.keys():
        wanted["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
    _OURS.update(wanted.keys() - os.environ.keys())
    os.environ.update({name: wanted[name] for name in _OURS})
    if constants := sys.modules.get("ray._private.ray_constants"):  # imported already, and has read all this
        vars(constants)["ENABLE_RAY_CLUSTER"] = os.environ.get(_CLUSTERS, "1") not in ("0", "false")
        core = sys.modules["ray._raylet"]
        core.Config.initialize("")
        core.AuthenticationTokenLoader.instance().reset_cache()


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
    """Restores the handler of SIGTERM after the block, as Ray replaces it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
