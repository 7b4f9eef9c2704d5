"""Finds the operations of a script that cannot be done in a format: delta debugging, with a process for each run."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from roundoff.processes import ChildProcess

from ...formats import FormatError
from ..blame import HIGH, Blame, BlameError, Over, rule_for, search
from ..policy.policy import Policy
from .trial import COMMAND, Order, TrialOutcome

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .measures import Measure
    from .running import Script

_LONGEST = 20
_GRACE = 60.0
"""A trial of more than this many seconds beyond ``_LONGEST`` times what the first one took has failed."""
_LAST_LINES = 5


def blame_script(
    script: Script,
    policy: Policy,
    measure: Measure,
    *,
    over: Over = "operation",
    seed: int = 0,
    threads: int | None = None,
    imports: Sequence[str] = (),
    on_trial: Callable[[str], None] = lambda _: None,
) -> Blame:
    """Finds a minimal set of operations that must stay in high precision for a script to pass.

    The search is that of :func:`roundoff.blame`, with a process for each trial; Ctrl-C ends both. A trial fails if
    the measure is not reached, no number is given for it, the script ends with another exit status than 0, or it takes
    more than a minute longer than 20 times the first trial. So has one whose weights, or whose last number read, are
    not finite at the end, unless that is so without rounding, too.

    Args:
        script: which; it seeds its generators itself.
        policy: under which it fails.
        measure: what it must reach.
        over: what to blame: operations, modules or roles.
        seed: of stochastic rounding.
        threads: of PyTorch in each trial; None for its own choice.
        imports: modules that register formats.
        on_trial: told of every trial, in a line.

    Raises:
        BlameError: the script fails in high precision too, or with all units in high precision, or was killed.
        ScriptError: there is no such script.
        FormatError: the simulation cannot run it.
    """
    if not script.is_module:
        _ = script.file
    with tempfile.TemporaryDirectory(prefix="roundoff-blame-") as folder:
        outcome = str(Path(folder) / "outcome.json")
        order = Order(
            policy=policy.as_json(), over=over, seed=seed, threads=threads, imports=list(imports),
            is_module=script.is_module, parent=os.getpid(), outcome=outcome, learn=True,
        )  # fmt: skip
        trials = _Trials(script, policy, measure, order, on_trial)
        trials.check_unrounded()
        return search(trials, policy, over)


class _Result(NamedTuple):
    passed: bool
    what: str
    """What came of it, in words."""
    output: str
    number: float | None


class _Trials:
    """Runs of the script, of which none is repeated."""

    def __init__(
        self, script: Script, policy: Policy, measure: Measure, order: Order, on_trial: Callable[[str], None]
    ) -> None:
        self._script, self._policy, self._measure = script, policy, measure
        self._order, self._on_trial = order, on_trial
        self._units: set[str] = set()
        self._known: dict[object, bool] = {}
        self._limit: float | None = None
        self._lost_anyway = False  # without rounding, too
        self.trials = 0

    def check_unrounded(self) -> None:
        """Runs it without rounding.

        Raises:
            BlameError: it fails.
        """
        start = time.monotonic()
        result = self._run(Policy(HIGH), "without rounding", learn=True)
        self._limit = _GRACE + _LONGEST * (time.monotonic() - start)
        if result.passed:
            return
        last = "".join(f"\n  {line}" for line in result.output.splitlines()[-_LAST_LINES:])
        printed = f"; it printed last:{last}" if last else "; it printed nothing"
        reason = "" if result.number is not None else printed
        raise BlameError(f"the script fails in its carrier, without any rounding, too ({result.what}){reason}")

    def passes_as_it_is(self) -> bool:
        """Whether it passes under its policy."""
        return self._run(self._policy, f"in {self._policy.format}", learn=True).passed

    def units(self) -> tuple[str, ...]:
        """What computed something."""
        return tuple(sorted(self._units))

    def keeps(self, high: Sequence[str], others: dict[str, str] | None = None) -> bool:
        """Whether it passes with ``high`` in the carrier and ``others`` in formats of their own."""
        formats = dict.fromkeys(sorted(high), HIGH) | (others or {})
        key = tuple(sorted(formats.items()))
        if key not in self._known:
            rules = [rule_for(self._order.over, unit, fmt) for unit, fmt in formats.items()]
            name = f"{len(high)} of {len(self._units)} {self._order.over}s in high precision"
            name += "".join(f", {unit} in {fmt}" for unit, fmt in (others or {}).items())
            self._known[key] = self._run(self._policy.with_rules(*rules), name, learn=False).passed
        return self._known[key]

    def _run(self, policy: Policy, name: str, *, learn: bool) -> _Result:
        self.trials += 1
        start = time.monotonic()
        result = self._judged(policy, learn=learn)
        seconds = time.monotonic() - start
        verdict = "passes" if result.passed else "fails"
        self._on_trial(f"trial {self.trials} ({seconds:.0f} s), {name}: {result.what}, {verdict}")
        return result

    def _judged(self, policy: Policy, *, learn: bool) -> _Result:
        order = Order(**{**asdict(self._order), "policy": policy.as_json(), "learn": learn})
        Path(order.outcome).unlink(missing_ok=True)
        status, output = _ran(order, self._script, self._limit)
        outcome = TrialOutcome.read(Path(order.outcome))
        self._units |= set(outcome.units)
        if outcome.refusal is not None:
            raise FormatError(outcome.refusal)
        if status is None:
            return _Result(False, f"not at its end after {self._limit:.0f} s", output, None)
        if status < 0:
            raise BlameError(f"the script was killed by signal {-status} ({signal.Signals(-status).name})")
        if status:
            last = (output.strip().splitlines() or ["no message"])[-1]
            return _Result(False, f"exit status {status} ({last})", output, None)
        number = self._measure.of(output, outcome.logged)
        if number is None:
            return _Result(False, f"no number for {self._measure.name}", output, None)
        if math.isnan(self._measure.bound):
            result = _Result(number == 1, "finite" if number else "not finite", output, number)
        else:
            result = _Result(self._measure.passes(number), f"{self._measure.name} {number:g}", output, number)
        if self._limit is None:
            self._lost_anyway = bool(outcome.lost)
        elif outcome.lost and result.passed and not self._lost_anyway:
            return result._replace(passed=False, what=f"{result.what}, but {outcome.lost}")
        return result


def _ran(order: Order, script: Script, limit: float | None) -> tuple[int | None, str]:
    """The exit status of a trial, None if it was stopped after ``limit`` seconds, and what it printed."""
    with tempfile.TemporaryFile() as printed:
        process = ChildProcess(
            [*COMMAND, json.dumps(asdict(order)), script.target, *script.arguments],
            stdout=printed, stderr=subprocess.STDOUT,
            environment={"PYTHONUNBUFFERED": "1"},  # both in the order in which they are printed
        )  # fmt: skip
        try:
            status = process.status(limit)
        finally:
            process.end(0.0, session=True)
        printed.seek(0)
        return status, printed.read().decode(errors="replace")
