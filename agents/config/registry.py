"""The keys and logged values of all algorithms, for code that treats all runs alike; does not import PyTorch."""

from __future__ import annotations

from functools import cache, reduce
from operator import or_
from typing import TYPE_CHECKING, Any

from . import own_algorithms
from .fields import KeyRole, role_of
from .train_config import ALGORITHMS, LIBRARIES, config_class, config_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pydantic.fields import FieldInfo

    from .fields import Panel


_OF_ONE_FORMAT = frozenset({"every-op", "storage", "mixed-precision", "engine"})
"""Presets that round to the format of the run and to no other one."""


def fields(key: str) -> dict[str, FieldInfo]:
    """Returns the fields of a key by algorithm; empty if the key does not exist."""
    return _fields(key, _names())


def keys() -> tuple[str, ...]:
    """The keys of all algorithms, beginning with the keys that every run has."""
    return _keys(_names())


def keys_with(role: KeyRole) -> frozenset[str]:
    """The keys that have any of the roles for some algorithm."""
    return _keys_with(role, _names())


def panels() -> Mapping[str, Panel]:
    """The logged values that are drawn, by name; of all algorithms."""
    return _panels(_names())


# Remembered for these algorithms: a module may bring others later.
@cache
def _fields(key: str, names: tuple[str, ...]) -> dict[str, FieldInfo]:
    found = {name: config_of(name).model_fields.get(key) for name in names}
    return {name: field for name, field in found.items() if field}


@cache
def _keys(names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(key for name in names for key in config_of(name).model_fields))


@cache
def _keys_with(role: KeyRole, names: tuple[str, ...]) -> frozenset[str]:
    roles = {key: reduce(or_, (role_of(field) for field in _fields(key, names).values())) for key in _keys(names)}
    return frozenset(key for key in roles if roles[key] & role)


@cache
def _panels(names: tuple[str, ...]) -> Mapping[str, Panel]:
    found: dict[str, Panel] = {}
    for name in names:
        found |= config_of(name).panels
    return found


def drawn_values(configs: Iterable[Mapping[str, Any]]) -> list[str]:
    """The logged values that the algorithms of some configs want drawn."""
    wanted = {name for kind in {config_class(config) for config in configs} for name in kind.panels}
    return [name for name in panels() if name in wanted]


def leading(config: Mapping[str, Any]) -> str:
    """The optimizer with the loss scale to show while a run continues, by the keys of its config."""
    return config_class(config).leading


def _names() -> tuple[str, ...]:
    """Soft actor-critic's keys come first, which is their order in files from before there were others."""
    return (*sorted(ALGORITHMS, key=lambda name: name != "sac"), *LIBRARIES, *own_algorithms.known())


def without_policy(config: dict[str, Any]) -> dict[str, Any] | None:
    """The config of a run in fp32, as JSON values, without a policy that rounds nothing there; None for other runs.

    Such a policy is None, or a preset that only rounds to the run's format, without any other settings. A run with
    separate accumulators is a different run: the policy selects the products that have them.
    """
    policy = config.get("policy")
    alone = isinstance(policy, dict) and set(policy) == {"preset"} and policy["preset"] in _OF_ONE_FORMAT
    if config.get("format") != "fp32" or config.get("accumulate") is not None or (policy and not alone):
        return None
    return {key: value for key, value in config.items() if key != "policy"}
