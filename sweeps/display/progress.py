"""Shows the progress of a running sweep: a live table on a terminal, else one line per finished run."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Self

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from roundoff.printable import printable

from ..folder.directory import State
from ..subjects.program_keys import ProgramConfig
from ..subjects.subject import Run
from ..workers.pool import Event

if TYPE_CHECKING:
    from ...agents import Progress  # loads torch, which `roundoff status` does not need


class ProgressDisplay:
    """A ``SweepWatcher`` that prints; entered with ``with``, so that the live table is closed.

    Args:
        console: where to print; standard output by default.
    """

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(file=sys.stdout, highlight=False, soft_wrap=True)
        self._live: Live | None = None
        self._started = time.monotonic()
        self._begun: dict[str, float] = {}
        self._active: dict[str, tuple[Run, dict[str, Any]]] = {}
        self._counts = {"done": 0, "crashed": 0, "failed": 0}
        self._total = self._steps_total = self._steps_ended = 0
        self._first_steps: dict[str, int] = {}
        self._metric: str | None = None
        self._shown: set[str] = set()

    def __enter__(self) -> Self:
        if self._console.is_terminal or self._console.is_jupyter:
            self._live = Live(console=self._console, refresh_per_second=4, get_renderable=self._render)
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live:
            self._live.stop()

    def begin(self, waiting: Sequence[Run], finished: int, workers: int) -> None:
        """Announces the coming runs; a search begins several times."""
        self._total += len(waiting)
        self._steps_total += sum(run.config.steps for run in waiting)  # a program has 0: only it knows its length
        finished_before = f", {finished} finished before" if finished else ""
        self._metric = "metric" if any(isinstance(run.config, ProgramConfig) for run in waiting) else None
        if waiting:
            started = f"starting {workers} worker{'s' * (workers > 1)}"
            self._console.print(f"{len(waiting)} run{'s' * (len(waiting) > 1)} to do{finished_before}; {started}")
        else:
            self._console.print(f"nothing to do{finished_before}")

    def notice(self, text: str) -> None:
        """Shows a line that stays."""
        self._console.print(f"note: {printable(text)}", markup=False)

    def event(self, event: Event, state: State, score: float | None) -> None:
        """Shows an event of a run."""
        run = event.run
        if event.kind == "started":
            self._begun.setdefault(run.id, time.monotonic())
            self._active[run.id] = (run, {"step": 0})
        elif event.kind == "progress":
            assert event.progress is not None
            # The steps of earlier sessions of a continued run do not count for the speed of this one.
            self._first_steps.setdefault(run.id, event.progress["step"])
            self._active[run.id] = (run, event.progress)
        elif event.kind == "elsewhere":
            self._active.pop(run.id, None)
            if event.reason and event.reason not in self._shown:  # it is tried again every few seconds
                self._shown.add(event.reason)
                self.notice(f"{run.id} waits: {event.reason}")
        else:
            self._active.pop(run.id, None)
            self._counts[state] += 1
            self._steps_ended += run.config.steps
            began = self._begun.get(run.id)
            duration = "by another sweep" if began is None else f"{time.monotonic() - began:.0f} s"
            reason, _, details = event.reason.partition("\n")
            shown = "no score" if score is None else f"{score:.4g}" if self._metric else f"return {score:.1f}"
            outcome = reason if state == "failed" else shown + (f", {reason}" if reason else "")
            text = f"{run.id}: {state}, {printable(outcome)}, {duration}"
            self._console.print(f"[{sum(self._counts.values())}/{self._total}] {text}", markup=False)
            if details and details not in self._shown:  # a traceback, which many runs may share
                self._shown.add(details)
                self._console.print(printable(details, lines=True), markup=False)

    def _render(self) -> Group:
        steps = self._steps_ended + sum(progress["step"] for _, progress in self._active.values())
        elapsed = max(time.monotonic() - self._started, 1e-3)
        rate = (steps - sum(self._first_steps.values())) / elapsed
        time_left = _duration((self._steps_total - steps) / rate) if rate > 0 and self._steps_total else "unknown"
        ended = ", ".join(f"{count} {name}" for name, count in self._counts.items() if count or name == "done")
        speed = "" if self._metric else f"; {rate:.0f} environment steps/s; time left {time_left}"
        head = Text(f"{ended} of {self._total} runs{speed}")
        table = Table.grid(padding=(0, 2))
        for run, progress in self._active.values():
            table.add_row(run.id, *describe_progress(progress, run.config.steps, self._metric))
        return Group(head, table)


def describe_progress(
    progress: dict[str, Any], steps: int, metric: str | None = None
) -> tuple[str, str, str, str, str]:
    """Describes the progress of a run: percent, step, return, steps per second, loss scale; empty where not known.

    Args:
        progress: the progress of an ``Event``.
        steps: the number of steps of the whole run.
        metric: name of the metric in its ``return``; None for a return.
    """
    step, score, rate, scale = (progress.get(key) for key in ("step", "return", "rate", "loss_scale"))
    return (
        "" if step is None or not steps else f"{100 * step // steps} %",
        "" if step is None else f"step {step}",
        "" if score is None else f"return {score:.1f}" if metric is None else f"{metric} {score:.4g}",
        "" if not rate else f"{rate:.0f} steps/s",
        "" if scale is None else f"loss scale {scale:g}",
    )


class RunDisplay:
    """Shows one run: a live line on a terminal, else a line per new evaluation."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(file=sys.stdout, highlight=False, soft_wrap=True)
        self._status = self._console.status("starting")
        self._started = time.monotonic()
        self._first_step: int | None = None
        self._shown: float | None = None

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._status.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._status.stop()

    def notice(self, text: str) -> None:
        """Shows a line that stays."""
        self._console.print(printable(text), markup=False)

    def progress(self, progress: Progress) -> None:
        """Shows the progress of the run, an agent's."""
        assert progress.steps is not None
        if self._first_step is None:
            self._first_step, self._started = progress.step, time.monotonic()
        rate = (progress.step - self._first_step) / max(time.monotonic() - self._started, 1e-3)
        shown = "" if progress.last_return is None else f", return {progress.last_return:.1f}"
        time_left = f", time left {_duration((progress.steps - progress.step) / rate)}" if rate > 0 else ""
        scale = "" if progress.loss_scale is None else f", loss scale {progress.loss_scale:g}"
        line = f"step {progress.step} of {progress.steps}{shown}, {rate:.0f} environment steps/s{scale}{time_left}"
        if self._console.is_terminal:
            self._status.update(line)
        elif progress.last_return != self._shown:
            self._shown = progress.last_return
            self._console.print(line, markup=False)


def _duration(seconds: float) -> str:
    minutes, seconds = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
