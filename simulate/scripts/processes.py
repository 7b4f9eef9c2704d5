"""Processes that each run a script under a simulation: their orders, and the first steps of their ``main``.

The first argument of such a process is a JSON object with the fields of an :class:`Order`; the script and its arguments
follow.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib import import_module
from typing import Any, TypeVar

import torch

from roundoff.processes import ChildProcess, end_with

from ..presence.entering import SimulationWarning
from .running import Script


@dataclass(frozen=True)
class Order:
    """The instructions for a process that runs a script; the module of its class has the ``main`` that follows them."""

    policy: dict[str, Any] | None
    seed: int
    threads: int | None
    imports: list[str]
    is_module: bool
    parent: int
    """The process that started it; it ends with that process."""
    outcome: str
    """Path of what it leaves."""


_Order = TypeVar("_Order", bound=Order)


def run_ordered(
    order: Order, script: Script, limit: float | None = None, *, together: bool = False
) -> tuple[int | None, str, str]:
    """Runs a script in a separate process, as ordered.

    Args:
        order: the instructions.
        script: the script.
        limit: seconds after which the process is stopped.
        together: whether the output also has the errors, both in the order of printing.

    Returns:
        The exit status, None if the process was stopped; the output; and the errors.
    """
    # Nothing is imported from the folder that it starts in.
    program = f"import sys\nif not sys.flags.safe_path: sys.path.pop(0)\nfrom {order.__module__} import main\nmain()"
    with tempfile.TemporaryFile() as printed, tempfile.TemporaryFile() as errors:
        process = ChildProcess(
            [sys.executable, "-c", program, json.dumps(asdict(order)), script.target, *script.arguments],
            stdout=printed, stderr=subprocess.STDOUT if together else errors,
            environment={"PYTHONUNBUFFERED": "1"} if together else None,
        )  # fmt: skip
        try:
            status = process.status(limit)
        finally:
            process.end(0.0, session=True)
        for file in (printed, errors):
            file.seek(0)
        return status, printed.read().decode(errors="replace"), errors.read().decode(errors="replace")


def received(kind: type[_Order]) -> tuple[_Order, Script]:
    """Reads the order and the script of this process, and prepares the process for it."""
    order = kind(**json.loads(sys.argv[1]))
    end_with(order.parent)
    if not sys.flags.safe_path:
        sys.path.insert(0, "")  # the place of the script's folder
    for module in order.imports:
        import_module(module)
    if order.threads is not None:
        torch.set_num_threads(order.threads)
    warnings.simplefilter("ignore", SimulationWarning)  # what is printed is looked through for numbers
    return order, Script(sys.argv[2], tuple(sys.argv[3:]), order.is_module)


class LoggedValues:
    """Keeps the last value of each name that a script logs; or all values, named ``NAME at step N``."""

    def __init__(self, *, each_step: bool = False) -> None:
        self._each_step = each_step
        self.values: dict[str, float] = {}

    def log(self, step: int, values: Mapping[str, Any]) -> None:
        """Keeps the values."""
        where = f" at step {step}" if self._each_step else ""
        self.values.update((name + where, float(value)) for name, value in values.items())

    def checkpoint(self, state: Any, every: float) -> None:
        """Does nothing: the script is never continued."""

    def restore(self) -> None:
        """Does nothing: the script starts over each time."""
