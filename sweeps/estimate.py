"""Estimates the duration of runs, from similar finished runs or from a short calibration."""

from __future__ import annotations

import heapq
import json
import math
import tempfile
import threading
import time
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from roundoff.errors import RoundoffError, RunError
from roundoff.files import read_json
from roundoff.runs.folder import RunDirectory, config_in

from ..agents import Progress, Stopped, StopRequest, TrainConfig
from ..agents.config import KeyRole, keys_with
from .subjects.subject import Run

CALIBRATION_SECONDS = 30.0
"""The time after which no further kind of run is measured."""

_LONGEST = 1e10  # seconds; a longer duration in a file is not valid
_MOST_SECONDS = 12.0
"""Longest time of one run of a calibration; two of them measure a kind."""
_UNTRIED = "the time of {} is known only after a similar run has ended"


@dataclass(frozen=True)
class TimeEstimate:
    """An estimate of how long runs will take.

    Attributes:
        seconds: the duration of each run, by id; runs without an estimate are missing.
        notes: the grounds of the estimate, a sentence each.
    """

    seconds: dict[str, float]
    notes: tuple[str, ...]

    def total(self, workers: int) -> float:
        """Seconds until the last run ends if ``workers`` processes take the runs in their order."""
        busy = [0.0] * workers
        for seconds in self.seconds.values():
            heapq.heapreplace(busy, busy[0] + seconds)  # the worker that is free first takes the run
        return max(busy)


def estimate(runs: Sequence[Run], folders: Iterable[Path], allow_imports: Collection[str] = ()) -> TimeEstimate:
    """Estimates the seconds of runs.

    Args:
        runs: to estimate.
        folders: folders of sweeps to search for finished runs.
        allow_imports: modules that a calibration may import; see :func:`roundoff.agents.train`.

    Returns:
        The estimate. Runs unlike all finished ones are measured, for at most about :data:`CALIBRATION_SECONDS`, except
        for programs, and runs with actors in separate processes.
    """
    # Finds the seconds of similar finished runs, and groups the other runs by kind
    past = _past_seconds(folders)
    seconds: dict[str, float] = {}
    unknown: dict[str, list[tuple[str, TrainConfig]]] = {}
    impossible: dict[str, int] = {}
    for run in runs:
        times = past.get(_speed_key(run.config.as_json(), keys_with(KeyRole.TIMELESS)))
        if times:
            seconds[run.id] = sum(times) / len(times)
        elif isinstance(run.config, TrainConfig) and not getattr(run.config, "actors", None):
            kind = _speed_key(run.config.as_json(), keys_with(KeyRole.TIMELESS | KeyRole.AMOUNT))
            unknown.setdefault(kind, []).append((run.id, run.config))
        else:
            reason = _UNTRIED.format("a run with actors" if isinstance(run.config, TrainConfig) else "a program")
            impossible[reason] = impossible.get(reason, 0) + 1
    notes = [f"{len(seconds)} runs estimated by finished ones"] if seconds else []
    # Measures the kinds, the most frequent first; kinds without time left count as the slowest one measured
    measured: list[_Speed] = []
    unmeasured = 0
    start = time.perf_counter()
    for group in sorted(unknown.values(), key=len, reverse=True):
        if measured and time.perf_counter() - start > CALIBRATION_SECONDS:
            speed = max(measured, key=lambda measurement: measurement.step)
            unmeasured += 1
        else:
            try:
                speed = _measure(group[0][1], allow_imports)
            except RoundoffError as error:
                impossible[str(error)] = impossible.get(str(error), 0) + len(group)
                continue
            measured.append(speed)
        seconds |= {identity: speed.seconds(config) for identity, config in group}
    notes += [f"no estimate for {count} runs: {reason}" for reason, count in impossible.items()]
    if measured:
        kinds = f"{len(measured)} kind{'s' * (len(measured) > 1)} of runs"
        notes.append(f"{kinds} measured briefly, one at a time and not compiled; several at a time are slower")
    if unmeasured:
        notes.append(f"{unmeasured} kinds not measured for lack of time; counted as slow as the slowest measured one")
    if any(speed.crashed for speed in measured):
        notes.append("kinds that crashed at their first updates count as 0 seconds")
    return TimeEstimate({run.id: seconds[run.id] for run in runs if run.id in seconds}, tuple(notes))


def _speed_key(config: dict[str, Any], ignored: frozenset[str]) -> str:
    """Returns a key that runs share if they take equally long."""
    from ..formats import Format, FormatError  # noqa: PLC0415  imports torch

    relevant = {key: value for key, value in config.items() if key not in ignored}
    if not relevant.get("native"):  # a simulation in any format of one carrier takes as long; fp32 rounds nothing
        name = relevant.get("format")
        with suppress(FormatError, TypeError):
            fmt = Format.parse(str(name))
            relevant["format"] = name if name in ("fp32", "fp64") else str(fmt.carrier)
    return json.dumps(relevant, sort_keys=True)


def _past_seconds(folders: Iterable[Path]) -> dict[str, list[float]]:
    """Reads the seconds of ended runs, by their speed keys; files that cannot be understood are skipped."""
    times: dict[str, list[float]] = {}
    for folder in folders:
        for files in map(RunDirectory, folder.glob("runs/*")):
            with suppress(RoundoffError, OSError, TypeError, ValueError):
                seconds, config = files.seconds(), config_in(read_json(files.config))
                if files.result.exists() and config is not None and seconds < _LONGEST:
                    times.setdefault(_speed_key(config, keys_with(KeyRole.TIMELESS)), []).append(seconds)
    return times


@dataclass(frozen=True)
class _Speed:
    """The seconds of an agent step with its update, and of an evaluation."""

    step: float
    evaluation: float
    crashed: bool

    def seconds(self, config: TrainConfig) -> float:
        """Returns the seconds of a whole run, without its beginning and end and steps before the first update."""
        steps = math.ceil(config.steps / config.action_repeat)
        evaluations = math.ceil(config.steps / config.eval_every)
        return max(0, steps - config.steps_before_learning) * self.step + evaluations * self.evaluation


def _measure(config: TrainConfig, allow_imports: Collection[str]) -> _Speed:
    """Trains for a moment in a temporary folder.

    Raises:
        RoundoffError: such a run is impossible on this machine.
    """
    never = 10**12
    shared = {**config.soon_learning(), "checkpoint_every": never, "keep_networks": False}
    # Rendered episodes take so long that one episode must suffice.
    episodes = 1 if config.world() else config.eval_episodes
    evaluating = {**shared, "steps": 4 * config.action_repeat, "eval_every": never, "eval_episodes": episodes}
    with tempfile.TemporaryDirectory(prefix="roundoff-") as folder:
        steps = _Calibration(allow_imports)
        steps.run(config.model_copy(update={**shared, "steps": never, "eval_every": never}), Path(folder) / "steps", 3)
        evaluation = _Calibration(allow_imports)
        evaluation.run(config.model_copy(update=evaluating), Path(folder) / "evaluation")
    if steps.crashed or evaluation.crashed:
        return _Speed(0.0, 0.0, crashed=True)
    step = steps.seconds_per_step() * config.action_repeat
    # After the second mark come the other three of its four steps, and the evaluation.
    evaluation_seconds = evaluation.marks[-1][0] - evaluation.marks[1][0] - 3 * step
    return _Speed(step, max(0.0, evaluation_seconds) * config.eval_episodes / episodes, crashed=False)


class _Calibration:
    """Measures a run for about a second after it has warmed up.

    A mark is a time and a step. The first mark is the beginning. The second one follows the first step and, in fp32,
    the evaluation of the untrained policy; the third one the first update, which may compile kernels for a minute.
    """

    def __init__(self, allow_imports: Collection[str]) -> None:
        self._allow_imports = allow_imports
        self.marks: list[tuple[float, int]] = []
        self.crashed = False
        self._stop, self._late = StopRequest(), False

    def run(self, config: TrainConfig, folder: Path, fewest: float = math.inf) -> None:
        """Trains until there are enough marks, or to the end.

        Raises:
            RunError: it takes too long, and there are not even the ``fewest`` marks.
        """
        from ..agents import train  # noqa: PLC0415  imports the simulator

        timer = threading.Timer(_MOST_SECONDS, self._end_late)
        timer.daemon = True
        timer.start()
        with suppress(Stopped):
            # Not compiled: compilation would take longer than the measurement.
            result = train(
                config, folder, self._progress, self._stop, compiled=False, allow_imports=self._allow_imports
            )
            self.crashed = result.crash is not None
        timer.cancel()
        if self._late and len(self.marks) < fewest:
            raise RunError(f"it takes more than {_MOST_SECONDS:g} s to measure a few steps and an evaluation")
        self.marks.append((time.perf_counter(), self.marks[-1][1]))

    def _end_late(self) -> None:
        self._late = True
        self._stop.make()

    def _progress(self, progress: Progress) -> None:
        self.marks.append((time.perf_counter(), progress.step))
        if len(self.marks) > 3 and self.marks[-1][0] - self.marks[2][0] > 1:  # a second after warming up
            self._stop.make()

    def seconds_per_step(self) -> float:
        """Returns the time of an environment step; the marks before the third one are of the warming up."""
        first, last = self.marks[2 if len(self.marks) > 4 else 0], self.marks[-2]
        return (last[0] - first[0]) / max(1, last[1] - first[1])
