"""Measures the effect of each operation or role on returns: its gain in fp32, its cost in the format, over seeds."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple, final

from roundoff.files import write_json
from roundoff.searches import FEW, ask, halving

from ..agents import LEFT_MOVES, UNROUNDED, TrainConfig, check_over, units_of_run, with_rules
from ..analysis import MARGIN, difference, equivalence, holm, in_words, markdown
from ..simulate import HIGH, BlameError
from .folder.directory import SweepDirectory
from .language.plan import Plan
from .rounds import mean, once, run_in_rounds, shown
from .subjects.subject import Run, run_id
from .sweep import Summary
from .watcher import SweepWatcher
from .workers.pool import Executor

FOUND = "blame.json"
_NOTHING, _DATA, _ALL = "nothing", "what comes from outside", "everything"
"""The reference cases, named by the values that are in the format."""


@final
@dataclass(frozen=True)
class Effect:
    """The change of the return if one unit is computed in another format than all others.

    Attributes:
        unit: the operation or role; ``everything``, or only ``what comes from outside``.
        mean: the mean return over seeds.
        seeds: the number of seeds.
        crashed: the number of these runs that crashed, which counts as a return of 0.
        effect: mean difference of returns: a gain, or a cost.
        low: lower end of its 95 % interval, by Student's t, paired by seed; None for one seed.
        high: the upper end.
        p: the two-sided p-value of "no difference", adjusted by Holm for all rows of the table.
        answer: as in ``roundoff against``: ``shown to differ``, ``equivalent within 5 %``, ``inconclusive``, ...
    """

    unit: str
    mean: float
    seeds: int
    crashed: int
    effect: float
    low: float | None
    high: float | None
    p: float | None
    answer: str


@final
@dataclass(frozen=True)
class Costs:
    """The costs of each unit in a format; ``print`` it.

    Attributes:
        format: the format.
        over: the kind of the units: ``operation`` or ``role``.
        seeds: the first and the last seed.
        reference: mean return with nothing in the format; None if that has not been run.
        everything: mean return with everything in the format; None if that has not been run.
        gains: the gain of each unit in fp32, with all else in the format, over everything in the format; the largest
            number of seeds first, then the largest gain.
        costs: the cost of each unit in the format, with all else in fp32, against nothing in the format; the largest
            number of seeds first, then the largest cost.
    """

    format: str
    over: str
    seeds: tuple[int, int]
    reference: float | None
    everything: float | None
    gains: tuple[Effect, ...]
    costs: tuple[Effect, ...]

    def __str__(self) -> str:
        seeds = f"seeds {self.seeds[0]} to {self.seeds[1]}"
        low, high = (shown(mean, "unknown") for mean in (self.everything, self.reference))
        return "\n".join(
            [
                f"mean return {high} in {HIGH}, {low} in {self.format} ({seeds})",
                *self._table(f"one {self.over} in {HIGH}, all else in {self.format}", "gain", self.gains),
                *self._table(f"one {self.over} in {self.format}, all else in {HIGH}", "cost", self.costs),
            ]
        )

    def _table(self, heading: str, name: str, effects: Sequence[Effect]) -> list[str]:
        rows = [
            {
                self.over: effect.unit,
                "return": f"{effect.mean:.4g}",
                name: f"{effect.effect:+.4g}",
                "95 % interval": "" if effect.low is None else f"{effect.low:+.4g} to {effect.high:+.4g}",
                "p (Holm)": "" if effect.p is None else f"{effect.p:.2g}",
                "seeds": f"{effect.seeds}, {effect.crashed} crashed" if effect.crashed else str(effect.seeds),
                "answer": effect.answer,
            }
            for effect in effects
        ]
        return ["", f"{heading}:", "", markdown.table(rows) if rows else "no run has ended"]


def blame_returns(
    config: TrainConfig,
    directory: Path,
    executors: Callable[[], Executor],
    watcher: SweepWatcher,
    *,
    over: str = "operation",
    seeds: int = 8,
    margin: float = MARGIN,
    **options: Any,
) -> tuple[Summary, Costs]:
    """Measures what each operation or role costs a training run's return, with more seeds for the large effects.

    Every unit has two measurements: the gain if only the unit is in fp32 and everything else in the format, and the
    cost if only the unit is in the format and everything else in fp32. All runs use the same seeds (common random
    numbers), as do three further cases: fp32, everything in the format, and only the values from outside in the
    format. Each difference is paired by seed.

    Each measurement is a search by successive halving (:func:`roundoff.searches.halving`), which drops the half of the
    units with the smaller mean gain or cost; roles are few, so no role is dropped. If others were dropped, a kept unit
    was chosen by some of the seeds behind its own estimate, so the estimate is biased
    upwards: confirm it with other seeds (``seed=100``). The runs of one case can train as a population.

    Args:
        config: a run in the format; its ``seed`` is the first one.
        directory: the sweep's folder, which every command about results reads; a call that was stopped is
            continued by the same call. The table is also written into it.
        executors: makes one for each round.
        watcher: receives the events.
        over: ``operation`` or ``role``. The operations are taken from one observed run that rounds only the values from
            outside; operations that only move values pass their inputs on.
        seeds: the number of seeds, 2 or more.
        margin: the share of the reference's mean that counts as no difference, as for ``roundoff against``.
        options: further arguments of :func:`~.sweep.run_sweep`.

    Returns:
        How the runs ended, and the table of the ended runs.

    Raises:
        BlameError: nothing can be blamed: the run is in fp32, takes no policy, or has storage in separate formats.
        SweepError: the folder is something else.
    """
    check_over(over)
    search = _SeedsPerCase(config, over, seeds, margin)
    name = re.sub(r"[^\w.-]", "_", f"blame-{config.task}-{config.format}")
    about = f"What each {over} costs in {config.format}."
    plan = Plan(name, about, ("format", "policy", "seed"), ())
    summary, costs = run_in_rounds(plan, directory, executors, watcher, search, FOUND, **options)
    write_json(directory / FOUND, asdict(costs))
    return summary, costs


class _Question(NamedTuple):
    """A measurement of every unit: its gain in fp32, or its cost in the format.

    Attributes:
        reference: the case that each unit is compared with.
        in_fp32: whether only the unit is in fp32 (gain); else only the unit is in the format (cost).
    """

    reference: str
    in_fp32: bool


_GAINS, _COSTS = _Question(_ALL, in_fp32=True), _Question(_NOTHING, in_fp32=False)


@final
class _SeedsPerCase:
    """The search of ``blame``: its cases, and the number of seeds of each."""

    def __init__(self, config: TrainConfig, over: str, seeds: int, margin: float) -> None:
        if config.format == HIGH:
            raise BlameError(
                f"format is {HIGH}, which rounds nothing: there is nothing to blame; give a format such as format=e5m3"
            )
        self._config, self._over, self._count, self._margin = config, over, seeds, margin
        self._cases: dict[tuple[_Question, str], list[Run]] = {}
        observed = with_rules(config, UNROUNDED, observe=over == "operation")
        data = self._runs(with_rules(config, UNROUNDED), _DATA)
        self._references = {
            _NOTHING: self._runs(with_rules(config, [], format=HIGH, policy={}), _NOTHING),
            _ALL: self._runs(config, _ALL),
            # The first run also records the operations.
            _DATA: [data[0]._replace(id=run_id(observed), config=observed), *data[1:]],
        }

    def next_runs(self, store: SweepDirectory) -> list[Run]:
        """The runs that the search needs given the results so far, including the runs that have ended."""
        runs = [run for reference_runs in self._references.values() for run in reference_runs]
        for question in (_GAINS, _COSTS):
            for units, count in self._rounds(store, question):
                runs += [run for unit in units for run in self._case(store, question, unit)[:count]]
        return once(runs)

    def result(self, store: SweepDirectory) -> Costs:
        """Returns the current result."""
        first = self._config.seed
        reference, everything = (mean([*_returns(store, self._references[name]).values()]) for name in (_NOTHING, _ALL))
        return Costs(
            self._config.format,
            self._over,
            (first, first + self._count - 1),
            reference,
            everything,
            self._effects(store, _GAINS, ()),
            self._effects(store, _COSTS, (_ALL, _DATA)),
        )

    def _rounds(self, store: SweepDirectory, question: _Question) -> list[tuple[Sequence[str], int]]:
        """The units of each round and the number of their seeds, up to the first round that has not ended."""

        def gains(round_: tuple[Sequence[str], int]) -> Mapping[str, float] | None:
            units, count = round_
            cases = {unit: self._case(store, question, unit)[:count] for unit in units}
            needed = (*cases.values(), self._references[question.reference][:count])
            # A round is judged only when all its runs have ended, so that the order of their ends does not matter.
            if not all(map(store.have_ended, needed)):
                return None
            returns = {unit: _returns(store, runs) for unit, runs in cases.items()}
            reference = _returns(store, needed[-1])
            sign = 1 if question.in_fp32 else -1  # gains are above the reference, costs below it
            return {
                unit: sign * math.fsum(value - reference[seed] for seed, value in unit_returns.items()) / count
                for unit, unit_returns in returns.items()
            }

        kept = len(self._config.roles) if self._over == "role" else FEW  # of roles none is dropped
        return ask(halving(self._units(store), self._count, kept), gains)[0]

    def _effects(self, store: SweepDirectory, question: _Question, references: Sequence[str]) -> tuple[Effect, ...]:
        """A row for each unit, and for some of the references."""
        cases = {name: self._references[name] for name in references}
        cases |= {unit: self._case(store, question, unit) for unit in self._units(store)}
        reference = _returns(store, self._references[question.reference])
        by_name = {name: returns for name, runs in cases.items() if reference and (returns := _returns(store, runs))}
        sides = [(returns, reference) if question.in_fp32 else (reference, returns) for returns in by_name.values()]
        differences = [difference([x], [y]) for x, y in sides]
        adjusted = holm([change.p for change in differences])  # many units are tested at once
        rows = [
            Effect(
                name,
                math.fsum(returns.values()) / len(returns),
                len(returns),
                [store.state(run) for run in cases[name]].count("crashed"),
                change.value,
                None if math.isnan(change.interval.low) else change.interval.low,
                None if math.isnan(change.interval.high) else change.interval.high,
                None if math.isnan(p) else float(p),
                in_words(p, equivalence([returns], [reference], self._margin).p, self._margin),
            )
            for (name, returns), change, p in zip(by_name.items(), differences, adjusted, strict=True)
        ]
        return tuple(sorted(rows, key=lambda row: (-row.seeds, -row.effect)))  # rows with few seeds are noisy: last

    def _units(self, store: SweepDirectory) -> list[str]:
        """Returns the units to be measured; none until the run that records operations has ended."""
        if self._over == "role":
            return list(self._config.roles)
        observed = self._references[_DATA][0]
        return sorted(units_of_run(store.run_path(observed), self._over)) if store.has_ended(observed) else []

    def _case(self, store: SweepDirectory, question: _Question, unit: str) -> list[Run]:
        """The runs with only one unit in fp32, or only one in the format."""
        if (question, unit) not in self._cases:
            high = [unit] if question.in_fp32 else [other for other in self._units(store) if other != unit]
            rules = [{self._over: high[0] if len(high) == 1 else high, "format": HIGH}] if high else []
            if self._over == "operation":  # operations that only move values keep the format of their inputs
                rules.append(LEFT_MOVES)
            named = f"{unit} in {HIGH if question.in_fp32 else self._config.format}"
            self._cases[question, unit] = self._runs(with_rules(self._config, rules), named)
        return self._cases[question, unit]

    def _runs(self, config: TrainConfig, case: str) -> list[Run]:
        """Makes a run for each seed."""
        first = self._config.seed
        configs = [with_rules(config, [], seed=seed) for seed in range(first, first + self._count)]
        return [Run(run_id(seeded), seeded, case) for seeded in configs]


def _returns(store: SweepDirectory, runs: Sequence[Run]) -> dict[int, float]:
    """Returns the returns of the runs that have ended, by seed."""
    scores = {run.config.seed: store.result(run).score for run in runs if store.has_ended(run)}
    return {seed: score for seed, score in scores.items() if score is not None}  # agents always have a score
