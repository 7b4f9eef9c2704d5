"""Writes the output of a run of any kind: log, evaluations, progress, numerics, crash and result."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

import torch

from roundoff.runs.folder import RunDirectory
from roundoff.runs.log import MetricsLog, NoLog
from roundoff.runs.result import Crash, Result

from ..quantization.quantization import Quantization
from ..sizes import KnownSizes, Sizes
from . import checkpoint
from .evaluate import Evaluation
from .profile import Profile, Stopwatch

if TYPE_CHECKING:
    from ...simulate import Simulation
    from ..optimizers.step_norms import StepNorms


_COUNTS = ("results", "overflow", "underflow", "subnormal", "infinite", "nan", "additions", "absorbed")


@final
class Numerics:
    """Turns the cumulative counts of an observing simulation into one record per interval.

    Args:
        simulation: the simulation of the agent; it observes.
        watched: the observers of the gradients of each network, by name; None: not observed.
    """

    def __init__(self, simulation: Simulation, watched: Mapping[str, StepNorms] | None = None) -> None:
        self._simulation, self._watched = simulation, watched or {}
        self._previous: dict[str, dict[str, int]] = {}  # Totals at the last record, by role.

    def record(self) -> dict[str, Any]:
        """Returns the counts since the last record, by role, with results by binary exponent.

        ``{"forward": {"results": 512, "overflow": 0, ..., "exponents": {"-3": 100, ...}}, ...}``: ``exponents`` has
        under k the number of results with a magnitude in [2^k, 2^(k+1)), without zeros and non-finite results.
        Exponents of the gradients of each network, without the loss scale, are under ``gradients of critic`` and so on.
        """
        # Totals by role: counts under their names, and the histogram under the exponents.
        report = self._simulation.report()
        totals: dict[str, dict[str, int]] = {}
        for role, rows in report.table.groupby("role"):
            totals[str(role)] = {name: int(rows[name].sum()) for name in _COUNTS}
        for role, exponent, results in report.histogram.itertuples(index=False):
            totals[str(role)][str(exponent)] = int(results)
        # The increase since the last record.
        record: dict[str, Any] = {}
        for role, sums in totals.items():
            previous = self._previous.get(role, {})
            increase = {name: count - previous.get(name, 0) for name, count in sums.items()}
            record[role] = {name: increase[name] for name in _COUNTS}
            record[role]["exponents"] = {name: n for name, n in increase.items() if name not in _COUNTS and n}
        self._previous = totals
        histograms = {name: norms.take_exponents() for name, norms in sorted(self._watched.items())}
        return record | {f"gradients of {name}": {"exponents": bins} for name, bins in histograms.items() if bins}

    def first_nonfinite(self) -> str:
        """Describes where the first infinity or NaN was computed."""
        return str(self._simulation.report().birth or "no result was infinite or NaN").replace("\n ", "")

    def write_table(self, path: Path) -> None:
        """Writes the counts of the whole run by role and operation as CSV."""
        from roundoff.files import atomic_writer  # noqa: PLC0415  only observed runs need it

        table = self._simulation.report().table
        with atomic_writer(path) as file:
            file.write(table.to_csv(index=False, lineterminator="\n").encode())

    def state_dict(self) -> dict[str, Any]:
        """Returns the state that is needed to continue counting."""
        watched = {name: norms.state_dict() for name, norms in self._watched.items()}
        return {"before": self._previous, "observer": self._simulation.observer_state(), "watched": watched}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores the state that :meth:`state_dict` returned."""
        self._previous = state["before"]
        self._simulation.load_observer_state(state["observer"])
        for name, norms in self._watched.items():
            norms.load_state_dict(state["watched"][name])


_SECONDS_BETWEEN_REPORTS = 1.0


@final
@dataclass(frozen=True)
class Progress:
    """The progress of a run.

    Attributes:
        step: environment steps taken; for a program, the latest logged step.
        steps: environment steps of the whole run; None for a program, where it is unknown.
        last_return: mean return of the last evaluation of this process; for a program, the latest value of its metric;
            None before the first.
        loss_scale: the loss scale of the learner's leading optimizer; None for libraries and programs.
    """

    step: int
    steps: int | None
    last_return: float | None
    loss_scale: float | None = None


@final
class Reporter:
    """Writes the output of a run of an agent, a library's algorithm, or a program.

    Args:
        files: the folder of the run, which is claimed and locked.
        stopwatch: the stopwatch of the run.
        numerics: the effects of rounding; None if the run does not observe.
        on_progress: called with the progress of the run; None: progress is not reported.
        steps: see :class:`Progress`.

    Attributes:
        files, stopwatch, numerics: the arguments.
        log: the log of metrics; before ``logging``, it writes nothing.
        last_return: see :class:`Progress`.
        untrained: see :class:`.Result`.
    """

    def __init__(
        self,
        files: RunDirectory,
        stopwatch: Stopwatch,
        numerics: Numerics | None,
        on_progress: Callable[[Progress], None] | None,
        steps: int | None = None,
    ) -> None:
        self.files, self.stopwatch, self.numerics = files, stopwatch, numerics
        self.log: MetricsLog | NoLog = NoLog()
        self.last_return: float | None = None
        self.untrained: float | None = None
        self._last = Evaluation(())  # The latest evaluation.
        self._quantized: dict[str, float] = {}
        self._on_progress, self._steps = on_progress, steps
        self._reported_at = time.perf_counter()

    @contextmanager
    def logging(self, log: MetricsLog | NoLog) -> Iterator[None]:
        """Writes to a log within the block."""
        with log as self.log:
            yield

    @property
    def is_due(self) -> bool:
        """Whether it is time to report progress again."""
        return time.perf_counter() - self._reported_at > _SECONDS_BETWEEN_REPORTS

    def report(self, step: int, loss_scale: Callable[[], float] | None = None) -> None:
        """Reports the progress of the run."""
        self._reported_at = time.perf_counter()
        if self._on_progress:
            self._on_progress(Progress(step, self._steps, self.last_return, loss_scale() if loss_scale else None))

    def write_numerics(self, step: int) -> None:
        """Logs the effects of rounding since the last call, if the run observes."""
        if self.numerics:
            self.log.write("numerics", step, self.numerics.record())

    def evaluate(
        self,
        step: int,
        quantizations: Iterable[Any],
        episodes: Callable[[Quantization | None], Evaluation],
        *,
        crash_step: int | None = None,
    ) -> Crash | None:
        """Evaluates the policy, without and with each of some quantizations, and logs the results.

        Args:
            step: the step of the evaluation.
            quantizations: the values of ``evaluate_in`` in the config.
            episodes: runs the episodes of the evaluation, with a quantization, or for None without.
            crash_step: the step of a crash; None: ``step``.

        Returns:
            The crash, if the policy took a non-finite action without quantization.
        """
        evaluation = episodes(None)
        if evaluation.crashed:
            step = step if crash_step is None else crash_step
            return Crash(step, "the policy took a non-finite action in evaluation")
        self._last, self.last_return = evaluation, evaluation.mean
        self.log.write("eval", step, evaluation.record())
        for value in quantizations:  # In the same episodes.
            quantization = Quantization.parse(value)
            evaluation = episodes(quantization)  # If it crashes, its mean is 0; the run continues.
            self._quantized[quantization.name] = evaluation.mean
            self.log.write("eval_in", step, {"in": quantization.name, **evaluation.record()})
        self.write_numerics(step)
        return None

    def look_at_untrained(self, evaluation: Evaluation) -> None:
        """Records an evaluation before the first update."""
        self.untrained = None if evaluation.crashed else evaluation.mean

    def raised(self, error: Exception, non_finite: str | None, step: int, component: str) -> Crash | None:
        """Returns the crash for an error of ``component``, if non-finite values were found; else None."""
        if non_finite is None:  # A mistake in the program, not in the arithmetic.
            return None
        text = str(error).partition("\n")[0][:200]  # Errors of libraries can be pages long.
        return Crash(step, f"{non_finite}, and {component} raised {type(error).__name__}: {text}")

    def reason(self, reason: str) -> str:
        """Returns the reason of a crash, with the operation of the first infinity or NaN if the run observes."""
        return f"{reason}; {self.numerics.first_nonfinite()}" if self.numerics else reason

    def crashed(self, crash: Crash | None, step: int) -> Crash | None:
        """Logs the effects of rounding before a crash; returns the crash with a complete reason."""
        if crash is None:
            return None
        crash = Crash(crash.step, self.reason(crash.reason))
        self.write_numerics(step)
        return crash

    def result(self, crash: Crash | None, step: int, updates: int | None) -> Result:
        """Returns the result of a run of an agent that has ended after ``step`` environment steps."""
        fields: dict[str, Any] = {"updates": updates, "untrained": self.untrained}
        if crash:
            return Result("crashed", 0.0, 0.0, step, crash, **fields)  # A crash counts as a return of 0.
        return Result("done", self._last.mean, self._last.std, step, quantized=self._quantized, **fields)

    def end(
        self,
        result: Result,
        weights: Mapping[str, torch.Tensor],
        profile: Callable[[], Profile],
        more_timing: Mapping[str, Any] | None = None,
        sizes: Sizes | None = None,
    ) -> Result:
        """Writes the final files of a finished run of an agent, and removes its checkpoints.

        The result comes last, since it marks the rest as complete.

        Args:
            result: the result of the run.
            weights: the final weights, by name.
            profile: returns the profile of the run; called last.
            more_timing: further entries of ``timing.json``.
            sizes: the sizes of the environments, for using the learner without them.

        Returns:
            The result.
        """
        with self.stopwatch.measure("checkpoints"):
            about = {"sizes": KnownSizes.of(sizes).as_plain()} if sizes else None
            checkpoint.save(self.files.agent, dict(weights), about)
            self.write_table()
        seconds = self.stopwatch.total  # With the time of the checkpoint above.
        timing: dict[str, Any] = {"seconds": seconds, "steps_per_second": result.step / seconds, **profile().as_json()}
        self.files.end(result, {**timing, **(more_timing or {})})
        return result

    def write_table(self) -> None:
        """Writes the counts of rounding effects in the whole run, if it observes."""
        if self.numerics:
            self.numerics.write_table(self.files.numerics)
