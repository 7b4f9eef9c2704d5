"""Candidates of a search: for the best, the varied values of a sweep; for the cheapest, formats of parts."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..subjects.subject import Run, RunConfig, Subject
from ..wording import brief
from .search_goal import REFERENCE, SearchGoal


def candidates(runs: Iterable[Run], varying: Iterable[str]) -> dict[str, list[Run]]:
    """Groups the runs by candidate. Its name consists of its case and its values of the keys that vary.

    Keys that follow from the task do not belong to a candidate; keys that follow from the case are not in its name.

    Args:
        runs: the runs of a sweep.
        varying: the keys that take several values in it.

    Raises:
        ValueError: there are not two candidates, or they do not have the same tasks and seeds.
    """
    runs = list(runs)
    # The keys that make a candidate
    keys = [key for key in varying if key not in ("task", "seed")]
    for cause in ("task", "case") if all(run.case for run in runs) else ("task",):
        keys = [key for key in keys if not _follows_from(key, runs, cause)]
    groups: dict[str, list[Run]] = {}
    for run in runs:
        values = run.config.as_json()
        groups.setdefault(json.dumps([run.case, *(values.get(key) for key in keys)]), []).append(run)
    # Names; candidates that differ in nothing visible are numbered.
    named: dict[str, list[Run]] = {}
    for members in groups.values():
        values, case = members[0].config.as_json(), members[0].case
        name = ", ".join([case] * bool(case) + [f"{key} {brief(values.get(key))}" for key in keys])
        named[name if name not in named else f"{name} ({len(named) + 1})"] = members
    if len(named) < 2:
        raise ValueError(
            "search for the best needs at least two candidates: something else than task and seed must vary"
        )
    # Means are compared, so all candidates need the same tasks and seeds.
    conditions = {name: sorted((x.config.task, x.config.seed) for x in members) for name, members in named.items()}
    first = next(iter(conditions))
    for name, condition in conditions.items():
        if condition != conditions[first]:
            raise ValueError(
                "search for the best takes candidates with the same tasks and seeds, each once;"
                f" {first!r} and {name!r} have others"
            )
    return named


def _follows_from(key: str, runs: Sequence[Run], cause: str) -> bool:
    """Whether a key has one value for each of several tasks, or cases (``cause``)."""
    values: dict[str, set[str]] = {}
    for run in runs:
        group = run.case if cause == "case" else run.config.task
        values.setdefault(group, set()).add(repr(run.config.as_json().get(key)))
    return len(values) > 1 and all(len(group_values) == 1 for group_values in values.values())


_PROGRAM_ROLES = ("forward", "backward", "optimizer")
_COST_KEYS = {"bops": "bops", "memory": "bytes_kept"}
_STORED = ("weights", "first_moments", "second_moments", "targets", "activations", "gradients", "weight_gradients")


def check_cheapest(goal: SearchGoal, runs: Sequence[Run], subject: Subject) -> None:
    """Raises ValueError unless the runs are in fp32, differ only in their seeds, are enough, and make candidates."""
    other_keys = {json.dumps(goal.rest_of(run.config), sort_keys=True) for run in runs}
    if len(other_keys) != 1 or any(run.config.format != REFERENCE for run in runs):
        raise ValueError(
            f"search for the cheapest begins with runs in {REFERENCE} that differ only in their seeds: leave format"
            " and other lists out of the grid; search.formats names the formats"
        )
    config = runs[0].config.as_json()
    if config.get("policy", {}) not in ({}, {"preset": "every-op"}) or config.get("storage"):
        raise ValueError("search for the cheapest makes policy and storage itself: leave them out")
    if len(runs) < goal.choose + 2:
        raise ValueError(
            f"search for the cheapest needs {goal.choose} seeds that choose (search.choose), and at least two others"
            f" that confirm the choice; got {len(runs)}"
        )
    is_agent = "program" not in config
    if (goal.over == "storage" and not is_agent) or (goal.over == "module" and is_agent):
        raise ValueError(
            f"search.over: {goal.over} is about {'programs: agents have no modules' if is_agent else 'agents'};"
            f" allowed here are role, operation and {'storage' if is_agent else 'module'}"
        )
    # Tries one candidate: mistakes come before the first run.
    fixed = fixed_units(goal, runs[0].config)
    units = fixed if fixed is not None else ["mm"]
    candidate(goal, runs[0], {units[0]: goal.formats[0]}, subject)


def fixed_units(goal: SearchGoal, config: RunConfig) -> list[str] | None:
    """The parts that may get separate formats; None for modules and operations, which are found by a run."""
    if goal.over in ("module", "operation"):
        return None
    if goal.over == "storage":
        return list(_STORED)
    return list(getattr(config, "roles", _PROGRAM_ROLES))


def found_units(goal: SearchGoal, counted: Mapping[str, Any]) -> list[str]:
    """The modules or operations of a program that may get separate formats, from the count of its cost."""
    from ...formats import Format  # noqa: PLC0415  imports torch, which costs seconds
    from ...simulate import CONTRACTIONS  # noqa: PLC0415  as above

    units: list[str] = counted[f"{goal.over}s"]
    if goal.over == "operation" and not all(Format.parse(name).elementwise for name in goal.formats):
        return [unit for unit in units if unit in CONTRACTIONS]  # formats with scales are for operands of products
    return units


def cost_by(by: str, counted: Mapping[str, Any]) -> float | None:
    """Returns a counted cost of a step by its name; None if a model gives no cost for some of the products."""
    if (price := counted["models"].get(by)) is not None:
        return None if price["value"] is None or price["without"] else float(price["value"])
    moved = float(counted["bytes_read"] + counted["bytes_written"])
    if by == "bits":
        return 8 * moved / float(counted["elements_read"] + counted["elements_written"])
    if by == "bytes":
        return moved
    return float(counted[_COST_KEYS[by]])


def arithmetic(goal: SearchGoal, chosen: Mapping[str, str]) -> dict[str, Any]:
    """Returns keys of a config: each part is in the format chosen for it, and all else in fp32."""
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
    """Makes the config of a run with the formats chosen for some parts.

    Raises:
        ValueError: such a run is not valid.
    """
    values = {key: value for key, value in run.config.as_json().items() if key not in ("program", "policy")}
    config = subject.config({**values, **arithmetic(goal, chosen)})
    if isinstance(config, list):
        named = ", ".join(f"{unit} in {name}" for unit, name in chosen.items())
        raise ValueError(f"a candidate of the search ({named}) is no run: {'; '.join(config)}")  # noqa: TRY004
    return config
