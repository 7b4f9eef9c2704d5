"""Finds the operations of a script that cannot be done in a format: delta debugging, with a process for each run."""

from __future__ import annotations

import signal
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from ...formats import Format, FormatError
from ..blame import HIGH, Blame, BlameError, Over, Trial, Trials, search, with_formats
from ..policy.policy import Policy
from .measures import Measure
from .processes import ScriptProcesses
from .running import Script
from .trial import TrialOrder, TrialOutcome

_LONGEST = 20
_GRACE = 60.0
"""A trial of more than this many seconds beyond ``_LONGEST`` times the duration of the first has failed."""
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

    The search is the one in :func:`roundoff.blame`, with a process for each trial; Ctrl-C ends both. A trial fails if
    the measure is not reached, no number is given for it, the script ends with another exit status than 0, or it takes
    more than a minute longer than 20 times the first trial. It also fails if the weights, or the last value read, are
    not finite at the end, unless that is also so without rounding.

    The script seeds its generators itself; ``imports`` are modules that register formats, and ``on_trial`` receives a
    line after each trial.

    Raises:
        BlameError: the script also fails in high precision, or with all units in high precision, or was killed.
        ScriptError: the script does not exist.
        FormatError: the simulation cannot run it.
    """
    if not script.is_module:
        _ = script.file  # raises ScriptError if it does not exist
    with (
        tempfile.TemporaryDirectory(prefix="roundoff-blame-") as folder,
        ScriptProcesses(TrialOrder, together=True) as processes,
    ):
        outcome = str(Path(folder) / "outcome.json")
        order = TrialOrder(
            policy=policy.as_json(), over=over, seed=seed, threads=threads, imports=list(imports),
            is_module=script.is_module, outcome=outcome, learn=True,
        )  # fmt: skip
        return search(_ScriptTrials(script, policy, measure, order, processes, on_trial))


class _ScriptTrials(Trials):
    noun = "script"

    def __init__(
        self, script: Script, policy: Policy, measure: Measure, order: TrialOrder,
        processes: ScriptProcesses[TrialOrder], on_trial: Callable[[str], None],
    ) -> None:  # fmt: skip
        assert isinstance(policy.format, Format)
        super().__init__(policy.format, order.over, on_trial)
        self._script, self._policy, self._measure, self._order = script, policy, measure, order
        self._processes = processes
        self._limit: float | None = None
        self._loses_unrounded = False  # whether values are also not finite without rounding

    def watched(self, *, rounded: bool) -> Trial:
        if rounded:
            return self._run(self._policy, learn=True)
        start = time.monotonic()
        trial = self._run(Policy(HIGH), learn=True)
        self._limit = _GRACE + _LONGEST * (time.monotonic() - start)
        return trial

    def under(self, formats: Mapping[str, str]) -> Trial:
        return self._run(with_formats(self._policy, self.over, formats), learn=False)

    def _run(self, policy: Policy, *, learn: bool) -> Trial:
        order = replace(self._order, policy=policy.as_json(), learn=learn)
        Path(order.outcome).unlink(missing_ok=True)
        status, output, _ = self._processes.run(order, self._script, self._limit)
        outcome = TrialOutcome.read(Path(order.outcome))
        if outcome.refusal is not None:
            raise FormatError(outcome.refusal)
        if status is not None and status < 0:
            raise BlameError(f"the script was killed by signal {-status} ({signal.Signals(-status).name})")
        number = None if status != 0 else self._measure.of(output, outcome.logged)
        if number is not None:
            passed, message = self._measure.passes(number), self._measure.describe(number)
            if self._limit is None:
                self._loses_unrounded = bool(outcome.lost)
            elif outcome.lost and passed and not self._loses_unrounded:
                passed, message = False, f"{message}, but {outcome.lost}"
            return Trial(passed, message, outcome.units)
        if status is None:
            message = f"not finished after {self._limit:.0f} s"
        elif status:
            message = f"exit status {status} ({(output.strip().splitlines() or ['no message'])[-1]})"
        else:
            message = f"no number for {self._measure.name}"
        last = "".join(f"\n  {line}" for line in output.splitlines()[-_LAST_LINES:])
        return Trial(False, message, outcome.units, f"; it printed last:{last}" if last else "; it printed nothing")
