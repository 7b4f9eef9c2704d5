"""Shows the status of a sweep, as text or as JSON."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from roundoff.printable import printable

from ..folder.status import STATES, RunStatus, SweepStatus, read_status
from .progress import describe_progress

_REFRESH = 2.0  # seconds
_UNFINISHED = 3  # exit status


def exit_status(status: SweepStatus) -> int:
    """Returns the exit status: 0, all runs have ended; 1, some have failed; 3, some are unfinished, or to come."""
    if status.count("running") or status.count("waiting") or status.searching:
        return _UNFINISHED
    return 1 if status.count("failed") else 0


def status_lines(status: SweepStatus) -> list[str]:
    """A line per run, and the totals last."""
    names = [printable(run.run) for run in status.runs]
    width = max(map(len, names), default=0)
    lines = []
    for name, run in zip(names, status.runs, strict=True):
        details = filter(None, (*describe_progress(run.progress, run.steps, run.metric), _reason(run)))
        lines.append(f"{name:<{width}}  {run.state:<7}  {', '.join(details)}".rstrip())
    return [*lines, _totals(status)]


def status_values(status: SweepStatus) -> dict[str, Any]:
    """Returns a sweep's status as values of JSON."""
    return {
        "name": status.name,
        "counts": {state: status.count(state) for state in STATES},
        "runs": [run._asdict() for run in status.runs],
        "warnings": list(status.warnings),
    }


def watch_status(directory: Path) -> SweepStatus:
    """Shows the status until all runs have ended or failed: a table on a terminal, else a line when totals change."""
    console = Console(file=sys.stdout, highlight=False, soft_wrap=True)
    status, shown = read_status(directory), ""
    if console.is_terminal:
        with Live(_table(status, console.height), console=console, auto_refresh=False) as live:
            while exit_status(status) == _UNFINISHED:
                time.sleep(_REFRESH)
                status = read_status(directory)
                live.update(_table(status, console.height), refresh=True)
        return status
    while True:
        if shown != (shown := _totals(status)):
            console.print(shown, markup=False)
        if exit_status(status) != _UNFINISHED:
            return status
        time.sleep(_REFRESH)
        status = read_status(directory)


def _totals(status: SweepStatus) -> str:
    counts = ", ".join(f"{status.count(state)} {state}" for state in STATES)
    return f"{printable(status.name)}: {len(status.runs)} runs: {counts}"


def _reason(run: RunStatus) -> str:
    """Returns the first line of a run's reason, printable."""
    return printable(run.reason.partition("\n")[0])


def _table(status: SweepStatus, height: int) -> Group:
    """Makes the table: the running runs first, then the others until the terminal is full."""
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)  # names of runs differ at their ends, so other columns get narrower first
    order = ("running", "failed", "crashed", "waiting", "done")
    runs = sorted(status.runs, key=lambda run: order.index(run.state))
    for run in runs[: max(1, height - 2)]:
        cells = (printable(run.run), run.state, *describe_progress(run.progress, run.steps, run.metric), _reason(run))
        table.add_row(*map(Text, cells))
    return Group(Text(_totals(status)), table)
