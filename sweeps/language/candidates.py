"""The candidates of a search for the best: the varied values of a sweep, except tasks and seeds."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Sequence

from ..wording import brief
from .run import Run


def candidates(runs: Iterable[Run], varying: Iterable[str]) -> dict[str, list[Run]]:
    """The runs of each candidate, by its name: its case's name, and its values of the keys that vary.

    Keys that follow from the task do not belong to a candidate; keys that follow from the case are not named.

    Args:
        runs: the runs of a sweep.
        varying: the keys that take several values in it.

    Raises:
        ValueError: there are not two candidates, or they do not have the same tasks and seeds.
    """
    runs = list(runs)
    told = [key for key in varying if key not in ("task", "seed")]
    for of in (_task, _case) if all(run.case for run in runs) else (_task,):
        told = [key for key in told if not _follows(key, runs, of)]
    alike: dict[str, list[Run]] = {}
    for run in runs:
        values = run.config.as_json()
        alike.setdefault(json.dumps([run.case, *(values.get(key) for key in told)]), []).append(run)
    found: dict[str, list[Run]] = {}
    for own in alike.values():
        values = own[0].config.as_json()
        name = ", ".join([own[0].case] * bool(own[0].case) + [f"{key} {brief(values.get(key))}" for key in told])
        found[name if name not in found else f"{name} ({len(found) + 1})"] = own
    if len(found) < 2:
        raise ValueError(
            "search for the best needs at least two candidates: something else than task and seed must vary"
        )
    places = {name: sorted((run.config.task, run.config.seed) for run in own) for name, own in found.items()}
    first = next(iter(places))
    for name, place in places.items():
        if place != places[first]:
            raise ValueError(
                "search for the best takes candidates with the same tasks and seeds, each once;"
                f" {first!r} and {name!r} have others"
            )
    return found


def _task(run: Run) -> str:
    return run.config.task


def _case(run: Run) -> str:
    return run.case


def _follows(key: str, runs: Sequence[Run], of: Callable[[Run], str]) -> bool:
    """Whether a key has one value for each of several tasks, or cases."""
    values: dict[str, Collection[str]] = {}
    for run in runs:
        values[of(run)] = {*values.get(of(run), ()), repr(run.config.as_json().get(key))}
    return len(values) > 1 and all(len(there) == 1 for there in values.values())
