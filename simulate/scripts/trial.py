"""One run of a script under a policy, in a separate process; :mod:`.blaming` starts it.

A :class:`TrialOrder` has its instructions; see :mod:`.processes`.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from roundoff.current_run import part_of
from roundoff.errors import RoundoffError
from roundoff.files import read_json, write_json

from ..blame import Over, everywhere, units_of
from ..dispatch.simulation import Simulation
from ..policy.policy import Policy
from ..watching.lost_numbers import SteppedOptimizers, left_behind
from .processes import LoggedValues, Order, received
from .running import end_as_python, run_as_main, show_as_python


@dataclass(frozen=True)
class TrialOrder(Order):
    """The instructions for a trial, which leaves a :class:`TrialOutcome`."""

    over: Over
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
        """Reads the outcome in a file; an empty one without the file."""
        if not path.exists():
            return cls()
        outcome = cls(**read_json(path))
        return replace(outcome, logged={name: float(value) for name, value in outcome.logged.items()})

    def write(self, path: str) -> None:
        """Writes the outcome to a file, with numbers as text, since JSON lacks NaN."""
        logged = {name: repr(value) for name, value in self.logged.items()}
        write_json(path, {**asdict(self), "logged": logged})


def main() -> None:
    """Runs the script, and leaves its outcome."""
    order, script = received(TrialOrder)
    assert order.policy is not None
    policy = Policy.parse(order.policy)
    simulation = Simulation(
        everywhere(policy) if order.learn else policy, seed=order.seed, warn_unused=False, leave_moves=not order.learn
    )
    logged = LoggedValues()
    with part_of(logged), SteppedOptimizers() as stepped:
        error = run_as_main(script, simulation)
    units = sorted(units_of(simulation, order.over)) if order.learn else []
    lost = left_behind(simulation.last_read, stepped)
    refusal = str(error) if isinstance(error, RoundoffError) else None
    TrialOutcome(units, logged.values, refusal, lost).write(order.outcome)
    show_as_python(error)
    end_as_python(error)
