"""Defines ``roundoff.sweep``: a sweep of a function, from Python or a notebook, without a sweep file."""

from __future__ import annotations

import json
import time
from _thread import interrupt_main
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from roundoff.errors import RoundoffError

from ..agents import Stopped
from ..formats import Format
from .display.progress import ProgressDisplay
from .errors import SweepError
from .folder.directory import SweepDirectory
from .folder.leases import Lease
from .language.plan import Plan, plan_text
from .programs.run import NoMetricError, run_program
from .subjects.program import Program
from .subjects.program_keys import ProgramConfig
from .subjects.subject import Run
from .sweep import check_metric, claim, run_sweep
from .watcher import SweepWatcher, tracked
from .workers.local import LocalProcesses
from .workers.pool import Event

if TYPE_CHECKING:
    import pandas as pd


__all__ = ["sweep"]

_POLL = 0.5  # seconds between two looks at runs that other sweeps hold
_is_running = False


def sweep(
    train: Callable[..., Any] | str,
    grid: Mapping[str, Sequence[Any] | Mapping[str, str]],
    *,
    metric: str | Mapping[str, Any] | None = None,
    base: Mapping[str, Any] | None = None,
    name: str | None = None,
    out: str | Path | None = None,
    workers: int = 1,
    log_to: str | Mapping[str, str] | None = None,
) -> pd.DataFrame:
    """Runs a function with every combination of values, each in its format, and returns the results as a table.

    A sweep file with these sections does the same; see docs/programs.md. Runs that have ended are not repeated, and a
    run that was stopped continues where it last called ``roundoff.checkpoint``.

    Args:
        train: a function with the keys as its parameters; or its name, as ``train.py:train``. A process imports a file
            once: after running it, a notebook does not see later edits until its kernel is restarted.
        grid: lists of values by key, such as ``{"format": ["fp32", "e5m7"], "seed": range(3)}``; ranges as in sweep
            files (``"0..9"``, ``{"e5mX": "1..10"}``) are also lists.
        metric: the name of the returned value that counts; or a mapping with ``name``, ``goal``
            (``maximize`` or ``minimize``), ``crash``, ``unit``, ``range``.
        base: values of all runs.
        name: the name of the sweep; the function's name by default.
        out: folder of the results; ``results/<name>`` by default.
        workers: processes at a time. With 1, any function is run in this process; with more, each process imports the
            file of the function: call ``sweep`` under ``if __name__ == "__main__":`` there.
        log_to: a tracker that records each ended run: ``wandb`` or ``mlflow``, or with ``name`` and ``project``.

    Returns:
        A row per run; see :func:`roundoff.analysis.table`.

    Raises:
        SweepFileError: a key or a value is wrong.
        SweepError: the folder holds something else, or runs have failed; their exceptions are printed.
    """
    global _is_running  # noqa: PLW0603  of the process, as imports are
    from ..analysis import table  # noqa: PLC0415  imports matplotlib

    if _is_running:
        raise SweepError(
            "roundoff.sweep is called where a sweep imports its program; call it under if __name__ == '__main__':"
        )
    program = Program.named(train, Path.cwd()) if isinstance(train, str) else Program.of(train)
    if workers > 1:
        program = program.importable()
    sections = {
        "name": name or program.function,
        "base": dict(base or {}),
        "grid": {key: values if isinstance(values, (str, Mapping)) else list(values) for key, values in grid.items()},
        **({"log_to": log_to if isinstance(log_to, str) else dict(log_to)} if log_to else {}),
        **({"metric": metric if isinstance(metric, str) else dict(metric)} if metric else {}),
    }
    _is_running = True
    try:
        plan = plan_text(_as_text(sections), "roundoff.sweep", program=program)
        directory = Path(out) if out else Path("results") / plan.name
        failures: list[str] = []
        with ProgressDisplay() as display:
            if workers == 1:
                _run_here(plan, directory, tracked(display, plan, directory), failures)
            else:
                summary = run_sweep(plan, directory, executor=LocalProcesses(workers), watcher=display)
                failures += [f"see {directory / 'logs'}"] * summary.failed
    finally:
        _is_running = False
    if failures:
        raise SweepError(f"{len(failures)} runs failed: {'; '.join(dict.fromkeys(failures))}")
    return table(directory)


def _as_text(sections: dict[str, Any]) -> str:
    """Writes the sections as the text of a sweep file."""

    def plain(value: Any) -> Any:
        if isinstance(value, Enum):
            return value.value
        if isinstance(value, (Path, Format)):
            return str(value)
        if hasattr(value, "tolist"):  # numbers of NumPy and PyTorch
            return value.tolist()
        raise SweepError(f"roundoff.sweep: {value!r} cannot be written into a sweep file; give numbers or text")

    return json.dumps(sections, default=plain)


def _run_here(plan: Plan, directory: Path, watcher: SweepWatcher, failures: list[str]) -> None:
    """Runs the unfinished runs one after the other, except runs that other sweeps do meanwhile; records failures."""
    store = SweepDirectory(directory)
    _, leases = claim(store, plan, directory, watcher)
    waiting = [run for run in plan.runs if not store.has_ended(run)]
    watcher.begin(waiting, len(plan.runs) - len(waiting), 1)
    damaged = {run.id: damage for run in waiting if (damage := store.damage(run))}
    for run in waiting:
        if run.id in damaged:
            failures.append(damaged[run.id])
            watcher.event(Event("failed", run, reason=damaged[run.id]), "failed", None)
    remaining, held = deque(run for run in waiting if run.id not in damaged), 0
    while remaining:
        run = remaining.popleft()
        number = leases.next_number(run.id, leases.numbers())
        lease = None if number is None else Lease.take(leases.folder, run.id, number, interrupt_main)
        if lease is None:  # another sweep works on it
            remaining.append(run)
            held += 1
            if held >= len(remaining):  # others work on all that is left
                time.sleep(_POLL)
            continue
        held = 0
        try:
            _run_one(plan, run, store, watcher, failures)
        finally:
            lease.release(ended=store.has_ended(run))


def _run_one(plan: Plan, run: Run, store: SweepDirectory, watcher: SweepWatcher, failures: list[str]) -> None:
    assert isinstance(run.config, ProgramConfig)
    assert plan.metric is not None
    store.files(run).forget_failure()
    watcher.event(Event("started", run), "running", None)

    def progress(state: Any) -> None:
        fields = {"step": state.step, "return": state.last_return, "rate": None, "loss_scale": None}
        watcher.event(Event("progress", run, progress=fields), "running", None)

    try:
        result = run_program(run.config, plan.metric, store.run_path(run), progress)
    except Stopped:
        raise KeyboardInterrupt from None
    except RoundoffError as error:
        store.record_failure(run, str(error))
        failures.append(str(error).partition("\n")[0])
        event = Event("failed", run, reason=str(error), ends_sweep=isinstance(error, NoMetricError))
        watcher.event(event, "failed", None)
        check_metric(event, map(store.state, plan.runs))
    else:
        reason = result["crash"]["reason"] if result["crash"] else ""
        watcher.event(Event("ended", run, reason=reason), result["status"], result["return"])
