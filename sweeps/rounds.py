"""Searches in rounds: a search requests runs given the results so far, until it has its answer."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from .folder.directory import SweepDirectory
from .language.plan import Plan
from .subjects.subject import Run
from .sweep import Summary, run_sweep
from .watcher import SweepWatcher
from .workers.pool import Executor


class Search(Protocol):
    """A search. Its requests depend only on the runs that have ended, so that it is continued like any sweep."""

    def next_runs(self, store: SweepDirectory) -> list[Run]:
        """The runs that the search needs given the results so far: all earlier requests, and more."""

    def result(self, store: SweepDirectory) -> Any:
        """Returns the current result."""


def run_in_rounds(
    plan: Plan,
    directory: Path,
    executors: Callable[[], Executor],
    watcher: SweepWatcher,
    search: Search,
    answered_in: str,
    **options: Any,
) -> tuple[Summary, Any]:
    """Runs the runs that a search requests, round by round, until the search is complete or some runs fail.

    Args:
        plan: the sweep; its runs are replaced.
        directory: the directory of the results.
        executors: makes one for each round.
        watcher: receives the events.
        search: requests the runs.
        answered_in: the file in the folder that the caller writes afterwards; without it, the search has not finished.
        options: further arguments of :func:`~.sweep.run_sweep`.

    Returns:
        How the requested runs ended, and the search's result.
    """
    store = SweepDirectory(directory)
    store.check(plan)
    plan = replace(plan, answered_in=answered_in)
    with suppress(OSError):  # writing into the folder reports the same error
        (directory / answered_in).unlink()  # the answer of an earlier call
    runs = search.next_runs(store)
    while True:
        part = replace(plan, runs=tuple(runs))
        summary = run_sweep(part, directory, executor=executors(), watcher=watcher, **options)
        earlier, runs = {run.id for run in runs}, search.next_runs(store)
        if summary.failed or {run.id for run in runs} <= earlier:
            return summary, search.result(store)


def once(runs: Iterable[Run]) -> list[Run]:
    """Drops repeated runs."""
    return list({run.id: run for run in runs}.values())


def sign(plan: Plan) -> int:
    """Returns 1 if a higher score is better, else -1."""
    return 1 if plan.metric is None or plan.metric.goal == "maximize" else -1


def mean_score(store: SweepDirectory, runs: Iterable[Run]) -> float | None:
    """The mean score; None without runs, or if a run has not ended, lacks a score, or crashed, whatever its score."""
    results = [store.result(run) if store.has_ended(run) else None for run in runs]
    return mean([None if result is None or result.status == "crashed" else result.score for result in results])


def mean(scores: Sequence[float | None]) -> float | None:
    """The mean; None without scores, or if one is missing."""
    known = [score for score in scores if score is not None]
    if len(known) < len(scores) or not known:
        return None
    try:
        return statistics.fmean(known)
    except OverflowError:  # of the sum
        return statistics.mean(known)


def shown(score: float | None, none: str) -> str:
    """Formats a score for a message; a missing score becomes ``none``."""
    return none if score is None else f"{score:.4g}"
