"""The searches of a sweep: the fewest bits that are good enough, by bisection, or the best candidate, by halving.

Bisection assumes that more bits never make a result worse. The next runs depend only on the runs that have ended,
so a search is continued like any sweep.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from roundoff.files import write_json
from roundoff.runs.result import Result
from roundoff.searches import ask, bisection, halving

from .folder.directory import SweepDirectory
from .language.candidates import candidates
from .language.plan import Plan, branches
from .language.search_goal import REFERENCE
from .rounds import Search, mean, mean_score, once, run_in_rounds, shown, sign
from .subjects.subject import Run
from .sweep import Summary
from .watcher import SweepWatcher
from .workers.pool import Executor

if TYPE_CHECKING:
    from .allocation import Allocation

FOUND = "search.json"


@final
@dataclass(frozen=True)
class Finding:
    """The result of a search for the fewest bits, for one choice of the other keys.

    Attributes:
        given: the other keys that vary.
        reference: mean of fp32 over seeds; None if it is not known, or a score is missing.
        enough: the narrowest format that is good enough; None if no format is.
        means: the means of the formats that were run, the fewest bits first; None for a format with a crashed run.
        formats: the number of formats.
        finished: whether nothing is left to be run; else ``enough`` is provisional.
        reason: why the search gives no answer: fp32 itself has learned nothing; else empty.
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
        prefix = f"{named}: " if named else ""
        if self.reference is None:
            return f"{prefix}{REFERENCE} has no score to compare with"
        if self.reason:
            return f"{prefix}cannot be said: {self.reason} ({REFERENCE} {self.reference:.4g})"
        tried = ", ".join(f"{name} {shown(mean, 'crashed')}" for name, mean in self.means.items())
        verdict = f"{self.enough} is enough" if self.enough else "no format is good enough"
        verdict = verdict if self.finished else f"not finished, so far {verdict}"
        return f"{prefix}{verdict} ({REFERENCE} {self.reference:.4g}; {tried}); {len(self.means)} of {self.formats} run"


@final
@dataclass(frozen=True)
class Standing:
    """The standing of a candidate.

    Attributes:
        candidate: the values that distinguish it from the others.
        mean: the mean of its scores, each seed with the same weight; None if a run lacks a score.
        scores: mean of each seed over tasks, in the order of the sweep; None for a seed without a score.
        crashed: the number of its runs that crashed.
    """

    candidate: str
    mean: float | None
    scores: tuple[float | None, ...]
    crashed: int


@final
@dataclass(frozen=True)
class Standings:
    """The result of a search for the best; ``print`` it.

    Attributes:
        standings: the candidates that have most seeds first, among them the best first.
        finished: whether nothing is left to be run.
    """

    standings: tuple[Standing, ...]
    finished: bool

    def __str__(self) -> str:
        rows = [
            {
                "candidate": standing.candidate,
                "mean": shown(standing.mean, "none"),
                "of each seed": ", ".join(shown(score, "none") for score in standing.scores),
                "crashed": str(standing.crashed),
            }
            for standing in self.standings
        ]
        if not rows:
            return "no candidate has ended"
        from ..analysis import markdown  # noqa: PLC0415  imports matplotlib and SciPy

        best = self.standings[0]
        verdict = f"best: {best.candidate}; chosen by these seeds, so confirm it with others"
        if not self.finished:
            verdict = "not finished: the best is not known yet"
        elif best.mean is None:
            verdict = "no candidate is best: each has a run that crashed"
        return f"{markdown.table(rows)}\n\n{verdict}"


def run_search(
    plan: Plan, directory: Path, executors: Callable[[], Executor], watcher: SweepWatcher, **options: Any
) -> tuple[Summary, list[Finding] | list[Standings] | list[Allocation]]:
    """Runs the part of a plan that its search needs, round by round.

    Args:
        plan: a plan with a ``search``.
        directory: the directory of the results; the findings are also written into it.
        executors: makes one for each round.
        watcher: receives the events.
        options: further arguments of :func:`run_sweep`.

    Returns:
        How the runs ended, and the findings, which are few if some runs have failed.
    """
    from .allocation import Allocation, CheapestArithmetic  # noqa: PLC0415  imports matplotlib and SciPy

    assert plan.search is not None
    search: Search
    if plan.search.looks_for == "cheapest":
        search = CheapestArithmetic(plan, options.get("allow_imports", ()))
    else:
        search = _BestCandidate(plan) if plan.search.looks_for == "best" else _FewestBits(plan)
    summary, findings = run_in_rounds(plan, directory, executors, watcher, search, FOUND, **options)
    for finding in findings:
        if isinstance(finding, Allocation):
            finding.write(directory)
    write_json(directory / FOUND, {"findings": [asdict(finding) for finding in findings]})
    return summary, findings


@final
class _FewestBits:
    """The narrowest format that is good enough, for each choice of the other keys."""

    def __init__(self, plan: Plan) -> None:
        assert plan.search is not None
        self._plan = plan
        # A branch is named by the keys in which it differs from others.
        groups = branches(plan.runs, plan.search)
        other_keys = [plan.search.rest_of(runs[0].config) for runs in groups]
        # A key under ``actors`` is written ``actors.KEY``.
        keys = [key for key in dict.fromkeys(itertools.chain(*other_keys)) if key.partition(".")[0] in plan.varying]
        distinguishing = [key for key in keys if any(x.get(key) != other_keys[0].get(key) for x in other_keys)]
        self._branches = [
            _Branch(plan, runs, {key: value for key, value in others.items() if key in distinguishing})
            for runs, others in zip(groups, other_keys, strict=True)
        ]

    def next_runs(self, store: SweepDirectory) -> list[Run]:
        """The runs that the next decisions need, including the runs that have ended; in the plan's order."""
        ids = {run.id for branch in self._branches for name in branch.next_formats(store) for run in branch.runs[name]}
        return [run for run in self._plan.runs if run.id in ids]

    def result(self, store: SweepDirectory) -> list[Finding]:
        """Returns the current result."""
        return [branch.finding(store) for branch in self._branches]


@final
class _Branch:
    """Runs that differ only in the searched format and the seed."""

    def __init__(self, plan: Plan, runs: list[Run], other_values: dict[str, Any]) -> None:
        assert plan.search is not None
        self._given, self._margin, self._sign = other_values, plan.search.margin, sign(plan)
        self.runs: dict[str, list[Run]] = {}
        for run in runs:
            self.runs.setdefault(plan.search.format_of(run.config), []).append(run)
        self._formats = list(plan.search.widths(self.runs))

    def next_formats(self, store: SweepDirectory) -> list[str]:
        """The formats that the bisection needs, up to the first missing result."""

        def is_enough(name: str) -> bool | None:
            known = store.have_ended([*self.runs[REFERENCE], *self.runs[name]])
            return self._is_enough(store, name) if known else None

        return [REFERENCE, *ask(bisection(self._formats), is_enough)[0]]

    def finding(self, store: SweepDirectory) -> Finding:
        """Returns the current result."""
        formats = self.next_formats(store)
        ended = [name for name in formats if store.have_ended(self.runs[name])]
        means = {name: mean_score(store, self.runs[name]) for name in self._formats if name in ended}
        enough = next((name for name in means if self._is_enough(store, name)), None)  # the fewest bits come first
        reference = mean_score(store, self.runs[REFERENCE])  # None if a run has failed
        unlearned = self._unlearned(store) if reference is not None else ""
        return Finding(self._given, reference, enough, means, len(self._formats), ended == formats, unlearned)

    def _unlearned(self, store: SweepDirectory) -> str:
        """Describes how the runs in fp32 show that they have learned nothing; else empty."""
        results = [store.result(run) for run in self.runs[REFERENCE]]
        agents = [result for result in results if isinstance(result, Result)]
        if any(result.updates == 0 for result in agents):
            return f"{REFERENCE} itself made no update"
        # A run that never learns would be as good in any format, and the narrowest would win.
        before = mean([result.untrained for result in agents])
        after = mean_score(store, self.runs[REFERENCE])
        if before is None or after is None or after - before > self._margin * abs(after):
            return ""
        return f"{REFERENCE} did not improve on its untrained policy, {before:.4g}"

    def _is_enough(self, store: SweepDirectory, name: str) -> bool:
        reference, mean = (mean_score(store, self.runs[compared]) for compared in (REFERENCE, name))
        if reference is None or mean is None or self._unlearned(store):
            return False
        return self._sign * (reference - mean) <= self._margin * abs(reference)  # the sign is -1 for a loss


@final
class _BestCandidate:
    """The best of a plan's :func:`~.language.candidates.candidates`.

    The score of a candidate is the mean over seeds and tasks; of equal scores, the first in the file is the best. A
    crash makes its candidate the worst, whatever its score.
    """

    def __init__(self, plan: Plan) -> None:
        self._runs: dict[str, dict[int, list[Run]]] = {}
        for name, runs in candidates(plan.runs, plan.varying).items():
            for run in runs:
                self._runs.setdefault(name, {}).setdefault(run.config.seed, []).append(run)
        self._seeds = list(dict.fromkeys(run.config.seed for run in plan.runs))
        self._sign = sign(plan)

    def next_runs(self, store: SweepDirectory) -> list[Run]:
        """The runs that the search needs given the results so far, including the runs that have ended."""

        def scores(question: tuple[Sequence[str], int]) -> Mapping[str, float] | None:
            names, count = question
            seeds = self._seeds[:count]
            if not all(store.have_ended(self._runs[name][seed]) for name in names for seed in seeds):
                return None
            return {name: self._rank(mean(self._scores(store, name, seeds))) for name in names}

        rounds = ask(halving(list(self._runs), len(self._seeds)), scores)[0]
        needed = [self._runs[name][seed] for names, count in rounds for name in names for seed in self._seeds[:count]]
        return once(itertools.chain(*needed))

    def result(self, store: SweepDirectory) -> list[Standings]:
        """Returns the current result."""
        standings = []
        for name, runs in self._runs.items():
            if seeds := [seed for seed in self._seeds if store.have_ended(runs[seed])]:
                scores = self._scores(store, name, seeds)
                crashed = [store.state(run) for seed in seeds for run in runs[seed]].count("crashed")
                standings.append(Standing(name, mean(scores), tuple(scores), crashed))
        # A mean over more seeds comes first: it survived more rounds.
        standings.sort(key=lambda standing: (len(standing.scores), self._rank(standing.mean)), reverse=True)
        return [Standings(tuple(standings), store.have_ended(self.next_runs(store)))]

    def _rank(self, mean: float | None) -> float:
        return -math.inf if mean is None else self._sign * mean  # a crash is the worst result

    def _scores(self, store: SweepDirectory, name: str, seeds: Sequence[int]) -> list[float | None]:
        return [mean_score(store, self._runs[name][seed]) for seed in seeds]
