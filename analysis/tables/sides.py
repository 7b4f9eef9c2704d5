"""Formats and conditions with their references: scores, crashes, and whether anything was learned.

On the scale that all tasks share, 0 is the return of a policy before it learns, and 1 the return of fp32 after.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, final

import numpy as np
import pandas as pd

from roundoff.runs.metric import Metric

from ..runs.conditions import References, as_text
from ..statistics.comparisons import Estimate, matched
from ..statistics.equivalence import ALPHA
from ..statistics.intervals import bootstrap_interval, interquartile_mean, interquartile_means
from .summary import ALL_TASKS, REFERENCE, have_one_unit, records


class Scale(NamedTuple):
    """Two scores of a task.

    Attributes:
        untrained: the reference's mean score before it learns.
        learned: its mean score after.
    """

    untrained: float
    learned: float

    def of(self, scores: Mapping[Any, float]) -> dict[Any, float]:
        """The scores, where ``untrained`` is 0 and ``learned`` is 1; infinite ones stay."""
        return {seed: (score - self.untrained) / (self.learned - self.untrained) for seed, score in scores.items()}


class Selection(NamedTuple):
    """The tasks of a row of a table.

    Attributes:
        name: the name of the task, or :data:`~.summary.ALL_TASKS` for the mean over several.
        tasks: the tasks of the mean.
        scales: the scales of the tasks, used for a mean over them; empty where scores are taken as they are.
    """

    name: str
    tasks: list[str]
    scales: dict[str, Scale]

    def of(self, scores: Mapping[str, Mapping[Any, float]]) -> list[Mapping[Any, float]]:
        """The scores of each task."""
        return [self.scales[task].of(scores[task]) if self.scales else scores[task] for task in self.tasks]


def interquartile_mean_of(
    groups: Sequence[Sequence[float]], generator: np.random.Generator, *, replicates: int = 2_000
) -> Estimate:
    """The interquartile mean of normalized scores of all tasks together, and its 95 % stratified bootstrap interval.

    Args:
        groups: the scores of each task's runs; a score that is not finite, a crash, counts 0: it has learned
            nothing.
        generator: source of the resampling.
        replicates: number of resamplings.

    Source:
        Agarwal et al., "Deep Reinforcement Learning at the Edge of the Statistical Precipice", 2021, Sections 4.2 and
        4.3; ``rliable`` computes the same.
    """
    arrays = [np.where(np.isfinite(group), group, 0.0) for group in map(np.asarray, groups)]
    interval = bootstrap_interval(arrays, generator, replicates=replicates, statistic=interquartile_means)
    return Estimate(interquartile_mean(np.concatenate(arrays)), interval)


Scores = dict[tuple[str, int], float]  # by seed, and number among the runs of that seed
ByTask = dict[str, Scores]


_PERTURBED = "perturb"  # the key of runs in fp32 that are compared as formats are, to see what chance does


@final
@dataclass(frozen=True)
class Side:
    """The runs that have ended of a format under a condition.

    Attributes:
        where: the format, and the condition.
        scores: by task and seed; more is better. A crash without a score has -infinity, and so has an agent's crash:
            its return of 0 is more than many tasks give.
        judged: the same, where each crash has -infinity, whatever it is scored.
        untrained: the returns of policies before they learned, of runs that know them.
        areas: mean scores over the learning curve, of runs that have not crashed; NaN for a run without a curve.
        idle: by task, the runs that are known to have made no update.
    """

    where: dict[str, Any]
    scores: ByTask
    judged: ByTask
    untrained: ByTask
    areas: ByTask
    idle: dict[str, int]

    def crashed(self, tasks: Sequence[str]) -> tuple[int, int]:
        """Returns the number of runs on these tasks that have crashed, and of all."""
        judged = [score for task in tasks for score in self.judged[task].values()]
        return judged.count(-math.inf), len(judged)

    def crashed_in_words(self, tasks: Sequence[str]) -> str:
        """``crashed (2 of 3)``; empty if no run has."""
        crashed, runs = self.crashed(tasks)
        return f"crashed ({crashed} of {runs})" if crashed else ""

    def has_learned(self, task: str, margin: float) -> bool | None:
        """Whether its runs are shown to be better than they were before they learned, by more than a margin.

        A policy that has learned nothing would be equivalent to one that is not. The test is the reverse of
        :func:`~..statistics.equivalence.equivalence`.

        Returns:
            None if their earlier scores are not known.
        """
        before, after = self.untrained.get(task, {}), self.scores[task]
        if len(after) < 2 or not after.keys() <= before.keys() or self.crashed([task])[0]:
            return None
        sides = matched([{seed: before[seed] for seed in after}], [after])
        return (-sides.contrast(1 - math.copysign(margin, sides.reference))).p_above < ALPHA


def why_unsaid(side: Side, reference: Side, tasks: Sequence[str], margin: float) -> str:
    """The reason why a side cannot be compared with its reference, in words; empty if it can."""
    name = str(reference.where["format"])
    if crashed := reference.crashed_in_words(tasks):
        return f"{name} itself {crashed}"
    for whose, one in ((f"{name} itself", reference), (str(side.where["format"]), side)):
        if any(one.idle.get(task) for task in tasks):
            return f"{whose} made no update"
    if any(reference.has_learned(task, margin) is False for task in tasks):
        return f"that {name} has learned is not shown"
    return ""


def sides(
    runs: pd.DataFrame,
    keys: list[str],
    metric: Metric,
    planned: pd.DataFrame,
    reference: Mapping[str, str] | None = None,
    left_out: list[dict[str, Any]] | None = None,
) -> Iterator[tuple[Side, Side]]:
    """Every format and condition but the reference's, with its reference.

    Args:
        runs: that have ended; with their areas as ``area``, if these are wanted.
        keys: the keys of the conditions.
        metric: the metric of the scores.
        planned: all runs, including unfinished ones: a finished reference is not the only one if others are to
            come.
        reference: settings of the runs that others are compared with; None: fp32.
        left_out: a list that receives the formats and conditions without a run of the reference.
    """
    everything = [
        _side(dict(zip(["format", *keys], where, strict=True)), group, metric)
        for where, group in runs.groupby(["format", *keys], dropna=False)
    ]
    wanted = reference or {"format": REFERENCE} | ({_PERTURBED: "0"} if metric.of_agents and _PERTURBED in keys else {})

    def is_reference(where: Mapping[str, Any]) -> bool:
        return all(as_text(where[key]) == text for key, text in wanted.items())

    others = [key for key in ("format", *keys) if key not in wanted]
    to_come = records(planned[["format", *keys]].drop_duplicates())
    references = References(filter(is_reference, to_come), others)
    plain = {references.as_text(side.where): side for side in everything if is_reference(side.where)}
    for side in everything:
        if is_reference(side.where):
            continue
        found = references.of(side.where)
        if found in plain:
            yield side, plain[found]
        elif left_out is not None:
            left_out.append(side.where)


def selections(reference: Side, all_tasks: set[str], metric: Metric) -> list[Selection]:
    """The reference's tasks one by one, and all of them together if it has all of several.

    All are taken together by normalized scores if these are known; else by scores as they are, if all tasks' scores
    have one unit.
    """
    found = [Selection(task, [task], {}) for task in reference.scores]
    if len(all_tasks) > 1 and set(reference.scores) == all_tasks:
        known = scales(reference, all_tasks)
        if known or have_one_unit(all_tasks, of_agents=metric.of_agents):
            found.append(Selection(ALL_TASKS, sorted(all_tasks), known))
    return found


def scales(reference: Side, tasks: Iterable[str]) -> dict[str, Scale]:
    """The scale of each task; empty unless the reference is known to have learned something on every one."""
    found = {}
    for task in tasks:
        before, after = reference.untrained.get(task, {}), reference.judged[task]
        scale = Scale(*(float(np.mean(list(of.values()))) if of else math.nan for of in (before, after)))
        if not (math.isfinite(scale.learned) and scale.learned > scale.untrained):
            return {}
        found[task] = scale
    return found


def _side(values: dict[str, Any], runs: pd.DataFrame, metric: Metric) -> Side:
    crashed = runs["status"] == "crashed"
    unscored = crashed if metric.of_agents else runs["return"].isna()
    scores = (metric.sign * runs["return"]).mask(unscored, -math.inf)
    idle = Counter(map(str, runs.loc[runs["updates"] == 0, "task"]))
    untrained = _by_task(runs, metric.sign * runs["untrained"])
    known = {
        task: {seed: score for seed, score in of.items() if math.isfinite(score)} for task, of in untrained.items()
    }
    areas = (metric.sign * runs["area"]).mask(crashed) if "area" in runs else runs["return"] * math.nan
    judged = scores.mask(crashed, -math.inf)
    return Side(values, _by_task(runs, scores), _by_task(runs, judged), known, _by_task(runs, areas), idle)


def _by_task(runs: pd.DataFrame, scores: pd.Series[float]) -> ByTask:
    """Scores by task and seed, in the order of seeds; runs without a seed are distinguished by their names."""
    seeds = (runs["seed"] if "seed" in runs else runs["id"]).map(str)  # also of a run that has none
    numbers = runs.groupby([runs["task"], seeds]).cumcount()
    result: ByTask = {}
    for task, seed, number, score in sorted(zip(runs["task"], seeds, numbers, scores, strict=True)):
        result.setdefault(str(task), {})[seed, int(number)] = float(score)
    return result
