"""One run of a script under a policy, in a separate process; :mod:`.blaming` starts it.

Its first argument is a JSON object with the fields of :class:`TrialOrder`; the script and its arguments follow.
"""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from roundoff.current_run import part_of
from roundoff.errors import RoundoffError
from roundoff.files import read_json, write_json
from roundoff.processes import end_with

from ..blame import Over, everywhere, units_of
from ..dispatch.simulation import Simulation
from ..policy.policy import Policy
from ..presence.entering import SimulationWarning
from ..watching.lost_numbers import SteppedOptimizers, left_behind
from .running import Script, end_as_python, run_as_main, show_as_python

COMMAND = (
    sys.executable,
    "-c",
    "import sys\nif not sys.flags.safe_path: sys.path.pop(0)\nfrom roundoff.simulate.scripts.trial import main\nmain()",
)
"""Starts this program; nothing is imported from the folder that it starts in."""


@dataclass(frozen=True)
class TrialOrder:
    """The instructions for a trial."""

    policy: dict[str, Any]
    over: Over
    seed: int
    threads: int | None
    imports: list[str]
    is_module: bool
    parent: int
    """The process that started it; it ends with that process."""
    outcome: str
    """Path of the file to leave an :class:`TrialOutcome` in."""
    learn: bool
    """Whether to find out which units run; otherwise moves pass values on unchanged."""


@dataclass(frozen=True)
class TrialOutcome:
    """The outcome that a trial leaves; empty if the process was killed."""

    units: list[str] = field(default_factory=list)
    logged: dict[str, float] = field(default_factory=dict)
    """The last values of ``roundoff.log``."""
    refusal: str | None = None
    """The reason why the simulation cannot run the script."""
    lost: str = ""
    """The values that were not finite when the script had ended, though it may not have printed them."""

    @classmethod
    def read(cls, path: Path) -> TrialOutcome:
        """The one in a file."""
        if not path.exists():
            return cls()
        found = cls(**read_json(path))
        return replace(found, logged={name: float(value) for name, value in found.logged.items()})

    def write(self, path: str) -> None:
        """Writes it to a file; numbers as text, since JSON lacks NaN."""
        logged = {name: repr(value) for name, value in self.logged.items()}
        write_json(path, {**asdict(self), "logged": logged})


class _Logged:
    """Keeps the last value of each name."""

    def __init__(self) -> None:
        self.values: dict[str, float] = {}

    def log(self, step: int, values: Mapping[str, Any]) -> None:  # noqa: ARG002  the last is what counts
        self.values.update((name, float(value)) for name, value in values.items())

    def checkpoint(self, state: Any, every: float) -> None:
        """A trial is never continued."""

    def restore(self) -> None:
        """A trial starts over each time."""


def main() -> None:
    """Runs the script, and leaves its outcome."""
    order = TrialOrder(**json.loads(sys.argv[1]))
    end_with(order.parent)
    script = Script(sys.argv[2], tuple(sys.argv[3:]), order.is_module)
    if not sys.flags.safe_path:
        sys.path.insert(0, "")  # the place of the script's folder
    for module in order.imports:
        import_module(module)
    if order.threads is not None:
        torch.set_num_threads(order.threads)
    policy = Policy.parse(order.policy)
    warnings.simplefilter("ignore", SimulationWarning)  # what is printed is looked through for numbers
    simulation = Simulation(
        everywhere(policy) if order.learn else policy, seed=order.seed, warn_unused=False, leave_moves=not order.learn
    )
    logged = _Logged()
    with part_of(logged), SteppedOptimizers() as stepped:
        error = run_as_main(script, simulation)
    units = sorted(units_of(simulation, order.over)) if order.learn else []
    lost = left_behind(simulation.last_read, stepped)
    refusal = str(error) if isinstance(error, RoundoffError) else None
    TrialOutcome(units, logged.values, refusal, lost).write(order.outcome)
    show_as_python(error)
    end_as_python(error)
