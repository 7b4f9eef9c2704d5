"""The keys and logged values of all algorithms, for code that treats all runs alike; does not import PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cache, reduce, wraps
from operator import or_
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from . import own_algorithms
from .fields import KeyRole, Panel, role_of
from .train_config import ALGORITHMS, LIBRARIES, config_class, config_of

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

_P = ParamSpec("_P")
_R = TypeVar("_R")
_OF_ONE_FORMAT = frozenset({"every-op", "storage", "mixed-precision", "engine"})
"""Presets that round to the format of the run and to no other one."""


def _remembered(read: Callable[_P, _R]) -> Callable[_P, _R]:
    """Caches results for the algorithms that are known; a module may bring others later."""
    known = cache(lambda _ordered_names, *args, **kwargs: read(*args, **kwargs))

    @wraps(read)
    def result(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        return known(_ordered_names(), *args, **kwargs)  # type: ignore[arg-type]

    return result


@_remembered
def fields_of(key: str) -> dict[str, FieldInfo]:
    """Returns the fields of a key by algorithm; empty if the key does not exist."""
    found = {name: config_of(name).model_fields.get(key) for name in _ordered_names()}
    return {name: field for name, field in found.items() if field}


@_remembered
def keys() -> tuple[str, ...]:
    """The keys of all algorithms, beginning with the keys that every run has."""
    return tuple(dict.fromkeys(key for name in _ordered_names() for key in config_of(name).model_fields))


@_remembered
def keys_with(role: KeyRole) -> frozenset[str]:
    """The keys that have any of the roles for some algorithm."""
    roles = {key: reduce(or_, (role_of(field) for field in fields_of(key).values())) for key in keys()}
    return frozenset(key for key in roles if roles[key] & role)


@_remembered
def panels() -> Mapping[str, Panel]:
    """The logged values that are drawn, by name; of all algorithms."""
    return {name: panel for algorithm in _ordered_names() for name, panel in config_of(algorithm).panels.items()}


def drawn_values(configs: Iterable[Mapping[str, Any]]) -> list[str]:
    """The logged values that the algorithms of some configs want drawn."""
    wanted = {name for kind in {config_class(config) for config in configs} for name in kind.panels}
    return [name for name in panels() if name in wanted]


def leading(config: Mapping[str, Any]) -> str:
    """The optimizer with the loss scale to show while a run continues, by the keys of its config."""
    return config_class(config).leading


def _ordered_names() -> tuple[str, ...]:
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
