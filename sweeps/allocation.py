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
from .costs import count_run
from .errors import SweepError
from .folder.directory import SweepDirectory
from .language.candidates import arithmetic, candidate, cost_by, fixed_units, found_units
from .language.plan import Plan
from .language.search_goal import REFERENCE
from .rounds import mean_score, once, shown, sign
from .subjects.agents import AGENTS
from .subjects.subject import Run, RunConfig, run_id

_Question = tuple["Sequence[Mapping[str, str]]", int]

_CHOOSING_SHARE = 0.5
"""The share of the margin that may be lost on the seeds that choose."""


@final
@dataclass(frozen=True)
class Allocation:
    """The result of a search for the cheapest formats; ``print`` it.

    Attributes:
        by: the name of the minimized cost, or of its model.
        chosen: the format of each part that has one; the others stay in fp32.
        arithmetic: the chosen formats as keys of a run: ``policy``, or ``storage``.
        cost: the cost of a step, or of memory; None if the model gives no cost.
        reference_cost: this cost in fp32.
        mean: the mean over the confirming seeds; None if a run crashed, or they have not ended.
        reference: this mean in fp32.
        seeds: the number of these seeds.
        answer: the answer of the test with these seeds: ``equivalent within 5 %``, ``inconclusive``, ...; empty
            until they have ended.
        finished: whether nothing is left to be run.
        source: the unit and source of the model, if a model determines costs.
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
        left_out = f"\nleft out: {_describe_unpriced(self.by, self.unpriced)}" if self.unpriced else ""
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
        """Describes the cost relative to the reference's; for a model, also its source."""
        if self.cost is None or not self.reference_cost:
            return f"; model {self.by} has no number for all of it" if self.source else ""
        share = f"{100 * self.cost / self.reference_cost:.3g} % of {REFERENCE}'s"
        if self.source:
            return f"; model {self.by} {self.cost:,.4g}, {share} {self.reference_cost:,.4g} ({self.source})"
        return f"; {self.by} {self.cost:,.0f}, {share} {self.reference_cost:,.0f}"


@final
class CheapestArithmetic:
    """The search for the cheapest arithmetic of a plan. The plan's runs are in fp32 and differ in their seeds.

    Args:
        plan: a plan with a search for the cheapest.
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
        # The runs of the plan differ in their seeds; different seeds choose and confirm, so that the test is fair.
        self._choosing = list(plan.runs[: plan.search.choose])
        self._fresh = list(plan.runs[plan.search.choose :])
        self._choices = _cheapest_first(plan.search.formats, self._model)
        self.unpriced: dict[str, str] = {}
        # Finds the parts that the cheapest format makes cheaper, sorted by the ratio of saving to loss, best first. The
        # saving is a difference of costs; the loss is the deviation of the weights after a few steps.
        base = self._plan.runs[0]
        reference_cost = self._cost(base.config)
        if reference_cost is None:
            unpriced = _describe_unpriced(self._by, {REFERENCE: self._unpriced_products(base.config)})
            raise SweepError(f"search.by: {unpriced}: there is nothing to compare with")
        units = fixed_units(self._goal, base.config)
        if units is None:
            units = found_units(self._goal, self._count(base.config).cost)
        ratios = {}
        for unit in units:
            config = candidate(self._goal, base, {unit: self._choices[0]}, self._subject)
            cost = self._cost(config)
            if cost is None:
                self.unpriced[unit] = self._unpriced_products(config)
            elif cost < reference_cost:
                loss = self._count(config).led_astray(self._count(base.config))
                ratios[unit] = (reference_cost - cost) / loss if loss else math.inf  # a saving that costs nothing
        self.units = sorted(ratios, key=ratios.__getitem__, reverse=True)
        self._sign = sign(plan)

    @property
    def most_runs(self) -> int:
        """The largest possible number of runs."""
        # One unit for which all formats pass equally shows how many seeds each format can get.
        one_unit = allocation(["one"], self._choices, len(self._choosing))
        seeds_by_format: dict[str, int] = {}
        questions, _ = ask(one_unit, lambda candidates: [0.0] * len(candidates[0]))
        for candidates, count in questions:
            seeds_by_format |= {chosen["one"]: count for chosen in candidates}
        return len(self._plan.runs) + len(self.units) * sum(seeds_by_format.values()) + len(self._fresh)

    def describe_unpriced(self) -> str:
        """Describes the products that the model gives no cost for, and the parts that are left out for this reason."""
        return _describe_unpriced(self._by, self.unpriced)

    def next_runs(self, store: SweepDirectory) -> list[Run]:
        """The runs that the search needs given the results so far, including the runs that have ended."""
        questions, best = self._best_formats(store)
        runs = [*self._choosing]
        for candidates, count in questions:
            for chosen in candidates:
                runs += self._runs(chosen, self._choosing[:count])
        if best:
            runs += [*self._fresh, *self._runs(best, self._fresh)]
        return once(runs)

    def result(self, store: SweepDirectory) -> list[Allocation]:
        """Returns the current result."""
        questions, best = self._best_formats(store)
        if best is None:  # the best so far: the most parts, then the highest score, with all seeds that choose
            seeds = len(self._choosing)
            scored = [x for candidates, count in questions if count == seeds for x in candidates]
            chosen = max(scored, key=lambda x: (len(x), self._score(store, x, seeds) or 0.0), default={})
            chosen = chosen if (self._score(store, chosen, seeds) or 0.0) > 0 else {}
            return [self._allocation(store, chosen, finished=False)]
        finished = store.have_ended([*self._fresh, *self._runs(best, self._fresh)]) if best else True
        return [self._allocation(store, best, finished=finished)]

    def _best_formats(self, store: SweepDirectory) -> tuple[list[_Question], dict[str, str] | None]:
        """Returns the questions of the search so far, and the chosen formats, or None if questions are open."""

        def scores(question: _Question) -> list[float] | None:
            candidates, count = question
            scored = [self._score(store, chosen, count) for chosen in candidates]
            return None if None in scored else [score for score in scored if score is not None]

        return ask(allocation(self.units, self._choices, len(self._choosing)), scores)

    def _score(self, store: SweepDirectory, chosen: Mapping[str, str], count: int) -> float | None:
        """Returns the score of formats on the first ``count`` seeds that choose; None until their runs have ended.

        The score is above 0 if the loss is small, and then higher for a narrower last format; else minus the loss.
        """
        runs, reference_runs = self._runs(chosen, self._choosing[:count]), self._choosing[:count]
        if not store.have_ended([*reference_runs, *runs]):
            return None
        mean, reference = (mean_score(store, compared) for compared in (runs, reference_runs))
        if mean is None or reference is None:
            return -math.inf
        loss = self._sign * (reference - mean)
        if loss > _CHOOSING_SHARE * self._goal.margin * abs(reference):
            return -loss
        # The formats are sorted by cost: the cheapest gets the highest score.
        return float(len(self._choices) - self._choices.index([*chosen.values()][-1]))

    def _allocation(self, store: SweepDirectory, chosen: Mapping[str, str], *, finished: bool) -> Allocation:
        base = self._plan.runs[0]
        runs, reference_runs = self._runs(chosen, self._fresh), self._fresh
        has_means = finished and bool(chosen)
        return Allocation(
            by=self._by,
            chosen=dict(chosen),
            arithmetic=arithmetic(self._goal, chosen),
            cost=self._cost(candidate(self._goal, base, chosen, self._subject)),
            reference_cost=self._cost(base.config),
            mean=mean_score(store, runs) if has_means else None,
            reference=mean_score(store, reference_runs) if has_means else None,
            seeds=len(self._fresh),
            answer=self._answer(store, runs) if has_means else "",
            finished=finished,
            source="" if self._model is None else f"{self._model.unit}; source: {self._model.source}",
            unpriced=self.unpriced,
        )

    def _answer(self, store: SweepDirectory, runs: Sequence[Run]) -> str:
        """Returns the answer of the confirming seeds, by the tests of ``roundoff against``."""
        scores = []
        for name, compared in (("", runs), (f" in {REFERENCE}", self._fresh)):
            if crashed := [store.state(run) for run in compared].count("crashed"):
                return f"inconclusive: {crashed} of {len(compared)} runs{name} crashed"
            results = {run.config.seed: store.result(run).score for run in compared}
            scores.append({seed: self._sign * score for seed, score in results.items() if score is not None})
        chosen, reference = scores
        margin = self._goal.margin
        return in_words(difference([chosen], [reference]).p, equivalence([chosen], [reference], margin).p, margin)

    def _runs(self, chosen: Mapping[str, str], runs: Sequence[Run]) -> list[Run]:
        """Makes runs like ``runs`` with the formats chosen for some parts."""
        case = ", ".join(f"{unit} {name}" for unit, name in chosen.items())
        configs = [candidate(self._goal, run, chosen, self._subject) for run in runs]
        return [Run(run_id(config), config, case) for config in configs]

    def _cost(self, config: RunConfig) -> float | None:
        return cost_by(self._by, self._count(config).cost)

    def _unpriced_products(self, config: RunConfig) -> str:
        """Describes the products that the model gives no cost for."""
        return "; ".join(self._count(config).cost["models"][self._by]["without"])

    def _count(self, config: RunConfig) -> CountedSteps:
        # A cost takes seconds to count, and is the same for all seeds.
        key = json.dumps({name: value for name, value in config.as_json().items() if name != "seed"}, sort_keys=True)
        if key not in self._counted:
            models = () if self._model is None else (self._model,)
            self._counted[key] = count_run(config, self._imports, models)
        return self._counted[key]


def _describe_unpriced(model: str, unpriced: Mapping[str, str]) -> str:
    """Names the products that a model gives no cost for, and their parts."""
    listed = ", ".join(f"{unit} ({products})" for unit, products in unpriced.items())
    return f"model {model} has no number for all products of {listed}"


def _cheapest_first(names: Sequence[str], model: CostModel | None) -> list[str]:
    """Sorts formats by the model's cost of a product of two such operands, then by their bits."""
    from .subjects.program_keys import format_named  # noqa: PLC0415  imports torch, which costs seconds

    def cost(name: str) -> tuple[float, float]:
        price = 0.0 if model is None else model.price(name, name, REFERENCE)
        return (math.inf if price is None else price, format_named(name).bits_per_number)

    return sorted(names, key=cost)
