"""A search for the cheapest arithmetic: each part's narrowest format with which the metric stays near that of fp32.

Parts are asked about in turn, those first that save most, each by bisection over the formats, beside what was found for
those before it. Some seeds choose; others have the last word, by the test of equivalence that ``roundoff against`` has.
"""

from __future__ import annotations

import json
import math
import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

import yaml

from roundoff.files import write_text
from roundoff.searches import allocation, ask

from ..analysis import difference, equivalence, in_words
from .costs import counted_cost
from .language.cheapest import arithmetic, candidate, fixed_units
from .language.run import Run, run_id
from .language.search_goal import REFERENCE
from .subjects.agents import AGENTS

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from pathlib import Path

    from .folder.directory import SweepDirectory
    from .language.plan import Plan
    from .subjects.subject import RunConfig

_OF_CHOOSING = 0.5
"""The part of the margin that may be lost with the seeds that choose."""
_FILES = {"policy": "policy.yaml", "storage": "storage.yaml"}


@final
@dataclass(frozen=True)
class Allocation:
    """What a search for the cheapest has found; ``print`` it.

    Attributes:
        by: the cost that was made small.
        chosen: the format of each part that has one; the others stay in fp32.
        arithmetic: the same as keys of a run: ``policy``, or ``storage``.
        cost: of a step, or what is kept; None where the model has no number.
        reference_cost: the same of fp32.
        mean: of the seeds that have the last word; None if a run crashed, or they have not ended.
        reference: the same of fp32.
        seeds: how many these are.
        answer: of the test with these seeds: ``equivalent within 5 %``, ``not shown``, ...; empty as long as they have
            not ended.
        finished: whether nothing is left to be run.
    """

    by: str
    chosen: dict[str, str]
    arithmetic: dict[str, Any]
    cost: float | None
    reference_cost: float | None
    mean: float | None
    reference: float | None
    seeds: int
    answer: str
    finished: bool

    def __str__(self) -> str:
        if not self.chosen:
            so_far = "" if self.finished else "not finished, so far "
            return f"{so_far}no part has a cheaper format that passes: {REFERENCE} is the cheapest"
        named = ", ".join(f"{unit} {name}" for unit, name in self.chosen.items())
        if not self.finished or not self.answer:
            return f"not finished, so far: {named}"
        saved = ""
        if self.cost is not None and self.reference_cost:
            share = 100 * self.cost / self.reference_cost
            saved = f"; {self.by} {self.cost:,.0f}, {share:.3g} % of {REFERENCE}'s {self.reference_cost:,.0f}"
        means = f"mean {_shown(self.mean)}, {REFERENCE} {_shown(self.reference)}"
        return f"{named}{saved}\non {self.seeds} fresh seeds: {self.answer} ({means})"


@final
class CheapestArithmetic:
    """The cheapest arithmetic of a plan, whose runs are in fp32 and differ in their seeds.

    Args:
        plan: with a search for the cheapest.
        allow_imports: modules that may be imported to make a task, whose cost is counted.
    """

    def __init__(self, plan: Plan, allow_imports: Collection[str] = ()) -> None:
        assert plan.search is not None
        self._goal, self._plan = plan.search, plan
        self._subject = plan.program or AGENTS
        self._imports = allow_imports
        self._costs: dict[str, dict[str, Any]] = {}
        self._choosing = list(plan.runs[: plan.search.choose])
        self._fresh = list(plan.runs[plan.search.choose :])
        self._choices = _cheapest_first(plan.search.formats)
        self.units = self._by_saving()
        self._sign = 1 if plan.metric is None or plan.metric.goal == "maximize" else -1

    @property
    def most_runs(self) -> int:
        """How many runs there are at most."""
        each = 1 + math.ceil(math.log2(len(self._choices))) if len(self._choices) > 1 else 1
        return len(self._plan.runs) + len(self.units) * each * len(self._choosing) + len(self._fresh)

    def asked(self, store: SweepDirectory) -> list[Run]:
        """The runs that are wanted in view of those that have ended, which are among them."""
        questions, found = self._search(store)
        wanted = [*self._choosing]
        for chosen in questions:
            wanted += self._runs(chosen, self._choosing)
        if found:
            wanted += [*self._fresh, *self._runs(found, self._fresh)]
        return list({run.id: run for run in wanted}.values())

    def found(self, store: SweepDirectory) -> list[Allocation]:
        """What is known by now; writes the arithmetic as a file that a run takes, once it has the last word."""
        questions, found = self._search(store)
        if found is None:
            passed = [one for one in questions if store.have_ended(self._runs(one, self._choosing))]
            chosen = next((one for one in reversed(passed) if self._passes(store, one)), {})
            return [self._allocation(store, chosen, finished=False)]
        finished = store.have_ended([*self._fresh, *self._runs(found, self._fresh)]) if found else True
        return [self._allocation(store, found, finished=finished)]

    def write(self, directory: Path, findings: Sequence[Allocation]) -> None:
        """Writes what was found as ``policy.yaml`` or ``storage.yaml``, if the search is finished."""
        for finding in findings:
            for key, value in finding.arithmetic.items() if finding.finished else ():
                text = yaml.safe_dump(json.loads(json.dumps(value)), sort_keys=False)
                about = f"{finding}\nall else: format {REFERENCE}, as sweeps have it, and --format {REFERENCE} of run"
                write_text(directory / _FILES[key], f"# {_comment(about)}\n{text}")

    def _search(self, store: SweepDirectory) -> tuple[list[Mapping[str, str]], dict[str, str] | None]:
        def passes(chosen: Mapping[str, str]) -> bool | None:
            return self._passes(store, chosen)

        return ask(allocation(self.units, self._choices), passes)

    def _passes(self, store: SweepDirectory, chosen: Mapping[str, str]) -> bool | None:
        """Whether the seeds that choose lose little; None as long as not all of their runs have ended."""
        runs = self._runs(chosen, self._choosing)
        if not store.have_ended([*self._choosing, *runs]):
            return None
        own, theirs = (_mean(store, which) for which in (runs, self._choosing))
        if own is None or theirs is None:
            return False
        return self._sign * (theirs - own) <= _OF_CHOOSING * self._goal.margin * abs(theirs)

    def _allocation(self, store: SweepDirectory, chosen: Mapping[str, str], *, finished: bool) -> Allocation:
        base = self._plan.runs[0]
        own, theirs = self._runs(chosen, self._fresh), self._fresh
        known = finished and bool(chosen)
        return Allocation(
            by=self._goal.by,
            chosen=dict(chosen),
            arithmetic=arithmetic(self._goal, chosen),
            cost=self._cost(candidate(self._goal, base, chosen, self._subject)),
            reference_cost=self._cost(base.config),
            mean=_mean(store, own) if known else None,
            reference=_mean(store, theirs) if known else None,
            seeds=len(self._fresh),
            answer=self._answer(store, own) if known else "",
            finished=finished,
        )

    def _answer(self, store: SweepDirectory, runs: Sequence[Run]) -> str:
        """What the seeds that did not choose say, by the tests of ``roundoff against``."""
        scores = []
        for name, which in (("", runs), (f" in {REFERENCE}", self._fresh)):
            if crashed := [store.state(run) for run in which].count("crashed"):
                return f"not shown: {crashed} of {len(which)} runs{name} crashed"
            results = {run.config.seed: store.result(run).score for run in which}
            scores.append({seed: self._sign * score for seed, score in results.items() if score is not None})
        own, theirs = scores
        margin = self._goal.margin
        return in_words(difference([own], [theirs]).p, equivalence([own], [theirs], margin).p, margin)

    def _runs(self, chosen: Mapping[str, str], runs: Sequence[Run]) -> list[Run]:
        """Runs like these with the formats chosen for some parts."""
        case = ", ".join(f"{unit} {name}" for unit, name in chosen.items())
        configs = [candidate(self._goal, run, chosen, self._subject) for run in runs]
        return [Run(run_id(config), config, case) for config in configs]

    def _by_saving(self) -> list[str]:
        """The parts that the cheapest format makes cheaper, those that save most first."""
        base = self._plan.runs[0]
        units = fixed_units(self._goal, base.config)
        if units is None:
            units = self._counted(base.config)["modules"]
        plain = self._cost(base.config)
        saved = {}
        for unit in units:
            cost = self._cost(candidate(self._goal, base, {unit: self._choices[0]}, self._subject))
            if plain is not None and cost is not None and cost < plain:
                saved[unit] = plain - cost
        return sorted(saved, key=saved.__getitem__, reverse=True)

    def _cost(self, config: RunConfig) -> float | None:
        counted = self._counted(config)
        if self._goal.by == "bytes":
            return float(counted["bytes_read"] + counted["bytes_written"])
        if self._goal.by in ("bops", "memory"):
            return float(counted["bops" if self._goal.by == "bops" else "bytes_kept"])
        value = counted["models"][self._goal.by]["value"]
        return None if value is None else float(value)

    def _counted(self, config: RunConfig) -> dict[str, Any]:
        key = json.dumps({name: value for name, value in config.as_json().items() if name != "seed"}, sort_keys=True)
        if key not in self._costs:
            self._costs[key] = counted_cost(config, self._imports)
        return self._costs[key]


def _cheapest_first(names: Sequence[str]) -> list[str]:
    from .subjects.program_keys import format_named  # noqa: PLC0415  imports torch, which costs seconds

    return sorted(names, key=lambda name: format_named(name).bits_per_number)


def _mean(store: SweepDirectory, runs: Sequence[Run]) -> float | None:
    """The mean score; None if a run has not ended, crashed, or has no score."""
    scores = []
    for run in runs:
        result = store.result(run) if store.has_ended(run) else None
        if result is None or result.status == "crashed" or result.score is None:
            return None
        scores.append(float(result.score))
    return statistics.fmean(scores)


def _shown(mean: float | None) -> str:
    return "none" if mean is None else f"{mean:.4g}"


def _comment(text: str) -> str:
    return "\n# ".join(text.splitlines())
