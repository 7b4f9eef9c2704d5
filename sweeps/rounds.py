"""A search in rounds: it asks for runs given the results so far, and judges runs that have ended by their scores."""

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
    """A search. Its answers depend only on the runs that have ended, so that it is continued like any sweep."""

    def next_runs(self, store: SweepDirectory) -> list[Run]:
        """The runs that the search needs given the results so far: all that it asked for before, and more."""

    def found(self, store: SweepDirectory) -> Any:
        """Returns the current result."""


def run_in_rounds(
    plan: Plan,
    directory: Path,
    executors: Callable[[], Executor],
    watcher: SweepWatcher,
    search: Search,
    answered_in: str,
    **how: Any,
) -> tuple[Summary, Any]:
    """Runs the requests of a search, round by round, until the search is complete or some runs fail.

    Args:
        plan: the sweep, whatever its runs.
        directory: the directory of the results.
        executors: makes one for each round.
        watcher: receives the events.
        search: asks for the runs.
        answered_in: the file in the folder that the caller writes then; without it, the search has not finished.
        how: as for :func:`~.sweep.run_sweep`.

    Returns:
        How the requested runs ended, and the search's result.
    """
    store = SweepDirectory(directory)
    store.check(plan)
    plan = replace(plan, answered_in=answered_in)
    with suppress(OSError):  # which writing into the folder will tell
        (directory / answered_in).unlink()  # of an earlier call
    runs = search.next_runs(store)
    while True:
        summary = run_sweep(replace(plan, runs=tuple(runs)), directory, executor=executors(), watcher=watcher, **how)
        before, runs = {run.id for run in runs}, search.next_runs(store)
        if summary.failed or {run.id for run in runs} <= before:
            return summary, search.found(store)


def once(runs: Iterable[Run]) -> list[Run]:
    """The runs, each once."""
    return list({run.id: run for run in runs}.values())


def sign(plan: Plan) -> int:
    """1 where more of the score is better, else -1."""
    return 1 if plan.metric is None or plan.metric.goal == "maximize" else -1


def mean_score(store: SweepDirectory, runs: Iterable[Run]) -> float | None:
    """The mean score; None without runs, or if a run has not ended, lacks a score, or crashed, whatever its score."""
    results = [store.result(run) if store.has_ended(run) else None for run in runs]
    return mean([None if one is None or one.status == "crashed" else one.score for one in results])


def mean(scores: Sequence[float | None]) -> float | None:
    """The mean; None without scores, or if one is missing."""
    found = [score for score in scores if score is not None]
    if len(found) < len(scores) or not found:
        return None
    try:
        return statistics.fmean(found)
    except OverflowError:  # of the sum
        return statistics.mean(found)


def shown(score: float | None, none: str) -> str:
    """A score in a message."""
    return none if score is None else f"{score:.4g}"
