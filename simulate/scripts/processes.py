"""Runs scripts under a simulation, each in a process: their orders, and the server that they are forked from."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from importlib import import_module
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any, Generic, Self, TypeVar

import torch

from roundoff.processes import ChildProcess, begin_session, end_with

from ..presence.entering import SimulationWarning
from .running import Script

_FORKS = sys.platform == "linux"
_ENDED_WITH_IT: list[Connection] = []  # connections that close when this process ends


@dataclass(frozen=True)
class Order:
    """The instructions for a process that runs a script; the module of its class has the ``main`` that follows them."""

    policy: dict[str, Any] | None
    seed: int
    threads: int | None
    imports: list[str]
    is_module: bool
    outcome: str
    """Path of the file that it writes its outcome to."""


_Order = TypeVar("_Order", bound=Order)


class ScriptProcesses(Generic[_Order]):
    """A context manager that runs scripts one after another, each in a separate process and session.

    Importing PyTorch takes seconds. On Linux one process imports it, and is forked for each script, so that scripts
    which do not seed their generators all begin with the same state. On other systems each has a new interpreter.

    Args:
        kind: the class of the orders.
        together: whether the output includes the errors, in the order of printing.
    """

    def __init__(self, kind: type[_Order], *, together: bool = False) -> None:
        self._kind, self._together = kind, together
        # Files without names, which the server and its forks inherit: nothing is left if this process is killed.
        self._printed, self._errors = tempfile.TemporaryFile(), tempfile.TemporaryFile()  # noqa: SIM115  closed at exit
        self._server: tuple[ChildProcess, Connection] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()
        self._printed.close()
        self._errors.close()

    def run(self, order: _Order, script: Script, limit: float | None = None) -> tuple[int | None, str, str]:
        """Runs a script as ordered.

        Args:
            order: the instructions.
            script: the script.
            limit: seconds after which the process is stopped.

        Returns:
            The exit status, None if the process was stopped; the output; and the errors.
        """
        for file in (self._printed, self._errors):
            file.seek(0)
            file.truncate()
        process, connection = self._server = self._server or self._start()
        session, status, has_ended = 0, None, False
        try:
            connection.send_bytes(json.dumps([asdict(order), script.target, script.arguments]).encode())
            session = int(connection.recv_bytes())
            if connection.poll(limit):
                status, has_ended = int(connection.recv_bytes()), True
        except (EOFError, ConnectionError):  # there is no server to fork it from, or the server was killed
            status, session = process.status(limit), 0
        finally:
            if not has_ended:
                self._end(session)
        for file in (self._printed, self._errors):
            file.seek(0)
        output, errors = (file.read().decode(errors="replace") for file in (self._printed, self._errors))
        return status, output, errors

    def _start(self) -> tuple[ChildProcess, Connection]:
        # Without the first entry of the path, so that nothing is imported from the folder that it starts in
        program = "import sys\nif not sys.flags.safe_path: sys.path.pop(0)\n"
        program += f"from {self._kind.__module__} import main\nmain()"
        connection, child_end = Pipe()
        with child_end:
            end = child_end.fileno()
            process = ChildProcess(
                [sys.executable, "-c", program, str(end), str(os.getpid())], descriptors=[end],
                stdout=self._printed, stderr=subprocess.STDOUT if self._together else self._errors,
                environment={"PYTHONUNBUFFERED": "1"} if self._together else None,
            )  # fmt: skip
        return process, connection

    def _end(self, session: int = 0) -> None:
        """Kills a script's session, and ends the server that it was forked from."""
        if session:
            with suppress(ProcessLookupError):
                os.killpg(session, signal.SIGKILL)
        if self._server is not None:
            process, connection = self._server
            self._server = None
            connection.close()
            process.end(0.0, session=True)


def received(kind: type[_Order]) -> tuple[_Order, Script]:
    """Waits for orders in the process that :class:`ScriptProcesses` starts; returns in a process for each of them."""
    descriptor, parent = sys.argv[1:]
    end_with(int(parent))
    connection, server = Connection(int(descriptor)), os.getpid()
    if _FORKS:
        import_module("torch._dynamo")  # takes seconds, which the first optimizer of each script would cost
    while True:
        try:
            fields, target, arguments = json.loads(connection.recv_bytes())
        except EOFError:
            os._exit(0)
        if not _FORKS or not (pid := os.fork()):
            break
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        connection.send_bytes(str(status).encode())
    # From here on this is the process of one script
    if _FORKS:
        begin_session()
        end_with(server)
    connection.send_bytes(str(os.getpid()).encode())
    if _FORKS:
        connection.close()
    _ENDED_WITH_IT.append(connection)
    return prepared(kind(**fields), Script(target, tuple(arguments)))


def prepared(order: _Order, script: Script) -> tuple[_Order, Script]:
    """Prepares this process for a script: imports, threads and warnings."""
    if not sys.flags.safe_path:
        sys.path.insert(0, "")  # run_as_main replaces it by the script's folder
    for module in order.imports:
        import_module(module)
    if order.threads is not None:
        torch.set_num_threads(order.threads)
    warnings.simplefilter("ignore", SimulationWarning)  # the output is searched for numbers
    return order, replace(script, is_module=order.is_module)


class LoggedValues:
    """Keeps the last value of each name that a script logs; or all values, named ``NAME at step N``."""

    def __init__(self, *, each_step: bool = False) -> None:
        self._each_step = each_step
        self.values: dict[str, float] = {}

    def log(self, step: int, values: Mapping[str, Any]) -> None:
        """Keeps the values of a step."""
        suffix = f" at step {step}" if self._each_step else ""
        self.values.update((name + suffix, float(value)) for name, value in values.items())

    def checkpoint(self, state: Any, every: float) -> None:
        """Does nothing: the script is never continued."""

    def restore(self) -> None:
        """Does nothing: the script starts over each time."""
