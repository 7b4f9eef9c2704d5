"""Searches in rounds: a search yields questions about candidates, and receives answers, until it has a result.

A search is a generator: it yields a question, receives the answer, and returns its result. It does not know how the
answer is computed, at once or by a sweep; :func:`ask` drives all searches.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import TypeVar

Question = TypeVar("Question")
Answer = TypeVar("Answer")
Found = TypeVar("Found")

FIRST = 2
"""The number of seeds in the first round of :func:`halving`."""
FEW = 4
"""The number of candidates from which on all get all seeds."""
_FEW_CHOICES = 2
"""The number of choices for a unit of :func:`allocation` from which on all get all seeds."""


def ask(
    search: Generator[Question, Answer, Found], answer: Callable[[Question], Answer | None]
) -> tuple[list[Question], Found | None]:
    """Answers the questions of a search until it has a result, or an answer is not known yet.

    Args:
        search: a new search. The same answers give the same questions, so that a new one continues an earlier one.
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

    It asks whether parts of ``units`` pass; all units together must pass. It asks some n^2 questions for n units at
    worst, about k log n for a part of k.

    Source:
        Zeller & Hildebrandt, "Simplifying and Isolating Failure-Inducing Input", 2002 (ddmin).
    """
    units_left, parts = list(units), 2
    while len(units_left) > 1:
        size = -(-len(units_left) // parts)  # rounded up
        pieces = [units_left[start : start + size] for start in range(0, len(units_left), size)]
        complements = [[unit for unit in units_left if unit not in piece] for piece in pieces]
        candidates = [  # a part, and the number of pieces that it is cut into next
            *((piece, 2) for piece in pieces),
            *((rest, max(parts - 1, 2)) for rest in complements if len(pieces) > 2),  # of two, each is the other
        ]
        for part, next_count in candidates:
            if (yield part):
                units_left, parts = part, next_count
                break
        else:  # neither a piece nor a complement passes: smaller pieces, as long as there are any
            if parts >= len(units_left):
                break
            parts = min(2 * parts, len(units_left))
    # The loop does not ask whether nothing at all would pass.
    if len(units_left) == 1 and (yield ()):
        return ()
    return tuple(units_left)


def bisection(candidates: Sequence[str]) -> Generator[str, bool, str | None]:
    """Finds the first candidate that passes, if all after a passing one also pass; None if the last one fails."""
    too_few, enough = -1, len(candidates) - 1  # the answer is above the first, and at most the second
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
        candidates: the names of the candidates.
        seeds: the number of seeds.
        few: the number of candidates that are never dropped.

    Source:
        Jamieson & Talwalkar, "Non-stochastic best arm identification and hyperparameter optimization", 2016.
    """
    remaining, count = list(candidates), FIRST
    while remaining:
        count = seeds if len(remaining) <= few else min(count, seeds)
        scores = yield remaining, count
        if count == seeds:
            break
        # A stable order: of equal scores, the earlier candidate stays.
        better = sorted(remaining, key=scores.__getitem__, reverse=True)[: max(few, math.ceil(len(remaining) / 2))]
        remaining = [candidate for candidate in remaining if candidate in better]  # in the order of the questions
        count *= 2
    return remaining


def allocation(
    units: Sequence[str], choices: Sequence[str], seeds: int
) -> Generator[tuple[Sequence[Mapping[str, str]], int], Sequence[float], dict[str, str]]:
    """Finds for each unit in turn the best choice that still passes, given the choices found for the units before it.

    It asks for the scores of several choices for some units, the others unchanged, with a number of seeds. A choice
    with a score above 0 passes, and higher scores are better; without choices, all pass. :func:`halving` finds each
    unit's choice. So the units that matter most must come first: later units get the remaining slack.

    Args:
        units: the names of the units.
        choices: the choices for each unit.
        seeds: the number of seeds.

    Returns:
        The choices of the units that have one; the others stay unchanged.
    """
    chosen: dict[str, str] = {}
    for unit in units:
        search = halving(choices, seeds, few=_FEW_CHOICES)
        scores: dict[str, float] = {}
        remaining, count = next(search)
        while remaining:
            answers = yield [chosen | {unit: choice} for choice in remaining], count
            scores = dict(zip(remaining, answers, strict=True))
            try:
                remaining, count = search.send(scores)
            except StopIteration as end:
                best = max(end.value, key=scores.__getitem__)
                # A unit that no choice suits stays unchanged.
                chosen |= {unit: best} if scores[best] > 0 else {}
                break
    return chosen
