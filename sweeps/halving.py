"""Successive halving: which of a sweep's candidates is best, with seeds spent on those that may be."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

from ..analysis.tables import markdown
from .folder.directory import SweepDirectory
from .language.candidates import candidates
from .sweep import Summary, run_in_rounds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from roundoff.runs.result import AnyResult

    from .language.plan import Plan
    from .language.run import Run
    from .sweep import SweepWatcher
    from .workers.pool import Executor

FIRST = 2
"""Seeds of the first round."""
FEW = 4
"""The number of candidates that all get all the seeds."""


def rounds(
    candidates: Sequence[str],
    seeds: int,
    scores: Callable[[Sequence[str], int], Mapping[str, float] | None],
    few: int = FEW,
) -> Iterator[tuple[Sequence[str], int]]:
    """The candidates of each round, and how many seeds each of them gets in all.

    Round k gives the candidates that are left 2, 4, 8, ... of the seeds; then the half with the lower scores is
    dropped. At most ``few`` that are left all get all the seeds at once. Seeds double as candidates halve, so that all
    rounds have as many runs, those of earlier rounds among them.

    Args:
        candidates: by name.
        seeds: how many there are.
        scores: of candidates, given how many seeds they have; the higher, the better. None if some of their runs are
            still to do: that round is the last one for now.
        few: so many candidates are never dropped.

    Source:
        Jamieson & Talwalkar, "Non-stochastic best arm identification and hyperparameter optimization", 2016.
    """
    left, count = list(candidates), FIRST
    while left:
        count = seeds if len(left) <= few else min(count, seeds)
        yield left, count
        if count == seeds or (found := scores(left, count)) is None:
            return
        kept = sorted(left, key=found.__getitem__, reverse=True)[: max(few, math.ceil(len(left) / 2))]
        left = [candidate for candidate in left if candidate in kept]
        count *= 2


@final
@dataclass(frozen=True)
class Standing:
    """How a candidate did.

    Attributes:
        candidate: what tells it from the others.
        mean: of its scores, each seed with the same weight; None if some run has none.
        scores: mean of each seed over tasks, in the order of the sweep; None for one that has none.
        crashed: how many of its runs crashed.
    """

    candidate: str
    mean: float | None
    scores: tuple[float | None, ...]
    crashed: int


@final
@dataclass(frozen=True)
class Standings:
    """What a search for the best has found; ``print`` it.

    Attributes:
        standings: the candidates that have most seeds first, among them the best first.
        finished: whether nothing is left to be run.
    """

    standings: tuple[Standing, ...]
    finished: bool

    def __str__(self) -> str:
        rows = [
            {
                "candidate": one.candidate,
                "mean": _shown(one.mean),
                "of each seed": ", ".join(map(_shown, one.scores)),
                "crashed": str(one.crashed),
            }
            for one in self.standings
        ]
        if not rows:
            return "no candidate has ended"
        return f"{markdown.table(rows)}\n\n{self._verdict()}"

    def _verdict(self) -> str:
        best = self.standings[0]
        if not self.finished:
            return "not finished: which is best is not known yet"
        if best.mean is None:
            return "none is best: each has a run that crashed"
        return f"best: {best.candidate}; chosen by these seeds, so confirm it with others"


def _shown(score: float | None) -> str:
    return "none" if score is None else f"{score:.4g}"


def run_halving(
    plan: Plan, directory: Path, executors: Callable[[], Executor], watcher: SweepWatcher, **how: Any
) -> tuple[Summary, list[Standings]]:
    """Runs what is needed of a plan to find its best candidate, round by round: see :func:`rounds`.

    Candidates are those of :func:`~.language.candidates.candidates`. The score of one is the mean over seeds and tasks;
    of equal ones, the first in the file is the best. A crash makes its candidate the worst, whatever it is scored.

    Args:
        plan: with ``search: {for: best}``.
        directory: of the results.
        executors: makes one for each round.
        watcher: is told what happens.
        how: as for :func:`~.sweep.run_sweep`.
    """
    search = _Search(plan)
    summary = run_in_rounds(plan, directory, executors, watcher, search.asked, **how)
    found = search.standings(SweepDirectory(directory))
    return summary, [found]


@final
class _Search:
    def __init__(self, plan: Plan) -> None:
        self._runs: dict[str, dict[int, list[Run]]] = {}
        for name, runs in candidates(plan.runs, plan.varying).items():
            for run in runs:
                self._runs.setdefault(name, {}).setdefault(run.config.seed, []).append(run)
        self._seeds = list(dict.fromkeys(run.config.seed for run in plan.runs))
        self._sign = 1 if plan.metric is None or plan.metric.goal == "maximize" else -1

    def asked(self, store: SweepDirectory) -> list[Run]:
        """The runs that are wanted in view of those that have ended, which are among them."""

        def scores(left: Sequence[str], count: int) -> dict[str, float] | None:
            seeds = self._seeds[:count]
            if not all(self._has_ended(store, name, seed) for name in left for seed in seeds):
                return None
            return {name: self._rank(mean_score([self._score(store, name, seed) for seed in seeds])) for name in left}

        wanted = [
            run
            for left, count in rounds(list(self._runs), len(self._seeds), scores)
            for name in left
            for seed in self._seeds[:count]
            for run in self._runs[name][seed]
        ]
        return list({run.id: run for run in wanted}.values())

    def standings(self, store: SweepDirectory) -> Standings:
        """What is known by now."""
        found = []
        for name, runs in self._runs.items():
            if seeds := [seed for seed in self._seeds if self._has_ended(store, name, seed)]:
                scores = [self._score(store, name, seed) for seed in seeds]
                crashed = [store.state(run) for seed in seeds for run in runs[seed]].count("crashed")
                found.append(Standing(name, mean_score(scores), tuple(scores), crashed))
        found.sort(key=lambda one: (len(one.scores), self._rank(one.mean)), reverse=True)
        return Standings(tuple(found), all(store.has_ended(run) for run in self.asked(store)))

    def _rank(self, mean: float | None) -> float:
        return -math.inf if mean is None else self._sign * mean

    def _has_ended(self, store: SweepDirectory, name: str, seed: int) -> bool:
        return all(store.has_ended(run) for run in self._runs[name][seed])

    def _score(self, store: SweepDirectory, name: str, seed: int) -> float | None:
        return mean_score([score_of(store.result(run)) for run in self._runs[name][seed]])


def score_of(result: AnyResult) -> float | None:
    """The score of a run by its result; None if it crashed, which may be scored more than others that ended well."""
    return None if result.status == "crashed" else result.score


def mean_score(scores: Sequence[float | None]) -> float | None:
    """Returns the mean; None if a run has no score, or there is none."""
    found = [score for score in scores if score is not None]
    if len(found) < len(scores) or not found:
        return None
    try:
        return statistics.fmean(found)
    except OverflowError:  # of the sum
        return statistics.mean(found)
