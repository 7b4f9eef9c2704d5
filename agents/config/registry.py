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
_PRESETS_OF_ONE_FORMAT = frozenset({"every-op", "storage", "mixed-precision", "engine"})
"""Presets that round only to the format of the run."""


def _remembered(read: Callable[_P, _R]) -> Callable[_P, _R]:
    """Caches results for the known algorithms; the import of a module may add algorithms later."""
    cached = cache(lambda _ordered_names, *args, **kwargs: read(*args, **kwargs))

    @wraps(read)
    def result(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        return cached(_ordered_names(), *args, **kwargs)  # type: ignore[arg-type]

    return result


@_remembered
def fields_of(key: str) -> dict[str, FieldInfo]:
    """Returns the fields of a key by algorithm; empty if the key does not exist."""
    fields = {name: config_of(name).model_fields.get(key) for name in _ordered_names()}
    return {name: field for name, field in fields.items() if field}


@_remembered
def keys() -> tuple[str, ...]:
    """Returns the keys of all algorithms, beginning with the keys that every run has."""
    return tuple(dict.fromkeys(key for name in _ordered_names() for key in config_of(name).model_fields))


@_remembered
def keys_with(role: KeyRole) -> frozenset[str]:
    """Returns the keys that have any of the roles for some algorithm."""
    roles = {key: reduce(or_, (role_of(field) for field in fields_of(key).values())) for key in keys()}
    return frozenset(key for key in roles if roles[key] & role)


@_remembered
def panels() -> Mapping[str, Panel]:
    """Returns the logged values of all algorithms that are drawn, by name."""
    return {name: panel for algorithm in _ordered_names() for name, panel in config_of(algorithm).panels.items()}


def drawn_values(configs: Iterable[Mapping[str, Any]]) -> list[str]:
    """Returns the logged values that are drawn for the algorithms of some configs."""
    names = {name for kind in {config_class(config) for config in configs} for name in kind.panels}
    return [name for name in panels() if name in names]


def leading(config: Mapping[str, Any]) -> str:
    """Returns the optimizer with the loss scale that is shown during a run with these keys."""
    return config_class(config).leading


def _ordered_names() -> tuple[str, ...]:
    """Returns the names of all algorithms; first sac, which was the only algorithm when older files were written."""
    return (*sorted(ALGORITHMS, key=lambda name: name != "sac"), *LIBRARIES, *own_algorithms.known())


def without_policy(config: dict[str, Any]) -> dict[str, Any] | None:
    """Returns the config of a run in fp32, as JSON values, without a policy that has no effect; None for other runs.

    A policy without effect is None, or a preset that only rounds to the run's format, without any other settings. A
    run with separate accumulators is a different run: the policy selects the products that have them.
    """
    policy = config.get("policy")
    plain = isinstance(policy, dict) and set(policy) == {"preset"} and policy["preset"] in _PRESETS_OF_ONE_FORMAT
    if config.get("format") != "fp32" or config.get("accumulate") is not None or (policy and not plain):
        return None
    return {key: value for key, value in config.items() if key != "policy"}
