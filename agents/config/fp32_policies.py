"""Policies that round nothing in fp32: runs in fp32 that differ in them alone are one run."""

from __future__ import annotations

from typing import Any

PRESETS = frozenset({"every-op", "storage", "mixed-precision", "engine"})
"""Presets that round to the format of the run and to no other one."""


def rounds_nothing_in_fp32(policy: Any) -> bool:
    """Whether a policy, as plain data, is none, or a preset of :data:`PRESETS` without anything beside it."""
    return not policy or (isinstance(policy, dict) and set(policy) == {"preset"} and policy["preset"] in PRESETS)


def without_policy(config: dict[str, Any]) -> dict[str, Any] | None:
    """The config of a run in fp32, as JSON values, without a policy that rounds nothing there; None for other runs.

    A run with accumulators of its own is another one: which products have them, the policy says.
    """
    policy = config.get("policy")
    if config.get("format") != "fp32" or config.get("accumulate") is not None or not rounds_nothing_in_fp32(policy):
        return None
    return {key: value for key, value in config.items() if key != "policy"}
