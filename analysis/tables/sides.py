"""Pairs formats and conditions with their references: scores, crashes, and whether they have learned.

On the common scale of all tasks, 0 is the return of a policy before it learns, and 1 the return of fp32 afterwards.
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

from ..runs.conditions import References, value_text
from ..statistics.comparisons import Estimate, match_runs
from ..statistics.equivalence import ALPHA
from ..statistics.intervals import bootstrap_interval, interquartile_mean, interquartile_means
from .summary import ALL_TASKS, REFERENCE, have_one_unit, records


class Scale(NamedTuple):
    """The scale of a task's scores.

    Attributes:
        untrained: the reference's mean score before it learns.
        learned: its mean score after.
    """

    untrained: float
    learned: float

    def of(self, scores: Mapping[Any, float]) -> dict[Any, float]:
        """Scales scores, so that ``untrained`` is 0 and ``learned`` is 1; infinite ones stay."""
        return {seed: (score - self.untrained) / (self.learned - self.untrained) for seed, score in scores.items()}


class Selection(NamedTuple):
    """The tasks of a row of a table.

    Attributes:
        name: the name of the task, or :data:`~.summary.ALL_TASKS` for the mean over several.
        tasks: the tasks of the mean.
        scales: the scales of the tasks, used for a mean over them; empty if scores are not scaled.
    """

    name: str
    tasks: list[str]
    scales: dict[str, Scale]

    def of(self, scores: Mapping[str, Mapping[Any, float]]) -> list[Mapping[Any, float]]:
        """Returns the scores of each task, scaled if there are scales."""
        return [self.scales[task].of(scores[task]) if self.scales else scores[task] for task in self.tasks]


def interquartile_mean_of(
    groups: Sequence[Sequence[float]], generator: np.random.Generator, *, replicates: int = 2_000
) -> Estimate:
    """Computes the interquartile mean of normalized scores of all tasks, and its 95 % stratified bootstrap interval.

    Args:
        groups: the scores of each task's runs; a score that is not finite, a crash, counts 0: nothing learned.
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


_PERTURBED = "perturb"  # the key of runs in fp32 that are compared like formats, to show the effect of chance


@final
@dataclass(frozen=True)
class Side:
    """The ended runs of a format under a condition.

    Attributes:
        settings: the format, and the values of the condition.
        scores: scores by task and seed; more is better. A crash without a score has -infinity, and so has an agent's
            crash: its return of 0 is more than the returns of many tasks.
        judged: the scores, with -infinity for each crash, whatever its score.
        untrained: the returns of policies before they learned, of runs that know them.
        areas: mean scores over the learning curve, of runs that have not crashed; NaN for a run without a curve.
        idle: the number of runs that are known to have made no update, by task.
    """

    settings: dict[str, Any]
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
        """Writes ``crashed (2 of 3)``; empty if no run has crashed."""
        crashed, runs = self.crashed(tasks)
        return f"crashed ({crashed} of {runs})" if crashed else ""

    def has_learned(self, task: str, margin: float) -> bool | None:
        """Whether its runs are shown to be better than before they learned, by more than a margin.

        Policies that have learned nothing would be found equivalent. The test is the reverse of
        :func:`~..statistics.equivalence.equivalence`.

        Returns:
            None if their earlier scores are not known.
        """
        untrained, scores = self.untrained.get(task, {}), self.scores[task]
        if len(scores) < 2 or not scores.keys() <= untrained.keys() or self.crashed([task])[0]:
            return None
        # Shown to have learned: (1 - margin) times the mean after learning is above the mean before.
        matched = match_runs([{seed: untrained[seed] for seed in scores}], [scores])
        return (-matched.contrast(1 - math.copysign(margin, matched.reference))).p_greater < ALPHA


def comparison_obstacle(side: Side, reference: Side, tasks: Sequence[str], margin: float) -> str:
    """Describes why a side cannot be compared with its reference; empty if it can."""
    name = str(reference.settings["format"])
    if crashed := reference.crashed_in_words(tasks):
        return f"{name} itself {crashed}"
    for owner, compared in ((f"{name} itself", reference), (str(side.settings["format"]), side)):
        if any(compared.idle.get(task) for task in tasks):
            return f"{owner} made no update"
    if any(reference.has_learned(task, margin) is False for task in tasks):
        return f"{name} is not shown to have learned"
    return ""


def sides(
    runs: pd.DataFrame,
    keys: list[str],
    metric: Metric,
    planned: pd.DataFrame,
    reference: Mapping[str, str] | None = None,
    left_out: list[dict[str, Any]] | None = None,
) -> Iterator[tuple[Side, Side]]:
    """Yields every format and condition except the reference's, with its reference.

    Args:
        runs: the ended runs; with their areas as ``area``, if areas are needed.
        keys: the keys of the conditions.
        metric: the metric of the scores.
        planned: all runs, including unfinished ones: a finished reference is not the only one if others are to come.
        reference: settings of the runs that others are compared with; None: fp32.
        left_out: a list that receives the formats and conditions without a run of the reference.
    """
    all_sides = [
        _side(dict(zip(["format", *keys], settings, strict=True)), group, metric)
        for settings, group in runs.groupby(["format", *keys], dropna=False)
    ]
    values = reference or {"format": REFERENCE} | ({_PERTURBED: "0"} if metric.of_agents and _PERTURBED in keys else {})

    def is_reference(settings: Mapping[str, Any]) -> bool:
        return all(value_text(settings[key]) == text for key, text in values.items())

    others = [key for key in ("format", *keys) if key not in values]
    # A side's reference has the same values of the other keys.
    planned_conditions = records(planned[["format", *keys]].drop_duplicates())
    references = References(filter(is_reference, planned_conditions), others)
    reference_sides = {references.text_of(side.settings): side for side in all_sides if is_reference(side.settings)}
    for side in all_sides:
        if is_reference(side.settings):
            continue
        condition = references.reference_of(side.settings)
        if condition in reference_sides:
            yield side, reference_sides[condition]
        elif left_out is not None:
            left_out.append(side.settings)


def selections(reference: Side, all_tasks: set[str], metric: Metric) -> list[Selection]:
    """Selects the reference's tasks one by one, and all of them together if it has runs on all of several tasks.

    The mean over all tasks takes normalized scores if these are known; else plain scores, if all have one unit.
    """
    chosen = [Selection(task, [task], {}) for task in reference.scores]
    if len(all_tasks) > 1 and set(reference.scores) == all_tasks:
        task_scales = scales(reference, all_tasks)
        if task_scales or have_one_unit(all_tasks, of_agents=metric.of_agents):
            chosen.append(Selection(ALL_TASKS, sorted(all_tasks), task_scales))
    return chosen


def scales(reference: Side, tasks: Iterable[str]) -> dict[str, Scale]:
    """Returns the scale of each task; empty unless the reference is known to have learned something on every task."""
    task_scales = {}
    for task in tasks:
        untrained, learned = reference.untrained.get(task, {}), reference.judged[task]
        scale = Scale(*(float(np.mean(list(x.values()))) if x else math.nan for x in (untrained, learned)))
        if not (math.isfinite(scale.learned) and scale.learned > scale.untrained):
            return {}
        task_scales[task] = scale
    return task_scales


def _side(values: dict[str, Any], runs: pd.DataFrame, metric: Metric) -> Side:
    crashed = runs["status"] == "crashed"
    unscored = crashed if metric.of_agents else runs["return"].isna()
    scores = (metric.sign * runs["return"]).mask(unscored, -math.inf)
    idle = Counter(map(str, runs.loc[runs["updates"] == 0, "task"]))
    untrained = _by_task(runs, metric.sign * runs["untrained"])
    known_untrained = {
        task: {seed: score for seed, score in by_seed.items() if math.isfinite(score)}
        for task, by_seed in untrained.items()
    }
    areas = (metric.sign * runs["area"]).mask(crashed) if "area" in runs else runs["return"] * math.nan
    judged = scores.mask(crashed, -math.inf)
    return Side(values, _by_task(runs, scores), _by_task(runs, judged), known_untrained, _by_task(runs, areas), idle)


def _by_task(runs: pd.DataFrame, scores: pd.Series[float]) -> ByTask:
    """Groups scores by task and seed, in the order of seeds; runs without a seed are distinguished by their names."""
    seeds = (runs["seed"] if "seed" in runs else runs["id"]).map(str)  # also of a run that has none
    numbers = runs.groupby([runs["task"], seeds]).cumcount()
    result: ByTask = {}
    for task, seed, number, score in sorted(zip(runs["task"], seeds, numbers, scores, strict=True)):
        result.setdefault(str(task), {})[seed, int(number)] = float(score)
    return result
