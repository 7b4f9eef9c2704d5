"""Runs in fp32 under several policies that round nothing there are one run, without a policy."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ...agents.config import without_policy

NO_POLICY = "none"
"""What stands in the column of policies for runs that have none."""
_BETTER = {"done": 0, "crashed": 0, "failed": 1}


def fp32_twice(configs: Mapping[str, dict[str, Any]], outcomes: Mapping[str, dict[str, Any]]) -> list[str]:
    """The duplicate runs, by id: they differ from another run only in a policy that rounds nothing in fp32.

    One run of each set of duplicates is kept: the first that has ended, else the first that failed, else the first.

    Args:
        configs: the configs of the runs, by id.
        outcomes: with their ``status``.
    """
    alike: dict[str, list[str]] = {}
    for identity in outcomes:
        if "seed" in configs[identity] and (plain := without_policy(configs[identity])) is not None:
            alike.setdefault(json.dumps(plain, sort_keys=True, default=str), []).append(identity)
    ranked = (sorted(ids, key=lambda one: _BETTER.get(outcomes[one]["status"], 2)) for ids in alike.values())
    return [
        identity
        for first, *others in ranked
        for identity in others
        if configs[identity].get("policy") != configs[first].get("policy")  # copies stay what they are
    ]


def fp32_once(columns: dict[str, dict[str, Any]], configs: Mapping[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The columns of runs, by id; where the others have several policies, runs in fp32 are under none of them."""
    free = {identity for identity in columns if without_policy(configs[identity]) is not None}
    if len({columns[identity].get("policy") for identity in columns.keys() - free}) < 2:
        return columns
    return {identity: {**row, "policy": NO_POLICY} if identity in free else row for identity, row in columns.items()}
