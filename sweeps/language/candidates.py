"""The candidates of a search: for the best, the varied values of a sweep; for the cheapest, formats of parts."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..subjects.subject import Run, RunConfig, Subject
from ..wording import brief
from .search_goal import REFERENCE, SearchGoal


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
    for by in ("task", "case") if all(run.case for run in runs) else ("task",):
        told = [key for key in told if not _follows(key, runs, by)]
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


def _follows(key: str, runs: Sequence[Run], by: str) -> bool:
    """Whether a key has one value for each of several tasks, or cases."""
    values: dict[str, set[str]] = {}
    for run in runs:
        place = run.case if by == "case" else run.config.task
        values.setdefault(place, set()).add(repr(run.config.as_json().get(key)))
    return len(values) > 1 and all(len(there) == 1 for there in values.values())


_PROGRAM_ROLES = ("forward", "backward", "optimizer")
_SUMS = {"bops": "bops", "memory": "bytes_kept"}
_STORED = ("weights", "first_moments", "second_moments", "targets", "activations", "gradients", "weight_gradients")


def check_cheapest(goal: SearchGoal, runs: Sequence[Run], subject: Subject) -> None:
    """Raises ValueError unless the runs are one in fp32 with enough seeds, and candidates can be made of it."""
    alike = {json.dumps(goal.rest_of(run.config), sort_keys=True) for run in runs}
    if len(alike) != 1 or runs[0].config.format != REFERENCE:
        raise ValueError(
            f"search for the cheapest begins with runs in {REFERENCE} that differ in their seeds alone: leave format"
            " and other lists out of the grid; search.formats names the formats"
        )
    config = runs[0].config.as_json()
    if config.get("policy", {}) not in ({}, {"preset": "every-op"}) or config.get("storage"):
        raise ValueError("search for the cheapest makes policy and storage itself: leave them out")
    if len(runs) < goal.choose + 2:
        raise ValueError(
            f"search for the cheapest needs {goal.choose} seeds that choose (search.choose), and at least two others"
            f" that have the last word; got {len(runs)}"
        )
    agents = "program" not in config
    if (goal.over == "storage" and not agents) or (goal.over == "module" and agents):
        raise ValueError(
            f"search.over: {goal.over} is about {'programs: agents have no modules' if agents else 'agents'};"
            f" allowed here are role, operation and {'storage' if agents else 'module'}"
        )
    first = fixed_units(goal, runs[0].config)
    units = first if first is not None else ["mm"]
    candidate(goal, runs[0], {units[0]: goal.formats[0]}, subject)


def fixed_units(goal: SearchGoal, config: RunConfig) -> list[str] | None:
    """The parts that may get separate formats; None for modules and operations, which are found by running it."""
    if goal.over in ("module", "operation"):
        return None
    if goal.over == "storage":
        return list(_STORED)
    return list(getattr(config, "roles", _PROGRAM_ROLES))


def found_units(goal: SearchGoal, counted: Mapping[str, Any]) -> list[str]:
    """The modules or operations that may get separate formats, of a program that was counted."""
    from ...formats import Format  # noqa: PLC0415  imports torch, which costs seconds
    from ...simulate import CONTRACTIONS  # noqa: PLC0415  as above

    units: list[str] = counted[f"{goal.over}s"]
    if goal.over == "operation" and not all(Format.parse(name).elementwise for name in goal.formats):
        return [unit for unit in units if unit in CONTRACTIONS]  # scales are for what is multiplied
    return units


def cost_by(by: str, counted: Mapping[str, Any]) -> float | None:
    """A cost of a step that was counted, by its name; None if a model gives no cost for some of the products."""
    if (told := counted["models"].get(by)) is not None:
        return None if told["value"] is None or told["without"] else float(told["value"])
    moved = float(counted["bytes_read"] + counted["bytes_written"])
    if by == "bits":
        return 8 * moved / float(counted["elements_read"] + counted["elements_written"])
    if by == "bytes":
        return moved
    return float(counted[_SUMS[by]])


def arithmetic(goal: SearchGoal, chosen: Mapping[str, str]) -> dict[str, Any]:
    """The keys of a config under which each part is in the format chosen for it, and all else in fp32."""
    from ...formats import Format  # noqa: PLC0415  imports torch, which costs seconds
    from ...simulate import CONTRACTIONS  # noqa: PLC0415  as above

    if not chosen:
        return {}
    if goal.over == "storage":
        return {"storage": dict(chosen)}
    rules: list[dict[str, Any]] = []
    for unit, name in chosen.items():
        if goal.over == "role":
            rules.append({"role": unit, "format": name})
        elif goal.over == "operation":
            results = {"format": name} if Format.parse(name).elementwise else {}
            rules.append({"operation": unit, **results, **({"operands": name} if unit in CONTRACTIONS else {})})
        elif Format.parse(name).elementwise:
            rules.append({"module": unit, "role": ["forward", "backward"], "format": name, "operands": name})
        else:
            products = {"operation": list(CONTRACTIONS), "operands": name}
            rules.append({"module": unit, "role": ["forward", "backward"], **products})
    return {"policy": {"rules": rules}}


def candidate(goal: SearchGoal, run: Run, chosen: Mapping[str, str], subject: Subject) -> RunConfig:
    """The config of a run with the formats chosen for some parts.

    Raises:
        ValueError: the run does not exist.
    """
    given = {key: value for key, value in run.config.as_json().items() if key not in ("program", "policy")}
    made = subject.config({**given, **arithmetic(goal, chosen)})
    if isinstance(made, list):
        named = ", ".join(f"{unit} in {name}" for unit, name in chosen.items())
        raise ValueError(f"a candidate of the search ({named}) is no run: {'; '.join(made)}")  # noqa: TRY004
    return made
