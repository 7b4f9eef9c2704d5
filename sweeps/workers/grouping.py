"""Groups of runs of a sweep that share a worker, so that one program updates all their agents."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from ...agents import TrainConfig
from ..language.run import Run


def group(runs: Sequence[Run], population: int, workers: int, *, compiled: bool | None) -> list[list[Run]]:
    """Groups of runs, each for one worker at a time.

    Runs that can share a program are divided into groups of equal size, or nearly, since every size is another
    program: into so few that none has more members than ``population``, but as many as there are workers.

    Args:
        runs: to do.
        population: members of a group at most; 1: every run is alone.
        workers: at a time.
        compiled: whether updates are to be compiled; see :func:`roundoff.agents.train`.

    Returns:
        The groups, in the order of their first runs.
    """
    if population == 1 or compiled is False or len(runs) == 1:
        return [[run] for run in runs]
    kinds: dict[str, list[Run]] = {}
    for run in runs:
        kinds.setdefault(_kind(run, forced=compiled is True) or run.id, []).append(run)
    groups = [part for alike in kinds.values() for part in _divide(alike, population, workers)]
    order = {run.id: i for i, run in enumerate(runs)}
    return sorted(groups, key=lambda members: order[members[0].id])


def _kind(run: Run, *, forced: bool) -> str | None:
    """What runs that can share a program have in common; None for one that cannot, or gains nothing."""
    from ...agents import shared_kind, worth_sharing  # noqa: PLC0415  imports torch

    config = run.config
    if not isinstance(config, TrainConfig):
        return None
    return shared_kind(config) if forced or worth_sharing(config, config.steps // config.action_repeat) else None


def _divide(runs: list[Run], population: int, workers: int) -> list[list[Run]]:
    count = max(-(-len(runs) // population), min(workers, len(runs)))
    ends = [len(runs) * i // count for i in range(count + 1)]
    return [runs[begin:end] for begin, end in pairwise(ends)]
