"""Every format against fp32, and the significand bits that each task needs, as tables."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from ..runs.conditions import as_text
from .comparisons import Difference, difference, holm, probability_of_improvement
from .equivalence import MARGIN, Equivalence, equivalence, in_words
from .intervals import NO_INTERVAL, Interval, generator_for
from .learning import UNKNOWN, Learning, learning
from .needed_bits import needed_bits
from .sides import selections, sides, why_unsaid
from .summary import (
    ALL_TASKS,
    ended,
    exponent_bits,
    failed,
    in_order,
    parsed,
    significand_bits,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from roundoff.runs.metric import Metric

    from ..runs.experiment import Experiment
    from .sides import ByTask, Scores, Side

_NUMBERS = [f"{name}{end}" for name in ("improvement", "difference", "share") for end in ("", "_low", "_high")]
_NUMBERS += ["p", "p_equivalent"]
_LEARNING = ["learnable", "unlearned", "unlearned_low", "unlearned_high"]
_LEARNING += ["learned_difference", "learned_difference_low", "learned_difference_high", "learned_pairs"]


def against_reference(
    experiment: Experiment, margin: float = MARGIN, reference: Mapping[str, str] | None = None
) -> pd.DataFrame:
    """Compares each format and condition with fp32: of the same condition, or of the only one that fp32 was run in.

    Another ``reference`` says which runs take the place of fp32's: settings, and what they are, as text. Others are
    compared with those that are alike in all other settings, or with the only ones that there are.

    Columns: ``task`` (``all``: the mean over tasks), ``format``, the conditions, ``reference`` (the condition of
    fp32, in words), ``runs`` that have ended and how many of them ``crashed``, how many more ``failed``,
    ``improvement`` with ``improvement_low`` and ``improvement_high`` (the probability that a run is better than one of
    fp32, and its 95 % interval), ``difference`` with ``difference_low`` and ``difference_high`` (mean score minus that
    of fp32, 95 %; of runs that have a score), ``pairs`` (runs that share a seed; 0: compared unpaired), ``p`` (of no
    difference) and ``p_holm``; ``share`` with ``share_low`` and ``share_high`` (the difference as a share of fp32's
    mean, 90 %), ``p_equivalent`` (of :func:`~.equivalence.equivalence` within ``margin``) and ``p_equivalent_holm``;
    ``margin``; ``answer``, in words. Of single tasks of agents also :func:`~.learning.learning`: ``learnable`` (runs
    whose seed learned in fp32), ``unlearned`` with ``unlearned_low`` and ``unlearned_high`` (how many of them did not
    learn, and the 90 % interval of the share), ``learned_difference`` with ``learned_difference_low`` and
    ``learned_difference_high`` and ``learned_pairs`` (of the scores of those that learned, 95 %).

    A format with crashes is answered by them, and one whose runs all failed, of which there are no numbers, by that.
    Where the reference crashed, or made no update, or is not shown to have learned, nothing can be said of others. The
    return of an agent's crash is no score here.

    Either p is adjusted for all rows of single tasks, or all rows of ``all``. The answer goes by ``p_holm``, since
    differences are looked for in all rows, and by ``p_equivalent``, since equivalence is claimed of a row: where its
    interval lies within the margin.
    """
    runs = ended(experiment.runs)
    keys = experiment.conditions.keys
    rows: list[dict[str, Any]] = []
    answers: list[str] = []
    for side, plain in sides(runs, keys, experiment.metric, reference):
        for task, names in selections(side.scores, set(runs["task"])):
            if not set(names) <= plain.scores.keys():
                continue
            x, y = ([one.scores[name] for name in names] for one in (side, plain))
            scores = [[list(of.values()) for of in tasks] for tasks in (x, y)]
            generator = generator_for("against", task, *map(str, side.where.values()))
            better = probability_of_improvement(scores[0], scores[1], generator)
            apart = _difference(x, y, experiment.metric)
            same = _as_measured(equivalence(x, y, margin), experiment.metric)
            crashed, ended_runs = side.crashed(names)
            unsaid = why_unsaid(side, plain, names, margin)
            answers.append(side.crashed_in_words(names) or (f"cannot be said: {unsaid}" if unsaid else ""))
            rows.append(
                {
                    "task": task,
                    **side.where,
                    "reference": experiment.conditions.label(plain.where) if keys else "",
                    "runs": ended_runs,
                    "crashed": crashed,
                    "failed": len(_failed(experiment, side.where, names)),
                    **_with_ends("improvement", better.value, better.interval),
                    **_with_ends("difference", apart.value, apart.interval),
                    "pairs": apart.pairs,
                    "p": apart.p,
                    **_with_ends("share", same.share, same.interval),
                    "p_equivalent": same.p,
                    "margin": margin,
                    **_of_learning(UNKNOWN if unsaid or len(names) > 1 else learning(side, plain, task), experiment),
                }
            )
    for row in _all_failed(experiment, margin):
        rows.append(row)
        answers.append(f"failed ({row['failed']} of {row['failed']})")
    columns = ["task", "format", *keys, "reference", "runs", "crashed", "failed"]
    columns += [f"{name}{end}" for name in ("improvement", "difference") for end in ("", "_low", "_high")]
    columns += ["pairs", "p", "p_holm", "share", "share_low", "share_high"]
    columns += ["p_equivalent", "p_equivalent_holm", "margin", "answer", *_LEARNING]
    if not rows:
        return pd.DataFrame(columns=columns)
    table = pd.DataFrame(rows)
    table[["p_holm", "p_equivalent_holm"]] = np.nan
    for family in (table["task"] == ALL_TASKS, table["task"] != ALL_TASKS):
        for name in ("p", "p_equivalent"):
            table.loc[family, f"{name}_holm"] = holm(table.loc[family, name])
    table["answer"] = [
        answer or in_words(p, same, margin)
        for answer, p, same in zip(answers, table["p_holm"], table["p_equivalent"], strict=True)
    ]
    return in_order(table, keys, experiment.formats)[columns]


def _failed(experiment: Experiment, where: Mapping[str, Any], tasks: Sequence[str]) -> pd.DataFrame:
    """The runs of a format and condition on these tasks that have failed."""
    found = failed(experiment.runs)
    found = found[found["task"].isin(tasks)]
    for key, value in where.items():
        found = found[found[key].map(as_text) == as_text(value)]
    return found


def _all_failed(experiment: Experiment, margin: float) -> Iterator[dict[str, Any]]:
    """Rows of formats and conditions on tasks on which all runs have failed."""
    keys = ["task", "format", *experiment.conditions.keys]
    for where, runs in experiment.runs.groupby(keys, dropna=False):
        if (runs["status"] == "failed").all():
            nothing = dict.fromkeys(_NUMBERS, float("nan"))
            named = {"reference": "", "runs": 0, "crashed": 0, "failed": len(runs)}
            unknown = _of_learning(UNKNOWN, experiment)
            yield {**dict(zip(keys, where, strict=True)), **named, **nothing, "pairs": 0, "margin": margin, **unknown}


def needed_table(experiment: Experiment, margin: float = MARGIN) -> pd.DataFrame:
    """The bits needed on each task, for each family of formats and condition.

    A family is the floats of one width of the exponent, which differ in significand bits; or formats that have one
    number in their name (int8, posit16), which is their width; or any other format by itself, whose width is 0.

    Columns: ``task``, ``family`` (empty for floats), ``exponent_bits``, the conditions, ``bits``, ``confidence``,
    ``by_means``, ``runs``, ``paired`` and ``reason`` (see ``NeededBits``), ``smallest`` and ``largest`` (widths
    tested), ``margin``.
    """
    runs = ended(experiment.runs)
    keys = experiment.conditions.keys
    families: dict[tuple[Any, ...], dict[int, Side]] = {}
    references: dict[tuple[Any, ...], Side] = {}
    for side, reference in sides(runs, keys, experiment.metric):
        name, width = _family(side.where["format"])
        family = (name, *(side.where[key] for key in keys))
        families.setdefault(family, {}).setdefault(width, side)
        references[family] = reference
    rows: list[dict[str, Any]] = []
    for family, widths in families.items():
        reference = references[family]
        for task, names in selections(reference.judged, set(runs["task"])):
            there = {m: side for m, side in widths.items() if set(names) <= side.judged.keys()}
            tested: dict[int, ByTask] = {m: {name: side.judged[name] for name in names} for m, side in there.items()}
            if not tested:
                continue
            scores = {m: list(by_task.values()) for m, by_task in tested.items()}
            found = needed_bits([reference.judged[name] for name in names], scores, margin=margin)
            unsaid = (why_unsaid(side, reference, names, margin) for side in there.values())
            if why := next(filter(None, unsaid), ""):
                found = found._replace(bits=None, confidence=float("nan"), reason=found.reason or why)
            answer = {key: value for key, value in found._asdict().items() if key != "confidences"}
            floats = isinstance(family[0], int)
            values = {"family": "" if floats else family[0], "exponent_bits": family[0] if floats else pd.NA}
            values |= dict(zip(keys, family[1:], strict=True))
            sizes = {"smallest": min(tested), "largest": max(tested)}
            rows.append({"task": task, **values, **answer, **sizes, "margin": margin})
    columns = ["task", "family", "exponent_bits", *keys, "bits", "confidence", "by_means", "runs", "paired", "reason"]
    columns += ["smallest", "largest", "margin"]
    table = pd.DataFrame(rows, columns=columns).astype(dict.fromkeys(("exponent_bits", "bits", "by_means"), "Int64"))
    ascending = [*[True] * (1 + len(keys)), False]
    return table.sort_values(["task", *keys, "exponent_bits"], ascending=ascending, ignore_index=True)


def _family(name: str) -> tuple[int | str, int]:
    """The family of a format, by exponent bits or by name, and its width."""
    if not np.isnan(significand_bits(name)):
        return int(exponent_bits(name)), int(significand_bits(name))
    numbered = re.fullmatch(r"([a-z]+)([0-9]{1,4})", str(parsed(name) or ""))
    return (f"{numbered[1]}X", int(numbered[2])) if numbered else (name, 0)


def _of_learning(found: Learning, experiment: Experiment) -> dict[str, float]:
    """What was found of learning as columns, the difference as the metric is measured."""
    apart = found.apart
    if experiment.metric.sign < 0:
        apart = apart._replace(value=-apart.value, interval=_turned(apart.interval))
    values = [found.learnable, found.unlearned, *found.interval, apart.value, *apart.interval, apart.pairs]
    return dict(zip(_LEARNING, values, strict=True))


def _with_ends(name: str, value: float, interval: Interval) -> dict[str, float]:
    return {name: value, f"{name}_low": interval.low, f"{name}_high": interval.high}


def _difference(x: Sequence[Scores], y: Sequence[Scores], metric: Metric) -> Difference:
    """How far the scores are apart, of runs that have one; NaN if a task has none."""
    x, y = ([{seed: score for seed, score in task.items() if np.isfinite(score)} for task in side] for side in (x, y))
    if not all((*x, *y)):
        return Difference(float("nan"), NO_INTERVAL, float("nan"), 0)
    found = difference(x, y)
    return found if metric.sign > 0 else found._replace(value=-found.value, interval=_turned(found.interval))


def _as_measured(found: Equivalence, metric: Metric) -> Equivalence:
    """Scores are such that more is better; shares are of the metric as it is."""
    return found if metric.sign > 0 else found._replace(share=-found.share, interval=_turned(found.interval))


def _turned(interval: Interval) -> Interval:
    return Interval(-interval.high, -interval.low)
