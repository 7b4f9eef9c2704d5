"""Searches in rounds: a search asks, its driver runs and judges the candidates, and it asks on until it has a result.

A search is a generator: it yields a question, receives the answer, and returns its result. It does not know how the
answer is computed, at once or by a sweep; :func:`ask` is the one driver of them all.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import TypeVar

Question = TypeVar("Question")
Answer = TypeVar("Answer")
Found = TypeVar("Found")

FIRST = 2
"""Seeds of the first round of :func:`halving`."""
FEW = 4
"""The number of candidates that all get all the seeds."""
_FEW_CHOICES = 2
"""The number of choices for a unit of :func:`allocation` that all get all the seeds."""


def ask(
    search: Generator[Question, Answer, Found], answer: Callable[[Question], Answer | None]
) -> tuple[list[Question], Found | None]:
    """Answers a search until it has found, or an answer is not known yet.

    Args:
        search: the search, new. The same answers give the same questions, so that a search is continued by a new one.
        answer: runs the candidates of a question, or looks up their results; None if they have not ended.

    Returns:
        All its questions, in order, and its result; None if it waits for the answer to the last question.
    """
    questions: list[Question] = []
    answered: Answer | None = None
    while True:
        try:
            question = search.send(answered)  # type: ignore[arg-type]  # None starts a generator
        except StopIteration as end:
            return questions, end.value
        questions.append(question)
        answered = answer(question)
        if answered is None:
            return questions, None


def minimal(units: Sequence[str]) -> Generator[Sequence[str], bool, tuple[str, ...]]:
    """Finds a part of ``units`` that passes, but fails without any one of its members, by delta debugging.

    Asks of parts of ``units`` whether they pass. All of them together do. Some n^2 questions for n units at worst,
    about k log n for a part of k.

    Source:
        Zeller & Hildebrandt, "Simplifying and Isolating Failure-Inducing Input", 2002 (ddmin).
    """
    kept, parts = list(units), 2
    while len(kept) > 1:
        size = -(-len(kept) // parts)
        pieces = [kept[start : start + size] for start in range(0, len(kept), size)]
        rests = [[unit for unit in kept if unit not in piece] for piece in pieces]
        candidates = [
            *((piece, 2) for piece in pieces),
            *((rest, max(parts - 1, 2)) for rest in rests if len(pieces) > 2),
        ]
        for some, then in candidates:
            if (yield some):
                kept, parts = some, then
                break
        else:
            if parts >= len(kept):
                break
            parts = min(2 * parts, len(kept))
    if len(kept) == 1 and (yield ()):
        return ()
    return tuple(kept)


def bisection(candidates: Sequence[str]) -> Generator[str, bool, str | None]:
    """Finds the first candidate that passes, if all after a passing one also pass; None if the last one fails."""
    too_few, enough = -1, len(candidates) - 1
    if not (yield candidates[enough]):
        return None
    while enough - too_few > 1:
        middle = (enough + too_few) // 2
        if (yield candidates[middle]):
            enough = middle
        else:
            too_few = middle
    return candidates[enough]


def halving(
    candidates: Sequence[str], seeds: int, few: int = FEW
) -> Generator[tuple[Sequence[str], int], Mapping[str, float], list[str]]:
    """Finds the best candidates by successive halving, which spends seeds on candidates that may be best.

    Asks for the scores, the higher the better, of the remaining candidates, with a given number of seeds. Round k
    gives 2, 4, 8, ... seeds; then the half with the lower scores is dropped. At most ``few`` that are left all get all
    the seeds at once. Seeds double as candidates halve, so that all rounds have equal numbers of runs, including the
    runs of earlier rounds.

    Args:
        candidates: their names.
        seeds: how many there are.
        few: the number of candidates that are never dropped.

    Source:
        Jamieson & Talwalkar, "Non-stochastic best arm identification and hyperparameter optimization", 2016.
    """
    left, count = list(candidates), FIRST
    while left:
        count = seeds if len(left) <= few else min(count, seeds)
        scores = yield left, count
        if count == seeds:
            break
        kept = sorted(left, key=scores.__getitem__, reverse=True)[: max(few, math.ceil(len(left) / 2))]
        left = [candidate for candidate in left if candidate in kept]
        count *= 2
    return left


def allocation(
    units: Sequence[str], choices: Sequence[str], seeds: int
) -> Generator[tuple[Sequence[Mapping[str, str]], int], Sequence[float], dict[str, str]]:
    """Finds for each unit in turn the best choice that still passes, given the choices found for the units before it.

    Asks for the scores of several choices for some units, the others left as they are, with a number of seeds: above
    0 it passes, the higher the more it is wanted; left as they are, all pass. Each unit's choice is found by
    :func:`halving`. So the units that matter most come first: later units get the remaining slack.

    Args:
        units: their names.
        choices: that each may get.
        seeds: how many there are.

    Returns:
        The choices of the units that have one; the others stay as they are.
    """
    found: dict[str, str] = {}
    for unit in units:
        search = halving(choices, seeds, few=_FEW_CHOICES)
        scores: dict[str, float] = {}
        left, count = next(search)
        while left:
            answers = yield [found | {unit: choice} for choice in left], count
            scores = dict(zip(left, answers, strict=True))
            try:
                left, count = search.send(scores)
            except StopIteration as end:
                best = max(end.value, key=scores.__getitem__)
                found |= {unit: best} if scores[best] > 0 else {}
                break
    return found
