"""A search for the cheapest arithmetic: the narrowest format of each part that keeps the metric near fp32's.

The parts are searched in turn, starting with the best ratio of saving to loss, each by successive halving of the
formats, with the earlier parts in the formats found for them. Some seeds choose the formats; other seeds confirm the
choice, by the test of equivalence of ``roundoff against``.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, final

import yaml

from roundoff.files import write_text
from roundoff.searches import allocation, ask

from ..analysis import difference, equivalence, in_words
from ..simulate import CostModel, CountedSteps
from .costs import counted_steps
from .errors import SweepError
from .folder.directory import SweepDirectory
from .language.candidates import arithmetic, candidate, cost_by, fixed_units, found_units
from .language.plan import Plan
from .language.search_goal import REFERENCE
from .rounds import mean_score, once, shown, sign
from .subjects.agents import AGENTS
from .subjects.subject import Run, RunConfig, run_id

_Question = tuple["Sequence[Mapping[str, str]]", int]

_OF_CHOOSING = 0.5
"""The part of the margin that may be lost with the seeds that choose."""


@final
@dataclass(frozen=True)
class Allocation:
    """The result of a search for the cheapest formats; ``print`` it.

    Attributes:
        by: the cost that was made small; a model by its name.
        chosen: the format of each part that has one; the others stay in fp32.
        arithmetic: the same as keys of a run: ``policy``, or ``storage``.
        cost: the cost of a step, or of memory; None if the model gives no cost.
        reference_cost: the same of fp32.
        mean: over the confirming seeds; None if a run crashed, or they have not ended.
        reference: the same of fp32.
        seeds: the number of these seeds.
        answer: the answer of the test with these seeds: ``equivalent within 5 %``, ``inconclusive``, ...; empty
            until they have ended.
        finished: whether nothing is left to be run.
        source: the unit and source of the model, where a model determines costs.
        unpriced: products that the model gives no cost for, by the part that is left out for them.
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
    source: str = ""
    unpriced: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        left_out = f"\nleft out: {_without_numbers(self.by, self.unpriced)}" if self.unpriced else ""
        if not self.chosen:
            so_far = "" if self.finished else "not finished, so far "
            return f"{so_far}no part has a cheaper format that passes: {REFERENCE} is the cheapest{left_out}"
        named = ", ".join(f"{unit} {name}" for unit, name in self.chosen.items())
        if not self.finished or not self.answer:
            return f"not finished, so far: {named}"
        means = f"mean {shown(self.mean, 'none')}, {REFERENCE} {shown(self.reference, 'none')}"
        return f"{named}{self._saved()}\non {self.seeds} fresh seeds: {self.answer} ({means}){left_out}"

    def write(self, directory: Path) -> None:
        """Writes ``policy.yaml`` or ``storage.yaml``, which a run takes, if the search is finished."""
        for key, value in self.arithmetic.items() if self.finished else ():
            about = f"{self}\nall else: format {REFERENCE}, as sweeps have it, and --format {REFERENCE} of run"
            comment = "\n# ".join(about.splitlines())
            text = yaml.safe_dump(json.loads(json.dumps(value)), sort_keys=False)
            write_text(directory / f"{key}.yaml", f"# {comment}\n{text}")

    def _saved(self) -> str:
        """The cost relative to the reference's; for a model, also its source."""
        if self.cost is None or not self.reference_cost:
            return f"; model {self.by} has no number for all of it" if self.source else ""
        share = f"{100 * self.cost / self.reference_cost:.3g} % of {REFERENCE}'s"
        if self.source:
            return f"; model {self.by} {self.cost:,.4g}, {share} {self.reference_cost:,.4g} ({self.source})"
        return f"; {self.by} {self.cost:,.0f}, {share} {self.reference_cost:,.0f}"


@final
class CheapestArithmetic:
    """The cheapest arithmetic of a plan. The plan's runs are in fp32 and differ in their seeds.

    Args:
        plan: with a search for the cheapest.
        allow_imports: modules that may be imported to make a task when its cost is counted.
    """

    def __init__(self, plan: Plan, allow_imports: Collection[str] = ()) -> None:
        assert plan.search is not None
        self._goal, self._plan = plan.search, plan
        self._subject = plan.program or AGENTS
        self._imports = allow_imports
        self._counted: dict[str, CountedSteps] = {}
        self._model = plan.search.model
        self._by = plan.search.by if self._model is None else self._model.name
        self._choosing = list(plan.runs[: plan.search.choose])
        self._fresh = list(plan.runs[plan.search.choose :])
        self._choices = _cheapest_first(plan.search.formats, self._model)
        self.unpriced: dict[str, str] = {}
        # The parts that the cheapest format makes cheaper, sorted by the ratio of saving to loss, best first. The
        # saving is a share of the cost; the loss is how far a few steps lead astray.
        base = self._plan.runs[0]
        plain = self._cost(base.config)
        if plain is None:
            raise SweepError(
                f"search.by: {_without_numbers(self._by, {REFERENCE: self._without(base.config)})}: there is nothing to"
                " compare with"
            )
        units = fixed_units(self._goal, base.config)
        if units is None:
            units = found_units(self._goal, self._count(base.config).cost)
        worth = {}
        for unit in units:
            config = candidate(self._goal, base, {unit: self._choices[0]}, self._subject)
            cost = self._cost(config)
            if cost is None:
                self.unpriced[unit] = self._without(config)
            elif cost < plain:
                lost = self._count(config).led_astray(self._count(base.config))
                worth[unit] = (plain - cost) / lost if lost else math.inf
        self.units = sorted(worth, key=worth.__getitem__, reverse=True)
        self._sign = sign(plan)

    @property
    def most_runs(self) -> int:
        """The largest possible number of runs."""
        one_unit = allocation(["one"], self._choices, len(self._choosing))
        each: dict[str, int] = {}
        questions, _ = ask(one_unit, lambda asked: [0.0] * len(asked[0]))
        for asked, count in questions:
            each |= {chosen["one"]: count for chosen in asked}
        return len(self._plan.runs) + len(self.units) * sum(each.values()) + len(self._fresh)

    def told_unpriced(self) -> str:
        """Describes the products that the model gives no cost for, and the parts that are left out for that reason."""
        return _without_numbers(self._by, self.unpriced)

    def next_runs(self, store: SweepDirectory) -> list[Run]:
        """The runs that the search needs given the results so far, including the runs that have ended."""
        questions, found = self._search(store)
        wanted = [*self._choosing]
        for candidates, count in questions:
            for chosen in candidates:
                wanted += self._runs(chosen, self._choosing[:count])
        if found:
            wanted += [*self._fresh, *self._runs(found, self._fresh)]
        return once(wanted)

    def found(self, store: SweepDirectory) -> list[Allocation]:
        """Returns the current result."""
        questions, found = self._search(store)
        if found is None:
            seeds = len(self._choosing)
            asked = [one for candidates, count in questions if count == seeds for one in candidates]
            chosen = max(asked, key=lambda one: (len(one), self._score(store, one, seeds) or 0.0), default={})
            chosen = chosen if (self._score(store, chosen, seeds) or 0.0) > 0 else {}
            return [self._allocation(store, chosen, finished=False)]
        finished = store.have_ended([*self._fresh, *self._runs(found, self._fresh)]) if found else True
        return [self._allocation(store, found, finished=finished)]

    def _search(self, store: SweepDirectory) -> tuple[list[_Question], dict[str, str] | None]:
        def scores(question: _Question) -> list[float] | None:
            candidates, count = question
            found = [self._score(store, chosen, count) for chosen in candidates]
            return None if None in found else [score for score in found if score is not None]

        return ask(allocation(self.units, self._choices, len(self._choosing)), scores)

    def _score(self, store: SweepDirectory, chosen: Mapping[str, str], count: int) -> float | None:
        """Returns the score of formats, by the first ``count`` seeds that choose; None until their runs have ended.

        Above 0 where they lose little, the more the narrower the last one is; else the more the less they lose.
        """
        runs, same = self._runs(chosen, self._choosing[:count]), self._choosing[:count]
        if not store.have_ended([*same, *runs]):
            return None
        own, theirs = (mean_score(store, which) for which in (runs, same))
        if own is None or theirs is None:
            return -math.inf
        lost = self._sign * (theirs - own)
        if lost > _OF_CHOOSING * self._goal.margin * abs(theirs):
            return -lost
        return float(len(self._choices) - self._choices.index([*chosen.values()][-1]))

    def _allocation(self, store: SweepDirectory, chosen: Mapping[str, str], *, finished: bool) -> Allocation:
        base = self._plan.runs[0]
        own, theirs = self._runs(chosen, self._fresh), self._fresh
        known = finished and bool(chosen)
        return Allocation(
            by=self._by,
            chosen=dict(chosen),
            arithmetic=arithmetic(self._goal, chosen),
            cost=self._cost(candidate(self._goal, base, chosen, self._subject)),
            reference_cost=self._cost(base.config),
            mean=mean_score(store, own) if known else None,
            reference=mean_score(store, theirs) if known else None,
            seeds=len(self._fresh),
            answer=self._answer(store, own) if known else "",
            finished=finished,
            source="" if self._model is None else f"{self._model.unit}; source: {self._model.source}",
            unpriced=self.unpriced,
        )

    def _answer(self, store: SweepDirectory, runs: Sequence[Run]) -> str:
        """Returns the answer of the seeds that did not choose, by the tests of ``roundoff against``."""
        scores = []
        for name, which in (("", runs), (f" in {REFERENCE}", self._fresh)):
            if crashed := [store.state(run) for run in which].count("crashed"):
                return f"inconclusive: {crashed} of {len(which)} runs{name} crashed"
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

    def _cost(self, config: RunConfig) -> float | None:
        return cost_by(self._by, self._count(config).cost)

    def _without(self, config: RunConfig) -> str:
        """Describes the products that the model gives no cost for."""
        return "; ".join(self._count(config).cost["models"][self._by]["without"])

    def _count(self, config: RunConfig) -> CountedSteps:
        key = json.dumps({name: value for name, value in config.as_json().items() if name != "seed"}, sort_keys=True)
        if key not in self._counted:
            models = () if self._model is None else (self._model,)
            self._counted[key] = counted_steps(config, self._imports, models)
        return self._counted[key]


def _without_numbers(model: str, unpriced: Mapping[str, str]) -> str:
    """Names the products that a model gives no cost for, and their parts."""
    listed = ", ".join(f"{unit} ({products})" for unit, products in unpriced.items())
    return f"model {model} has no number for all products of {listed}"


def _cheapest_first(names: Sequence[str], model: CostModel | None) -> list[str]:
    """Formats, sorted by the model's cost of a product of two such operands, then by their bits."""
    from .subjects.program_keys import format_named  # noqa: PLC0415  imports torch, which costs seconds

    def cost(name: str) -> tuple[float, float]:
        price = 0.0 if model is None else model.price(name, name, REFERENCE)
        return (math.inf if price is None else price, format_named(name).bits_per_number)

    return sorted(names, key=cost)
