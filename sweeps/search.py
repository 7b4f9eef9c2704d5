"""Searches of a sweep: for the fewest bits that are good enough, by bisection, or for the best candidate.

Bisection takes for granted that more bits are no worse. Which runs come next follows from those that have ended alone,
so a search is continued as any sweep is.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, final

from roundoff.files import write_json
from roundoff.runs.result import Result

from .folder.directory import SweepDirectory
from .halving import Standings, mean_score, run_halving, score_of
from .language.plan import branches
from .language.search_goal import REFERENCE
from .sweep import Summary, run_in_rounds

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence
    from pathlib import Path

    from .language.plan import Plan
    from .language.run import Run
    from .sweep import SweepWatcher
    from .workers.pool import Executor

FOUND = "search.json"


@final
@dataclass(frozen=True)
class Finding:
    """What a search has found, for one choice of the other keys.

    Attributes:
        given: the other keys that vary.
        reference: mean of fp32 over seeds; None if it is not known, or has no score.
        enough: the narrowest format that is good enough; None if there is none.
        means: of the formats that were run, the fewest bits first; None for one of which a run crashed.
        formats: how many there are.
        finished: whether nothing is left to be run; else ``enough`` is what is known so far.
        reason: why nothing can be said, since fp32 itself has learned nothing; else empty.
    """

    given: dict[str, Any]
    reference: float | None
    enough: str | None
    means: dict[str, float | None]
    formats: int
    finished: bool
    reason: str = ""

    def __str__(self) -> str:
        named = ", ".join(f"{key} {value}" for key, value in self.given.items())
        where = f"{named}: " if named else ""
        if self.reference is None:
            return f"{where}{REFERENCE} has no score to compare with"
        if self.reason:
            return f"{where}cannot be said: {self.reason} ({REFERENCE} {_shown(self.reference)})"
        tried = ", ".join(f"{name} {_shown(mean)}" for name, mean in self.means.items())
        found = f"{self.enough} is enough" if self.enough else "none is good enough"
        found = found if self.finished else f"not finished, so far {found}"
        return (
            f"{where}{found} ({REFERENCE} {_shown(self.reference)}; {tried}); {len(self.means)} of {self.formats} run"
        )


def _shown(mean: float | None) -> str:
    return "crashed" if mean is None else f"{mean:.4g}"


def run_search(
    plan: Plan,
    directory: Path,
    executors: Callable[[], Executor],
    watcher: SweepWatcher,
    **how: Any,
) -> tuple[Summary, list[Finding] | list[Standings]]:
    """Runs what is needed of a plan with a search, round by round.

    Args:
        plan: with ``search``.
        directory: of the results; what was found is written into it, too.
        executors: makes one for each round.
        watcher: is told what happens.
        how: as for :func:`run_sweep`.

    Returns:
        How the runs ended, and what was found, which is little if some have failed.
    """
    assert plan.search is not None
    summary: Summary
    findings: list[Finding] | list[Standings]
    find = run_halving if plan.search.looks_for == "best" else _fewest_bits
    summary, findings = find(plan, directory, executors, watcher, **how)
    write_json(directory / FOUND, {"findings": [asdict(finding) for finding in findings]})
    return summary, findings


def _fewest_bits(
    plan: Plan, directory: Path, executors: Callable[[], Executor], watcher: SweepWatcher, **how: Any
) -> tuple[Summary, list[Finding]]:
    assert plan.search is not None
    rows = branches(plan.runs, plan.search)
    varying = _differing([plan.search.rest_of(runs[0].config) for runs in rows], plan.varying)
    found = [_Branch(plan, runs, varying) for runs in rows]

    def asked(store: SweepDirectory) -> list[Run]:
        wanted = {run.id for branch in found for run in branch.next(store)}
        return [run for run in plan.runs if run.id in wanted]

    summary = run_in_rounds(plan, directory, executors, watcher, asked, **how)
    return summary, [branch.finding(SweepDirectory(directory)) for branch in found]


@final
class _Branch:
    """Runs that differ in the format that is looked for and the seed alone."""

    def __init__(self, plan: Plan, runs: list[Run], varying: Collection[str]) -> None:
        assert plan.search is not None
        goal, rest = plan.search, plan.search.rest_of(runs[0].config)
        self._given = {key: value for key, value in rest.items() if key in varying}
        self._maximize = plan.metric is None or plan.metric.goal == "maximize"
        self._margin = goal.margin
        self._runs: dict[str, list[Run]] = {}
        for run in runs:
            self._runs.setdefault(goal.format_of(run.config), []).append(run)
        self._formats = list(goal.widths(self._runs))

    def next(self, store: SweepDirectory) -> list[Run]:
        """The runs to do before more can be said; those that have ended among them."""
        return [run for name in self._asked(store) for run in self._runs[name]]

    def finding(self, store: SweepDirectory) -> Finding:
        """What is known by now."""
        asked = list(self._asked(store))
        ended = [name for name in asked if self._ended(store, name)]
        means = {name: self._mean(store, name) for name in self._formats if name in ended}
        judged = means if self._ended(store, REFERENCE) else {}  # it may have failed
        enough = next((name for name in judged if self._is_enough(store, name)), None)
        reference = self._mean(store, REFERENCE) if self._ended(store, REFERENCE) else None
        unlearned = self._unlearned(store) if reference is not None else ""
        return Finding(self._given, reference, enough, means, len(self._formats), ended == asked, unlearned)

    def _asked(self, store: SweepDirectory) -> Iterator[str]:
        """The formats of which the results are wanted, up to the first that is not there."""
        yield REFERENCE
        most = len(self._formats) - 1
        yield self._formats[most]
        if not self._ended(store, REFERENCE) or not self._ended(store, self._formats[most]):
            return
        if not self._is_enough(store, self._formats[most]):
            return
        too_few, enough = -1, most
        while enough - too_few > 1:
            middle = (enough + too_few) // 2
            yield self._formats[middle]
            if not self._ended(store, self._formats[middle]):
                return
            if self._is_enough(store, self._formats[middle]):
                enough = middle
            else:
                too_few = middle

    def _ended(self, store: SweepDirectory, name: str) -> bool:
        return all(store.has_ended(run) for run in self._runs[name])

    def _mean(self, store: SweepDirectory, name: str) -> float | None:
        """Returns the mean score over seeds; None if one crashed, whatever that is scored."""
        return mean_score([score_of(store.result(run)) for run in self._runs[name]])

    def _unlearned(self, store: SweepDirectory) -> str:
        """Why runs in fp32 have learned nothing, as far as they tell; else empty."""
        results = [store.result(run) for run in self._runs[REFERENCE]]
        agents = [result for result in results if isinstance(result, Result)]
        if any(result.updates == 0 for result in agents):
            return f"{REFERENCE} itself made no update"
        before = mean_score([result.untrained for result in agents])
        after = self._mean(store, REFERENCE)
        if before is None or after is None or after - before > self._margin * abs(after):
            return ""
        return f"before it learned, {REFERENCE} was as good, {_shown(before)}"

    def _is_enough(self, store: SweepDirectory, name: str) -> bool:
        reference, mean = self._mean(store, REFERENCE), self._mean(store, name)
        if reference is None or mean is None or self._unlearned(store):
            return False
        lost = reference - mean if self._maximize else mean - reference
        return lost <= self._margin * abs(reference)


def _differing(rests: Sequence[dict[str, Any]], varying: Collection[str]) -> list[str]:
    """The keys that tell rows of runs apart, of those that the sweep varies; one under ``actors`` is ``actors.KEY``."""
    every = [key for key in dict.fromkeys(key for rest in rests for key in rest) if key.partition(".")[0] in varying]
    return [key for key in every if any(rest.get(key) != rests[0].get(key) for rest in rests)]
