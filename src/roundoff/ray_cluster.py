"""Connects to Ray, on a cluster or only on this machine."""

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
_CLUSTERS = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"  # has an effect on any system; 0: Ray listens only at 127.0.0.1
_SET_HERE: set[str] = set()
"""The environment variables that were set here for a local Ray."""


class ClusterError(RoundoffError):
    """No Ray cluster was found, or Ray does not start."""


def connect(address: str | None = None, **local: Any) -> Any:
    """Connects this process to Ray, and returns its module; ``ray.shutdown()`` leaves it.

    Args:
        address: Address of the cluster, as for ``ray.init``; None for the cluster named by RAY_ADDRESS, or else Ray is
            started on this machine, and ends with the connection. It then listens only on the loopback interface, and
            requires a token that this process and those it starts have.
        local: further arguments of ``ray.init`` if Ray is started on this machine.

    Raises:
        MissingExtraError: Ray is not installed.
        ClusterError: the cluster does not answer, or Ray does not start.
    """
    address = address or os.environ.get("RAY_ADDRESS")
    _configure(alone=not address)
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_worker_niceness", "0")  # Ray's own is 15, with which actors wait for a busy learner
    with from_extras():
        import ray  # noqa: PLC0415  slow
    _check_answer(address or "")
    try:
        with _kept_signal_handlers():
            ray.init(
                address=address or "local", log_to_driver=False, logging_level="ERROR", configure_logging=True,
                **({} if address else local),
            )  # fmt: skip
    except (ConnectionError, OSError, RuntimeError, ValueError) as error:
        reason = str(error).partition("\n")[0]
        problem = f"no Ray cluster at {address}" if address else "Ray does not start on this machine"
        raise ClusterError(f"{problem}: {reason}") from error
    return ray


def _configure(*, alone: bool) -> None:
    """Configures Ray, before its import, to run only on this machine, out of reach of others, or on a cluster.

    Ray on Linux listens on all interfaces unless clusters are disabled; then it keeps to one machine, as on macOS and
    Windows. A user's own settings stay.
    """
    for name in _SET_HERE:
        os.environ.pop(name, None)
    _SET_HERE.clear()
    variables = {_CLUSTERS: "0", "RAY_AUTH_MODE": "token"} if alone else {}
    if alone and not {"RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"} & os.environ.keys():
        variables["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
    _SET_HERE.update(variables.keys() - os.environ.keys())
    os.environ.update({name: variables[name] for name in _SET_HERE})
    if constants := sys.modules.get("ray._private.ray_constants"):  # imported already, and has read all this
        vars(constants)["ENABLE_RAY_CLUSTER"] = os.environ.get(_CLUSTERS, "1") not in ("0", "false")
        core = sys.modules["ray._raylet"]
        core.Config.initialize("")
        core.AuthenticationTokenLoader.instance().reset_cache()


def _check_answer(address: str) -> None:
    """Raises ClusterError if the cluster does not answer; Ray itself would notice only after minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdecimal():
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_SECONDS_TO_ANSWER).close()
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ClusterError(f"no Ray cluster at {address}: {reason}; give the one that `ray start` printed") from error


@contextmanager
def _kept_signal_handlers() -> Iterator[None]:
    """Restores the handler of SIGTERM after the block, as Ray replaces it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
