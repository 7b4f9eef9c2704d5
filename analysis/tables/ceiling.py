"""Whether the reference stands at the highest return that there is, where better ones cannot be told apart."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .summary import have_one_unit

if TYPE_CHECKING:
    from collections.abc import Sequence

    from roundoff.runs.metric import Metric

    from .sides import Side

_SUITE = 1000.0  # the highest return of an episode of the suite: 1000 steps, of at most 1 each
_NEAR = 0.98


def ceiling(reference: Side, tasks: Sequence[str], metric: Metric) -> str:
    """Names the tasks on which at least half of the reference's runs return as much as there is; empty if none.

    That is 98 % of 1000 on the suite's tasks. On others it is the highest return of all, if half of the runs have
    exactly that, as 500 on CartPole, and it is more than a policy returns that has not learned. Equivalence there says
    that both reach it, not which of them learned faster.
    """
    return ", ".join(task for task in tasks if metric.of_agents and _is_at_it(reference, task))


def _is_at_it(reference: Side, task: str) -> bool:
    scores = list(reference.scores[task].values())
    if have_one_unit([task], of_agents=True):
        highest = _NEAR * _SUITE
    else:
        highest, before = max(scores), list(reference.untrained.get(task, {}).values())
        if not before or highest <= max(before):
            return False
    return sum(score >= highest for score in scores) >= max(2, len(scores) / 2)
